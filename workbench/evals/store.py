"""Where evaluations are kept: one folder per (configuration, model, build, tasks), so that none meets another's scores.

A folder holds `journal.jsonl` (finished waves), `samples.parquet`, `results.json` and `manifest.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.ablation.results import to_json
from workbench.ablation.store import write_atomic

SCHEMA = 1


class Journal:
    """Results by key, appended to a JSON Lines file as they are made; a torn last line is ignored.

    Parameters
    ----------
    path : Path or None
        None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.reused = self.made = 0
        self._kept: dict[str, Any] = {}
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        text = ""
        with contextlib.suppress(OSError):
            text = path.read_text(encoding="utf-8")
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                key, value = json.loads(line)
                self._kept[key] = value
        if text and not text.endswith("\n"):
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def get(self, key: str) -> Any:
        """The result of a key, or None."""
        found = self._kept.get(key)
        self.reused += found is not None
        return found

    def put(self, key: str, value: Any) -> None:
        """Keep a result."""
        self.made += 1
        self._kept[key] = value
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, value], separators=(",", ":")) + "\n")


@dataclass(frozen=True, kw_only=True)
class EvalStore:
    """Evaluations under a root folder.

    Attributes
    ----------
    root : Path
        Such as `runs/evals`.
    """

    root: Path

    @staticmethod
    def key(identity: Mapping[str, Any]) -> str:
        """Key of an evaluation: a hash of everything its scores could depend on."""
        return hashlib.sha256(to_json(dict(sorted(identity.items()))).encode()).hexdigest()[:16]

    def folder(self, label: str, identity: Mapping[str, Any]) -> Path:
        """The evaluation's folder; the label is for people, the key decides."""
        return self.root / f"{label}-{self.key(identity)}"


def save(folder: Path, *, results: Mapping[str, Any], samples: pd.DataFrame, manifest: Mapping[str, Any]) -> None:
    """Write an evaluation; `results.json` comes last and marks it whole."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "samples.parquet.partial"
    samples.to_parquet(partial, index=False)
    partial.replace(folder / "samples.parquet")
    write_atomic(folder / "manifest.json", to_json(manifest, indent=1) + "\n")
    write_atomic(folder / "results.json", to_json(results, indent=1) + "\n")


def load(folder: Path) -> tuple[dict[str, Any], pd.DataFrame] | None:
    """A finished evaluation, or None."""
    try:
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        return results, pd.read_parquet(folder / "samples.parquet")
    except (OSError, ValueError):
        return None
