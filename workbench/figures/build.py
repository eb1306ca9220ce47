"""Build figures: recorded runs → CSV → PNG, PDF and SVG, the same bytes every time."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError
from workbench.figures import FIGURES
from workbench.figures.runs import NotMeasured, Runs, open_runs
from workbench.figures.sheet import FigureData, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("png", "pdf", "svg")
_UNDATED: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": dict.fromkeys(("CreationDate", "ModDate", "Producer", "Creator")),
    "svg": dict.fromkeys(("Date", "Creator")),
}


@dataclass(frozen=True, kw_only=True)
class Built:
    """One figure's outcome.

    Attributes
    ----------
    files : tuple of Path
        PNG, PDF, SVG and CSV; empty when not measured.
    reason, how : str
        What the runs lack and what to run to get it; empty when drawn.
    labels : tuple of str
        What the figure says of its data, such as emulated.
    passed_over : tuple of str
        Other recorded runs it could have been drawn from.
    """

    name: str
    files: tuple[Path, ...] = ()
    reason: str = ""
    how: str = ""
    labels: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()


def build(runs: Path | str | None, out: Path | str, names: Sequence[str] = ()) -> list[Built]:
    """Build the named figures (all by default) into a folder; what is not measured leaves no file there.

    Raises
    ------
    WorkbenchError
        When a figure is unknown, or the runs are missing or damaged.
    """
    for name in names:
        _module(name)
    recorded, folder = open_runs(runs), Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    return [_build(name, recorded, folder) for name in names or FIGURES]


def _build(name: str, runs: Runs, folder: Path) -> Built:
    paths = {kind: folder / f"{name}.{kind}" for kind in (*KINDS, "csv")}
    for path in paths.values():
        path.unlink(missing_ok=True)
    try:
        given = _module(name).data(runs)
    except NotMeasured as missing:
        return Built(name=name, reason=str(missing), how=missing.how)
    given.save(paths["csv"])
    save(_module(name).draw, FigureData.load(paths["csv"]), folder, name)
    return Built(
        name=name,
        files=tuple(paths.values()),
        labels=tuple(given.labels),
        passed_over=tuple(runs.passed_over.get(name, ())),
    )


def save(draw: Any, given: FigureData, folder: Path, name: str, kinds: Sequence[str] = KINDS) -> dict[str, Path]:
    """Draw and write a figure; equal data give equal bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    canvases = {"png": FigureCanvasAgg, "pdf": FigureCanvasPdf, "svg": FigureCanvasSVG}
    paths = {kind: folder / f"{name}.{kind}" for kind in kinds}
    with style():
        figure = draw(given)
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once: the same in every format
        for axes in figure.axes:  # the solver's last digits depend on the order of sets
            axes.set_position([round(x, 6) for x in axes.get_position().bounds])
        for kind, path in paths.items():
            canvases[kind](figure)
            figure.savefig(path, metadata=_UNDATED[kind])
    return paths


def figure(name: str, runs: Path | str | None = None) -> Figure:
    """One figure for a notebook.

    Raises
    ------
    NotMeasured
        When the recorded runs lack what it needs; the message says what, `how` says what to run.
    """
    module = _module(name)
    try:
        given = module.data(open_runs(runs))
    except NotMeasured as missing:
        raise NotMeasured(f"{name}: not measured: {missing}. To measure it: {missing.how}", missing.how) from None
    with style():
        drawn: Figure = module.draw(given)
    return drawn


def _module(name: str) -> Any:
    if name not in FIGURES:
        raise WorkbenchError(f"no figure {name!r}; there are: {', '.join(FIGURES)}")
    return importlib.import_module(f"workbench.figures.{name}")
