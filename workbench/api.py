"""The notebook's side of the workbench: what the command line does, as objects with DataFrames and a display."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.config import RunConfig
from workbench.errors import WorkbenchError
from workbench.models import resolve_model
from workbench.telemetry import Recording, chrome_trace, read_jsonl, summarize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from workbench.ablation.suites import Suite
    from workbench.notebook.timeline import Timeline

LADDER_COLUMNS = (
    "rung", "decode_tok_s", "speedup", "bytes_per_token", "reads_per_token", "stall_ms_per_token",
    "compute_ms_per_token", "flash_idle_share", "hit_rate", "recall", "peak_bytes", "prefill_tok_s", "ttft_ms",
)  # fmt: skip


def _badges(labels: list[str]) -> str:
    style = "border:1px solid #888;border-radius:4px;padding:0 .4em;margin-left:.4em;font-size:85%"
    return "".join(f'<span style="{style}">{label}</span>' for label in labels)


def _drawable(figure: Figure) -> Figure:
    """Let a notebook draw a figure that was made without pyplot, which would have arranged that."""
    if "IPython" in sys.modules:
        from IPython import get_ipython
        from IPython.core.pylabtools import select_figure_formats

        if shell := get_ipython():
            select_figure_formats(shell, {"png"})
    return figure


@dataclass(frozen=True)
class Run:
    """One recorded generation.

    Attributes
    ----------
    recording : Recording
        Everything that was recorded.
    """

    recording: Recording

    @property
    def text(self) -> str:
        """The generated text."""
        return str((self.recording.end or {}).get("text") or "")

    @property
    def tokens(self) -> pd.DataFrame:
        """One row per decode call, prefill first."""
        return self.recording.tokens

    @property
    def layers(self) -> pd.DataFrame | None:
        """One row per layer and call (telemetry layer or io)."""
        return self.recording.layers

    @property
    def reads(self) -> pd.DataFrame | None:
        """One row per read (telemetry io)."""
        return self.recording.io

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The run's figures; None is not measured."""
        return summarize(self.recording)

    @property
    def labels(self) -> list[str]:
        """What a figure of this run must say: emulated, contended."""
        found = [self.recording.header["flash"]["kind"]] if self.recording.header["flash"]["kind"] == "emulated" else []
        return found + (["contended"] if self.summary["contended"] else [])

    def timeline(self, token: int = 0) -> Figure:
        """Compute, waits and reads of one decoded token (telemetry io)."""
        from workbench.timeline import draw

        return _drawable(draw(self.recording, token))

    def explore(self, token: int = 0) -> Timeline:
        """The same, to zoom and pan in a notebook; hovering shows details (telemetry io)."""
        from workbench.notebook.timeline import Timeline

        return Timeline.of(self.recording, token)

    def save_trace(self, path: Path | str) -> Path:
        """Write the whole run for Perfetto or chrome://tracing."""
        path = Path(path)
        path.write_text(json.dumps(chrome_trace(self.recording)))
        return path

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{name}</td><td style='text-align:right'>"
            f"{'not measured' if value is None else f'{value:,.4g}' if isinstance(value, float) else value}</td></tr>"
            for name, value in self.summary.items()
        )
        title = f"{self.recording.header['model']['file']}{_badges(self.labels)}"
        return f"<b>{title}</b><table>{rows}</table>"


@dataclass(frozen=True)
class Ladder:
    """A finished ablation.

    Attributes
    ----------
    document : mapping
        The document that `workbench ablate` prints and keeps as `results.json`.
    folder : Path
        The run folder.
    """

    document: Mapping[str, Any]
    folder: Path

    @property
    def table(self) -> pd.DataFrame:
        """One row per rung; NaN is not measured."""
        rows = [{key: row[key] for key in LADDER_COLUMNS} | {
            "lossless": row["lossless"]["verdict"],
            "labels": ", ".join(row["labels"]),
        } for row in self.document["rows"]]  # fmt: skip
        return pd.DataFrame(rows).set_index("rung")

    def figure(self) -> Figure:
        """Speed, speed-up and memory per rung, beside the article's reported ladder."""
        from workbench.ablation.figure import draw

        return _drawable(draw(self.document))

    def explain(self) -> dict[str, str]:
        """Per rung: where the time goes and what can still pay."""
        return {row["rung"]: row["regime"]["text"] for row in self.document["rows"] if row["regime"]}

    def _repr_html_(self) -> str:
        kinds = {label for row in self.document["rows"] for label in row["labels"]}
        table = self.table.to_html(float_format=lambda value: f"{value:.4g}")
        return f"<b>{self.document['model']['name']}</b>{_badges(sorted(kinds))}{table}"


