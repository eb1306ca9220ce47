"""One run of the panel: started in a thread, watched while it goes, stopped on request; what it recorded is kept."""

from __future__ import annotations

import subprocess
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.config import RunConfig
from workbench.errors import WorkbenchError
from workbench.runner import NativeRunError, run_native, stop
from workbench.telemetry import Recording


@dataclass
class Attempt:
    """One generation, from before it starts until after it ended.

    Attributes
    ----------
    model : Path
        The file.
    records : list of dict
        The `tok` records so far.
    recording : Recording or None
        Everything recorded, once the run ended; also when it was stopped or failed.
    problem : str or None
        Why it failed, one sentence.
    """

    model: Path
    prompt: str
    tokens: int
    config: RunConfig
    records: list[dict[str, Any]] = field(default_factory=list)
    recording: Recording | None = None
    problem: str | None = None
    _process: subprocess.Popen[str] | None = None
    _stopping: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def stopped(self) -> bool:
        """Whether the user ended it."""
        return self._stopping

    def run(self, watch: Callable[[], None] = lambda: None) -> None:
        """Run to the end, in the calling thread; `watch` is called after every decode call. Raises nothing."""
        job = {
            "model": str(self.model),
            "config": self.config.to_dict(),
            "run_id": uuid.uuid4().hex[:12],
            "prompt": self.prompt,
            "n_predict": self.tokens,
            "ignore_eos": False,
        }

        def on_record(record: dict[str, Any]) -> None:
            if record["t"] == "tok":
                self.records.append(record)
                watch()

        try:
            self.recording = run_native(job, on_record=on_record, on_start=self._started)
        except NativeRunError as error:
            self.recording = error.recording
            self.problem = None if self._stopping else _sentence(error)
        except WorkbenchError as error:
            self.problem = _sentence(error)
        except Exception as error:  # shown in the panel: a thread has nobody else to tell
            self.problem = f"unexpected {type(error).__name__}: {_sentence(error)}"

    def stop(self) -> None:
        """End the run and return once its process is gone; safe at any time, from any other thread."""
        with self._lock:
            self._stopping = True
            process = self._process
        if process is not None:
            stop(process)

    def _started(self, process: subprocess.Popen[str]) -> None:
        with self._lock:
            self._process = process
            stopping = self._stopping
        if stopping:
            stop(process)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
