"""Run `les-run` once, in its own process, and read back what it recorded."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from workbench.errors import (
    BY_TAG,
    ModelFileError,
    RunError,
)
from workbench.telemetry import Recording, TelemetryError, read_jsonl

GRACE_S = 5.0
_BIG_BYTES = 1 << 28


class NativeRunError(RunError):
    """A run failed after it started.

    Attributes
    ----------
    recording : Recording or None
        What was recorded up to that point.
    """

    def __init__(self, message: str, recording: Recording | None) -> None:
        super().__init__(message)
        self.recording = recording


class InterruptedRun(KeyboardInterrupt):
    """Ctrl-C during a run, or a notebook's interrupted cell.

    Attributes
    ----------
    recording : Recording or None
        What was recorded up to that point (None: nothing yet).
    """

    def __init__(self, recording: Recording | None, message: str = "") -> None:
        super().__init__(*([message] if message else []))
        self.recording = recording

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: a sentence, not a traceback."""
        return [f"Interrupted: {self}"] if str(self) else ["Interrupted."]


def run_native(
    job: dict[str, Any],
    *,
    on_record: Callable[[dict[str, Any]], None] | None = None,
    on_start: Callable[[subprocess.Popen[str]], None] | None = None,
    timeout: float | None = None,
    launcher: Sequence[str] = (),
) -> Recording:
    """Run one job of `les-run` and return its recording.

    Parameters
    ----------
    job : dict
        The runner's JSON configuration. With `telemetry_path` the records are kept in that file.
    on_record : callable, optional
        Called with every record as it arrives. Without it the runner writes to a file and this process sleeps, so
        that nothing competes with the compute threads: leave it out when timing.
    on_start : callable, optional
        Called with the runner's process, so that another thread can `stop` it.
    timeout : float, optional
        Seconds after which the run is ended with a `RunError`.
    launcher : sequence of str
        Command that starts the runner, such as one that puts it under a memory cap.

    Raises
    ------
    ToggleError, ModelFileError, UnsupportedArchitectureError
        The runner refused the job.
    NativeRunError
        The run failed, died or timed out; carries the recording up to that point.
    InterruptedRun
        On Ctrl-C, a `KeyboardInterrupt` with the recording; the process is gone by then.
    """
    from workbench.native_paths import runner

    with tempfile.TemporaryDirectory(prefix="les-run-") as scratch:
        kept = job.get("telemetry_path")
        path = Path(kept or Path(scratch) / "telemetry.jsonl")
        job_path, log_path = Path(scratch) / "job.json", Path(scratch) / "stderr.txt"
        streamed = on_record is not None
        job_path.write_text(json.dumps(job | {"telemetry_path": None if streamed else str(path)}), encoding="utf-8")
        with open(log_path, "wb") as log:
            process = subprocess.Popen(
                [*launcher, str(runner()), str(job_path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if streamed else subprocess.DEVNULL,
                stderr=log,
                env=environment(),
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C reaches this process only, which then ends the runner once
            )
        timed_out = False
        try:
            if on_start is not None:
                on_start(process)
            if on_record is not None:
                timed_out = _stream(process, path, on_record, timeout)
            else:
                process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            stop(process)
        except KeyboardInterrupt:
            stop(process)
            raise InterruptedRun(_read(path)) from None
        except BaseException:
            stop(process)
            raise
        recording = _read(path)
        if timed_out:
            raise NativeRunError(f"the run took longer than {timeout:g} s and was ended", recording)
        raise_for_status(process.returncode, log_path.read_text(encoding="utf-8", errors="replace"), recording)
    assert recording is not None
    return recording


def environment() -> dict[str, str]:
    """The runner's environment: ours, with a bounded spin in OpenMP barriers unless a waiting policy is set.

    Unbounded spinning costs up to 20 × when anything else wants a core.
    """
    env = dict(os.environ)
    if "OMP_WAIT_POLICY" not in env:
        env.setdefault("GOMP_SPINCOUNT", "10000")
    return env


def stop(process: subprocess.Popen[str]) -> None:
    """End a process: interrupt (the runner then writes its end record), terminate, kill."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(timeout=GRACE_S)


@contextlib.contextmanager
def deadline(process: subprocess.Popen[str], timeout: float | None) -> Iterator[threading.Event]:
    """End a process after `timeout` seconds; the event tells that it was."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        stop(process)

    timer = threading.Timer(timeout, expire) if timeout is not None else None
    if timer:
        timer.daemon = True
        timer.start()
    try:
        yield expired
    finally:
        if timer:
            timer.cancel()


def _stream(
    process: subprocess.Popen[str], path: Path, on_record: Callable[[dict[str, Any]], None], timeout: float | None
) -> bool:
    """Pass records on as they come, keeping every line in `path`; True when the time ran out."""
    with deadline(process, timeout) as expired, open(path, "w", encoding="utf-8") as file:
        for line in process.stdout or ():
            file.write(line)
            file.flush()
            with contextlib.suppress(json.JSONDecodeError):
                on_record(json.loads(line))
        process.wait()
    return expired.is_set()


def _read(path: Path) -> Recording | None:
    try:
        return read_jsonl(path)
    except (OSError, TelemetryError):
        return None


def raise_for_status(code: int, log: str, recording: Recording | None) -> None:
    """Raise the error that an exit status, the runner's messages and its end record tell of; none when it went well."""
    if code < 0:
        raise NativeRunError(_death(-code), recording)
    tagged = re.search(r"^error\[(\w+)\]: (.*)$", log, re.MULTILINE)
    if code == 0 and recording is not None and recording.status in ("ok", "interrupted"):
        return
    kind = BY_TAG.get(tagged[1], RunError) if tagged else RunError
    if tagged and not issubclass(kind, RunError):
        raise kind(tagged[2])
    reported = (recording.end or {}).get("error") if recording else None
    message = tagged[2] if tagged else reported or _last_line(log) or f"les-run exited with code {code} and no message"
    raise NativeRunError(message, recording)


def _death(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = ""
    if name == "SIGKILL":
        hint = ": most likely the kernel ended it for memory; lower cache_slots or n_ctx, or free memory"
    elif name in ("SIGILL",):
        hint = ": the build uses CPU instructions this machine lacks; rebuild it here"
    return f"les-run was killed by {name}{hint}"


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else ""


def model_sha256(path: Path | str) -> str:
    """SHA-256 of a model, hex; remembered per path, size and modification time in the user's cache folder.

    Of a split GGUF (`NAME-00001-of-0000N.gguf`): SHA-256 over the shards' hex digests, one a line, in order.

    Raises
    ------
    ModelFileError
        When a file cannot be read.
    """
    digests = [file_sha256(shard) for shard in shards(Path(path))]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()


def shards(path: Path) -> list[Path]:
    """The files of a model: itself, or all shards of a split GGUF."""
    match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    if not match:
        return [path]
    return [path.with_name(f"{match[1]}-{i:05d}-of-{match[2]}.gguf") for i in range(1, int(match[2]) + 1)]


def cache_folder() -> Path:
    """Where this package keeps what it can compute again."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "les-workbench"


def file_sha256(path: Path) -> str:
    """SHA-256 of one file, hex; remembered as that of a model is."""
    try:
        stat = path.stat()
        key = [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
        memory = cache_folder() / "sha256" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.txt"
        with contextlib.suppress(OSError):
            if re.fullmatch(r"[0-9a-f]{64}", remembered := memory.read_text(encoding="ascii").strip()):
                return remembered
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            for block in _blocks(file, stat.st_size, path.name):
                digest.update(block)
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror or error}") from error
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        partial = memory.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(digest.hexdigest(), encoding="ascii")
        partial.replace(memory)
    return digest.hexdigest()


def _blocks(file: IO[bytes], size: int, name: str) -> Iterator[bytes]:
    from tqdm.auto import tqdm

    with tqdm(total=size, unit="B", unit_scale=True, desc=f"hashing {name}", disable=size < _BIG_BYTES) as bar:
        while block := file.read(1 << 22):
            yield block
            bar.update(len(block))
