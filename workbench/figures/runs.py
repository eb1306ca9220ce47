"""Recorded runs, found by what their files say they are: ladders, benchmarks, layouts, samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.errors import WorkbenchError

RECORDED = Path("device_runs") / "recorded"


class NotMeasured(WorkbenchError):
    """The recorded runs lack what a figure needs.

    Attributes
    ----------
    how : str
        What to run to get it.
    """

    def __init__(self, reason: str, how: str) -> None:
        super().__init__(reason)
        self.how = how


@dataclass(frozen=True)
class RecordedRun:
    """A document (`results.json`, `bench.json` or `layout*.json`) and the files beside it."""

    folder: Path
    document: Mapping[str, Any]
    date: str = ""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows that were measured: rungs of a ladder that ran, or a benchmark's cases."""
        return [r for r in self.document.get("rows", ()) if r.get("status", "ok") == "ok"]

    @property
    def labels(self) -> list[str]:
        """What a figure of this run must say: emulated, synthetic, contended, derived."""
        found = {label for row in self.document.get("rows", ()) for label in row.get("labels", ())}
        found |= {"emulated" for row in self.document.get("rows", ()) if row.get("flash") == "emulated"}
        found |= {"contended" for row in self.document.get("rows", ()) if row.get("contended") is True}
        found |= {"derived"} if self.document.get("profile") else set()
        found |= {str(label) for label in self.document.get("labels", ())}
        return sorted(found)

    def telemetry(self, level: str) -> pd.DataFrame | None:
        """The ladder's `tokens`, `layers` or `io` of all its runs; None where that level was not recorded."""
        path = self.folder / f"telemetry-{level}.parquet"
        return pd.read_parquet(path) if path.is_file() else None

    def samples(self) -> pd.DataFrame | None:
        """Power, temperature, frequency and memory over time; None where nothing sampled them."""
        path = self.folder / "samples.parquet"
        return pd.read_parquet(path) if path.is_file() else None


@dataclass(frozen=True)
class Runs:
    """Everything recorded below a folder.

    Attributes
    ----------
    folder : Path
        Searched with all its subfolders.
    passed_over : dict
        Filled while figures choose: figure → runs it could have been drawn from as well.
    """

    folder: Path
    passed_over: dict[str, list[str]] = field(default_factory=dict)

    @cached_property
    def documents(self) -> tuple[RecordedRun, ...]:
        found = []
        for path in sorted(self.folder.rglob("*.json")):
            if path.name in ("results.json", "bench.json") or path.name.startswith("layout"):
                found.append(RecordedRun(path.parent, _read(path), _date(path)))
        return tuple(found)

    @property
    def ladders(self) -> tuple[RecordedRun, ...]:
        """Ladders (`workbench ablate`, `demo`, `device run`) with at least one rung that ran."""
        return tuple(r for r in self.documents if r.document.get("kind") == "ablation" and r.rows)

    @property
    def scored(self) -> tuple[RecordedRun, ...]:
        """Documents with size against score (`workbench ablate --eval`)."""
        return tuple(r for r in self.documents if r.document.get("size_score"))

    @property
    def layouts(self) -> tuple[RecordedRun, ...]:
        """Layouts of model files (`workbench inspect --record`)."""
        return tuple(r for r in self.documents if r.document.get("kind") == "layout")

    def benches(self, name: str) -> tuple[RecordedRun, ...]:
        """Recordings of a benchmark (`workbench bench NAME --out`)."""
        return tuple(r for r in self.documents if r.document.get("kind") == "bench" and r.document.get("name") == name)

    def choose(
        self, figure: str, candidates: Iterable[RecordedRun], size: Callable[[RecordedRun], float] = lambda run: 0.0
    ) -> RecordedRun | None:
        """The run to draw: uncontended before contended, then the largest, then the latest; None without candidates."""
        ordered = sorted(
            candidates, key=lambda run: ("contended" not in run.labels, size(run), run.date, run.name), reverse=True
        )
        if not ordered:
            return None
        self.passed_over[figure] = [run.name for run in ordered[1:]]
        return ordered[0]


def open_runs(folder: Path | str | None = None) -> Runs:
    """The runs below a folder; None: the recorded ones that come with the project.

    Raises
    ------
    WorkbenchError
        When the folder is not there.
    """
    if folder is None:
        beside = Path(__file__).resolve().parents[2] / RECORDED
        folder = RECORDED if RECORDED.is_dir() else beside
    folder = Path(folder)
    if not folder.is_dir():
        raise WorkbenchError(f"{folder}: no such folder; give the one that holds recorded runs with --runs")
    return Runs(folder)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorkbenchError(f"{path}: not a readable recording ({error}); record it again or move it away") from error
    return document if isinstance(document, dict) else {}


def _date(path: Path) -> str:
    manifest = path.parent / "manifest.json"
    document = _read(manifest) if manifest.is_file() else _read(path)
    return str(document.get("date", ""))


def flash_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """One sentence on the flash of a ladder's rows."""
    flash = next((r["flash"] for r in rows if (r.get("flash") or {}).get("kind") == "emulated"), None)
    if flash is None:
        return "Native flash."
    speed, latency = flash["bandwidth_bytes_s"] / 1e9, flash["latency_ns"] / 1e3
    return f"Flash is emulated ({speed:.3g} GB/s, {latency:.3g} µs per request)."
