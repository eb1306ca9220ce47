"""The run folder: finished runs by what they were, so that an interrupted ladder goes on where it stopped.

A run is known by a key over everything that could change its outcome: the job, the model's SHA-256, the build, the
machine, the waiting policy. It is reused only under an equal key, and only if it ended well.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.lossless import LogitsVerdict
from workbench.telemetry import Recording, TelemetryError, read_jsonl

_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "OMP_PROC_BIND")
_OURS = ("*.jsonl", "*.f32", "*.verdict.json")


@functools.cache
def build_id() -> str:
    """SHA-256 over the runner and the libraries it loads, 16 hex digits."""
    from workbench.native_paths import lib_dir, runner

    digest = hashlib.sha256()
    libraries = [
        p
        for p in lib_dir().iterdir()
        if p.is_file() and not p.is_symlink() and re.search(r"\.(so|dylib)(\.|$)", p.name)
    ]
    for path in (runner(), *sorted(libraries)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def machine_id() -> dict[str, Any]:
    """What of this machine and its settings a timing depends on."""
    return {
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "n_cpu": os.cpu_count(),
        "os": f"{platform.system()} {platform.release()}",
        "waiting": {name: os.environ[name] for name in _WAITING if name in os.environ},
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


@dataclass(frozen=True, kw_only=True)
class RunStore:
    """Runs of one folder, for one model, build and machine.

    Attributes
    ----------
    folder : Path
        Where the runs' JSON Lines, verdicts and reference logits lie.
    identity : mapping
        Model SHA-256, build and machine: part of every key.
    """

    folder: Path
    identity: Mapping[str, Any]

    def key(self, job: Mapping[str, Any]) -> str:
        """Key of a job, 16 hex digits; where its files lie does not count."""
        values = {k: v for k, v in job.items() if k not in ("telemetry_path", "logits_path", "run_id", "model")}
        text = json.dumps([values, dict(self.identity)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def path(self, label: str, job: Mapping[str, Any], suffix: str = ".jsonl") -> Path:
        """File of a run; the label is for people, the key decides."""
        return self.folder / f"{slug(label)}-{self.key(job)}{suffix}"

    def finished(self, path: Path) -> Recording | None:
        """The recording of a run that ended well, or None."""
        try:
            recording = read_jsonl(path)
        except (OSError, TelemetryError):
            return None
        return recording if recording.status == "ok" else None

    def save_verdict(self, path: Path, verdict: LogitsVerdict) -> None:
        write_atomic(path, json.dumps(verdict.to_dict(), indent=1))

    def verdict(self, path: Path) -> LogitsVerdict | None:
        """A verdict kept by `save_verdict`, or None."""
        try:
            return LogitsVerdict(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def clear(self) -> None:
        """Delete the runs kept here; nothing else in the folder is touched."""
        for pattern in _OURS:
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)


def slug(label: str) -> str:
    """A label as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def write_atomic(path: Path, text: str) -> None:
    """Write a text file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
