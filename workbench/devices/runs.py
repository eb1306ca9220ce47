"""One run on a target: files there once, records back as they come, sensors sampled, failures with their kind."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.devices.failures import GONE, DeviceError, classify, error_of
from workbench.devices.samples import COLUMNS, EVERY_S, Clock, Sampler
from workbench.devices.targets.base import Target
from workbench.runner import file_sha256, raise_for_status, run_native, shards
from workbench.telemetry import Recording, TelemetryError, read_jsonl

SAMPLES = "samples.jsonl"


@dataclass(kw_only=True)
class DeviceRuns:
    """Makes runs on a target; called as `run_native` is.

    Attributes
    ----------
    folder : Path
        Where samples are appended, on the runner's clock.
    cooldown_s, idle_s : int
        Pause before every run; idle time whose power is sampled before the first.
    lost : DeviceError or None
        Set when the device went away: later runs are only tried once it answers again.
    """

    target: Target
    folder: Path
    cooldown_s: int = 0
    idle_s: int = 0
    say: Callable[[str], None] = lambda text: None
    lost: DeviceError | None = None
    _sampler: Sampler = field(init=False, repr=False)
    _clock: Clock = field(default_factory=Clock, repr=False)
    _idle: tuple[int, int] | None = field(default=None, repr=False)
    _runs: int = 0

    def __post_init__(self) -> None:
        self._sampler = Sampler(look=self.target.sample)
        if self.target.clock_is_ours:
            self._clock.offset_ns = 0

    def __call__(self, job: Mapping[str, Any], *, timeout: float | None = None) -> Recording:
        self._be_there()
        self._pause()
        try:
            with self._sampler:
                if self.target.clock_is_ours:
                    return run_native(dict(job), timeout=timeout)
                return self._remote(job, timeout)
        except DeviceError as error:
            if error.kind in GONE:
                self.lost = error
            raise
        finally:
            self._keep_samples()

    def _be_there(self) -> None:
        if self.lost is None:
            return
        try:
            self.target.probe()
        except DeviceError as error:
            raise DeviceError(self.lost.kind, f"not run: the device still does not answer; {error}") from None
        self.lost = None

    def _pause(self) -> None:
        if not self._runs and self.idle_s:
            self.say(f"idle for {self.idle_s} s, for the power without a run: leave the device alone, screen on")
            t0 = time.monotonic_ns()
            with self._sampler:
                time.sleep(self.idle_s)
            self._idle = (t0, time.monotonic_ns())
        elif self._runs and self.cooldown_s:
            time.sleep(self.cooldown_s)
        self._runs += 1

    def _remote(self, job: Mapping[str, Any], timeout: float | None) -> Recording:
        sent = dict(job)
        sent["model"] = self._push(Path(job["model"]), job["model_sha256"])
        drafter = job["config"].get("draft_model")
        if drafter:
            sent["config"] = dict(job["config"]) | {"draft_model": self._push(Path(drafter), None)}
        sent["telemetry_path"] = None
        logits = job.get("logits_path")
        if logits:
            sent["logits_path"] = self.target.output(f"{job['run_id']}.f32")
        with contextlib.ExitStack() as stack:
            path = Path(job.get("telemetry_path") or Path(stack.enter_context(_scratch())) / "run.jsonl")
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                finished = self.target.run(sent, on_line=lambda line: self._line(line, file.write), timeout=timeout)
            try:
                recording: Recording | None = read_jsonl(path)
            except (OSError, TelemetryError):
                recording = None
        if recording is None or recording.end is None:
            if "error[" not in finished.text:
                raise error_of(finished, "the run ended early", thermal=self._sampler.thermal_state)
            kind = classify(finished, thermal=self._sampler.thermal_state)
            if kind in GONE:
                raise error_of(finished, "the run ended early", thermal=self._sampler.thermal_state)
        raise_for_status(max(finished.rc, 0), finished.text, recording)
        assert recording is not None
        if logits:
            self.target.pull(sent["logits_path"], Path(logits))
            self.target.forget(sent["logits_path"])
        return recording

    def _push(self, local: Path, sha256: str | None) -> str:
        """Bring a model (all its shards) to the device; where it lies there."""
        files = shards(local)
        digest = sha256 or file_sha256(local)
        for file in files:
            sent = self.target.push(file, digest)
            if sent:
                self.say(f"pushed {file.name} ({sent / 1e6:,.1f} MB)")
        return self.target.blob(digest, local.name)

    def _line(self, line: str, write: Callable[[str], Any]) -> None:
        """Keep the lines that are records; take clock and sensors from those that tell them."""
        arrived_ns = time.monotonic_ns()
        try:
            record = json.loads(line)
        except ValueError:
            return
        if not isinstance(record, dict) or "t" not in record:
            return
        write(line + "\n")
        self._clock.saw(record, arrived_ns)
        if record["t"] == "smp" and record.get("t_ns") is not None:
            row = {name: record.get(name) for name in COLUMNS} | {"source": record.get("source") or "runner"}
            self._append([row])

    def _keep_samples(self) -> None:
        """Append what was sampled; before the device's clock is known, samples wait for it."""
        offset_ns = self._clock.offset_ns
        if offset_ns is None:
            return
        if self._idle:
            t0, t1 = self._idle
            self._append([{"idle": [t0 + offset_ns, t1 + offset_ns]}])
            self._idle = None
        self._append(self._sampler.drain(offset_ns))

    def _append(self, rows: list[dict[str, Any]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / SAMPLES, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="les-device-")


def read_samples(folder: Path) -> tuple[list[dict[str, Any]], tuple[int, int] | None]:
    """Rows kept in a run folder, and the last idle phase."""
    rows, idle = [], None
    with contextlib.suppress(FileNotFoundError), open(folder / SAMPLES, encoding="utf-8") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if "idle" in row:
                idle = (int(row["idle"][0]), int(row["idle"][1]))
            else:
                rows.append(row)
    return rows, idle


def runner_samples(recording: Recording, every_s: float = EVERY_S) -> list[dict[str, Any]]:
    """What the runner's own token records say of memory and thermal state, thinned out."""
    rows: list[dict[str, Any]] = []
    last_ns = None
    columns = {"memory_bytes": "rss_bytes", "thermal_state": "thermal"}
    for token in recording.tokens.to_dict("records"):
        values = {name: token[column] for name, column in columns.items() if not pd.isna(token[column])}
        if values and (last_ns is None or token["t1_ns"] - last_ns >= every_s * 1e9):
            last_ns = int(token["t1_ns"])
            rows.append({"t_ns": last_ns, "source": "runner", **values})
    return rows