def run(model: str | Path, prompt: str, *, tokens: int = 64, ignore_eos: bool = False, **toggles: Any) -> Run:
    """Generate in a process of its own, so that the notebook's kernel does not compete with it.

    Parameters
    ----------
    model
        A GGUF, or `owner/repo:file.gguf` on the hub.
    **toggles
        Fields of `RunConfig`.

    Raises
    ------
    WorkbenchError
        As `Session` and the runner do.
    InterruptedRun
        When the cell is interrupted: the runner has ended by then, and `interrupted()` gives what it recorded.
    """
    from workbench.runner import InterruptedRun, run_native

    job = {
        "model": str(resolve_model(model)),
        "config": RunConfig.from_dict(toggles).to_dict(),
        "run_id": uuid.uuid4().hex[:12],
        "prompt": prompt,
        "n_predict": tokens,
        "ignore_eos": ignore_eos,
    }
    try:
        return Run(run_native(job))
    except InterruptedRun as stopped:
        global _interrupted
        _interrupted = Run(stopped.recording) if stopped.recording else None
        raise InterruptedRun(stopped.recording, _what_is_kept(_interrupted)) from None


_interrupted: Run | None = None


def interrupted() -> Run | None:
    """What the latest interrupted `run` had recorded; None if there was none, or nothing was recorded yet."""
    return _interrupted


def _what_is_kept(run: Run | None) -> str:
    if run is None:
        return "the run stopped before anything was recorded."
    return f"{len(run.tokens)} decode calls were recorded; wb.interrupted() is that run."


def ablate(
    model: str | Path, suite: Suite | Path | str | None = None, *, out: Path | str | None = None, **changes: Any
) -> Ladder:
    """Run the ablation ladder, with a progress bar; finished runs in `out` are reused.

    Parameters
    ----------
    suite
        A suite or its file; None: the whole ladder.
    **changes
        Fields of `Suite` to replace, such as `repeats=3`, `tokens=32`, `flash="phone"`.

    Raises
    ------
    InterruptedRun
        When the cell is interrupted. Finished runs are kept in `out`: the same call resumes there.
    """
    from tqdm.auto import tqdm

    from workbench.ablation.figure import save
    from workbench.ablation.ladder import run_ladder
    from workbench.ablation.suites import Suite, load_suite
    from workbench.runner import InterruptedRun

    chosen = load_suite(suite) if isinstance(suite, (str, Path)) else suite or Suite()
    if changes.get("flash") == "phone":
        changes.setdefault("base", {**chosen.base, "io": "buffered"})
    chosen = replace(chosen, **changes)
    path = resolve_model(model)
    folder = Path(out) if out else Path("runs") / f"ablate-{path.stem}"
    with tqdm(total=0, unit="run", desc="ladder") as bar:

        def start(total: int) -> Any:
            bar.reset(total=total)
            return lambda _label: bar.update()

        try:
            made = run_ladder(path, chosen, folder, progress=start)
        except InterruptedRun as stopped:
            kept = f"finished runs are kept in {folder}; run the cell again to go on from there."
            raise InterruptedRun(stopped.recording, kept) from None
    save(made.document, folder)
    return Ladder(made.document, folder)


def load_run(folder: Path | str) -> Ladder | list[Run]:
    """Read one run folder: a finished ladder, or the recordings (`*.jsonl`) in it.

    Raises
    ------
    WorkbenchError
        If the folder holds neither.
    """
    folder = Path(folder)
    results = folder / "results.json"
    if results.is_file():
        document = json.loads(results.read_text(encoding="utf-8"))
        if document.get("kind") != "ablation":
            raise WorkbenchError(f"{results}: holds a {document.get('kind')}, not a ladder")
        return Ladder(document, folder)
    recordings = sorted(folder.glob("**/*.jsonl"))
    if not recordings:
        raise WorkbenchError(f"{folder}: neither results.json nor recordings (*.jsonl) are there")
    return [Run(read_jsonl(path)) for path in recordings]


def figure(name: str, runs: Path | str | None = None) -> Figure:
    """One of the paper's figures (`workbench.figures.FIGURES`), from recorded runs only.

    Parameters
    ----------
    runs
        Folder of recorded runs; None: those that come with the project.

    Raises
    ------
    WorkbenchError
        If there is no such figure, or the runs lack what it needs: the message says what to run.
    """
    from workbench.figures.build import figure as drawn

    return drawn(name, runs)


def paper_figures(runs: Path | str | None = None, out: Path | str = "runs/figures") -> pd.DataFrame:
    """Build all of the paper's figures as PNG, PDF, SVG and the CSV they drew.

    Returns
    -------
    DataFrame
        Per figure: `state` (drawn or not measured), `labels`, and what is missing with what to run for it.
    """
    from workbench.figures.build import build

    rows = [
        {"figure": b.name, "state": "drawn" if b.files else "not measured", "labels": ", ".join(b.labels)}
        | {"missing": b.reason, "run": b.how}
        for b in build(runs, out)
    ]
    return pd.DataFrame(rows).set_index("figure")
