"""What all figures share: the data with its title and caption, the look, and labels that cannot be forgotten.

A figure is drawn from its CSV alone, so the CSV holds exactly what the picture shows.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

MEASURED, REPORTED = "measured", "reported"
BLUE, ORANGE, GREEN, RED, PURPLE, GREY, SKY = (
    "#0173B2", "#DE8F05", "#029E73", "#D55E00", "#CC78BC", "#949494", "#56B4E9",
)  # fmt: skip
"""Seaborn's colour-blind palette; hatches and markers carry the same distinctions in grey."""
REPORTED_GROUND = "#F3F3F3"
WORDS = {
    "emulated": "emulated flash",
    "synthetic": "synthetic weights",
    "contended": "contended: speeds not to be trusted",
    "derived": "flash profile derived",
    "not measured": "in part not measured",
}
RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "les-workbench",
}
DPI = 160


@dataclass(frozen=True)
class FigureData:
    """What a figure shows.

    Attributes
    ----------
    frame : DataFrame
        Every mark of the picture; `how` says of each row whether it is `measured` or `reported`.
    title, caption : str
        The caption says what the error bars are and which recorded run was drawn.
    labels : list of str
        Such as `emulated`; they become part of the title.
    """

    frame: pd.DataFrame
    title: str
    caption: str
    labels: list[str] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """The title with its labels."""
        words = [WORDS.get(label, label) for label in sorted(self.labels)]
        return self.title + (f" ({', '.join(words)})" if words else "")

    def save(self, path: Path) -> None:
        """Write the CSV: three comment lines (title, labels, caption), then the rows."""
        lead = f"# title: {self.title}\n# labels: {', '.join(sorted(self.labels))}\n# caption: {self.caption}\n"
        path.write_text(lead + self.frame.to_csv(index=False, lineterminator="\n"), encoding="utf-8", newline="")

    @classmethod
    def load(cls, path: Path | str) -> FigureData:
        """Read what `save` wrote."""
        with Path(path).open(encoding="utf-8", newline="") as file:
            title, labels, caption = (file.readline().rstrip("\n").partition(": ")[2] for _ in range(3))
            frame = pd.read_csv(file, keep_default_na=False, na_values=[""])
        return cls(frame, title, caption, [label for label in labels.split(", ") if label])


@contextmanager
def style() -> Iterator[None]:
    """The look of all figures."""
    import matplotlib
    import seaborn as sns

    look: Any = {**sns.axes_style("ticks"), **RC}
    with matplotlib.rc_context(look):
        yield


def sheet(given: FigureData, size: tuple[float, float], **subplots: Any) -> tuple[Figure, Any]:
    """A figure with its headline and caption, and its axes: `figure.subplots(**subplots)`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    caption = textwrap.fill(given.caption, int(size[0] * 21))
    foot = (0.05 + 0.125 * (caption.count("\n") + 1)) / size[1]
    headline = textwrap.fill(given.headline, int(size[0] * 11.5))
    head = (0.08 + 0.17 * (headline.count("\n") + 1)) / size[1]
    figure.text(0.01, 1 - 0.05 / size[1], headline, ha="left", va="top", fontsize=10, fontweight="bold")
    figure.text(0.01, 0.05 / size[1], caption, ha="left", va="bottom", fontsize=6.5)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0.004, foot, 0.992, 1 - foot - head), w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.05)
    return figure, figure.subplots(**subplots)


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows that were measured here."""
    return frame[frame["how"] == MEASURED]


def reported(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows that others report, estimate, or that were derived from their numbers."""
    return frame[frame["how"] != MEASURED]


def reported_ground(axes: Axes, title: str) -> None:
    """Mark axes as holding reported values only."""
    axes.set_facecolor(REPORTED_GROUND)
    axes.set_title(f"Reported, not measured: {title}")


def absent(axes: Axes, what: str, how: str = "", *, width: int = 32) -> None:
    """Say on otherwise empty axes that something was not measured, and what to run for it."""
    axes.set_axis_off()
    lines = [f"{what}:", "not measured", *(["", *textwrap.wrap(how, width)] if how else [])]
    axes.text(
        0.5, 0.5, "\n".join(lines), ha="center", va="center", fontsize=7, style="italic", transform=axes.transAxes
    )


def log_ticks(axis: Axis) -> None:
    """Plain numbers at 1, 2 and 5 of every decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def bounds(frame: pd.DataFrame, value: str, low: str, high: str) -> list[list[float]] | None:
    """Lengths of error bars (NaN where an interval was not measured); None where none was."""
    if low not in frame or high not in frame or frame[low].isna().all():
        return None
    return [(frame[value] - frame[low]).clip(lower=0).tolist(), (frame[high] - frame[value]).clip(lower=0).tolist()]


def slanted(axes: Axes, names: Sequence[str]) -> None:
    """Category names below the x axis."""
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")


def drawn_from(names: Iterable[str]) -> str:
    """The caption's last sentence: where the data are."""
    return f"Recorded run: {', '.join(names)}."
