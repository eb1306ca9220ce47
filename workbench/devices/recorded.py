"""Recorded runs of several devices side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.api import Ladder, Run, load_run
from workbench.errors import WorkbenchError

POWER = ("watts", "watts_above_idle", "celsius_rise", "tokens_per_joule")


@dataclass(frozen=True)
class Ladders:
    """Ladders of a folder, by the name of their recording.

    Attributes
    ----------
    ladders : mapping
        Name → ladder, sorted by name, and so by date.
    """

    ladders: Mapping[str, Ladder]

    def __getitem__(self, name: str) -> Ladder:
        return self.ladders[name]

    def __len__(self) -> int:
        return len(self.ladders)

    @property
    def table(self) -> pd.DataFrame:
        """One row per recording and rung; NaN is not measured.

        `verified` is how far the target that recorded it has been tried; `flash` and `labels` tell what is emulated.
        """
        return pd.concat([_table(name, ladder) for name, ladder in self.ladders.items()]).set_index(
            ["recording", "rung"]
        )

    def compare(self, column: str = "decode_tok_s") -> pd.DataFrame:
        """One column of all recordings, rungs down and recordings across."""
        table = self.table[column].unstack("recording")
        return table.reindex(list(dict.fromkeys(self.table.index.get_level_values("rung"))))

    def _repr_html_(self) -> str:
        return self.table.to_html(float_format=lambda value: f"{value:.4g}")


def _table(name: str, ladder: Ladder) -> pd.DataFrame:
    document: Mapping[str, Any] = ladder.document
    target = document.get("target") or {}
    lead = {
        "recording": name,
        "device": (target.get("device") or {}).get("name") or (document["machine"].get("device") or {}).get("machine"),
        "target": target.get("name"),
        "verified": (target.get("verified") or {}).get("level"),
        "suite": document["suite"],
        "model": document["model"]["name"],
    }
    rows = ladder.table.reset_index()
    for key, value in reversed(lead.items()):
        rows.insert(0, key, value)
    by_rung = {row["rung"]: row for row in document["rows"]}
    rows["flash"] = [by_rung[rung]["flash"]["kind"] for rung in rows["rung"]]
    rows["status"] = [by_rung[rung]["status"] for rung in rows["rung"]]
    rows["failure"] = [by_rung[rung].get("failure") or by_rung[rung]["error"] for rung in rows["rung"]]
    power = {report["rung"]: report for report in document.get("power") or ()}
    for key in POWER:
        rows[key] = pd.array([power.get(rung, {}).get(key) for rung in rows["rung"]], dtype="Float64")
    return rows


def load_runs(folder: Path | str) -> Ladder | Ladders | list[Run]:
    """Read a run folder: a finished ladder, several of them side by side, or the recordings (`*.jsonl`) in it.

    A parent of run folders, such as `device_runs/recorded`, gives `Ladders`: one table over devices and rungs. What
    is no ladder there (comparisons, benchmarks) is left out.

    Raises
    ------
    WorkbenchError
        If the folder holds none of these.
    """
    folder = Path(folder)
    if (folder / "results.json").is_file() or not any(folder.glob("*/results.json")):
        return load_run(folder)
    found = {}
    for path in sorted(folder.glob("*/results.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("kind") == "ablation":
            found[path.parent.name] = Ladder(document, path.parent)
    if not found:
        raise WorkbenchError(f"{folder}: no recorded ladders (*/results.json) are there")
    return Ladders(found)
