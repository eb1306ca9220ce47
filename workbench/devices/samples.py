"""Samples of power, temperature, frequency and memory, on the runner's clock. A missing sensor is null, never 0."""

from __future__ import annotations

import csv
import datetime
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.errors import WorkbenchError

COLUMNS = {
    "t_ns": "Int64",
    "source": "string",
    "power_w": "Float64",
    "battery_temp_c": "Float64",
    "thermal_state": "string",
    "freq_hz": "Int64",
    "memory_bytes": "Int64",
}
EVERY_S = 5.0


class MeterError(WorkbenchError):
    """A power meter's CSV has no usable columns; the message names them."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One look at the sensors.

    Attributes
    ----------
    power_w : float or None
        Drawn from the battery; None while it is charged (then it says nothing about the device).
    thermal_state : str or None
        As the system calls it.
    freq_hz : int or None
        Of the fastest core.
    memory_bytes : int or None
        Of the runner.
    """

    source: str
    power_w: float | None = None
    battery_temp_c: float | None = None
    thermal_state: str | None = None
    freq_hz: int | None = None
    memory_bytes: int | None = None


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows of `COLUMNS`, sorted by time."""
    ordered = sorted(rows, key=lambda row: row["t_ns"])
    columns = {name: pd.Series([row.get(name) for row in ordered], dtype="object") for name in COLUMNS}
    return pd.DataFrame(columns).astype(COLUMNS)


@dataclass
class Clock:
    """What to add to this machine's monotonic clock to get the runner's.

    Every record arrives after the call it reports ended, so the smallest difference seen is the offset, within the
    shortest time a line takes to arrive. On one machine the offset is 0.
    """

    offset_ns: int | None = None

    def saw(self, record: Mapping[str, Any], arrived_ns: int) -> None:
        """Take in a token record that has just arrived."""
        if record.get("t") == "tok" and record.get("t1_ns") is not None:
            offset = int(record["t1_ns"]) - arrived_ns
            self.offset_ns = offset if self.offset_ns is None else max(self.offset_ns, offset)


@dataclass
class Sampler:
    """Looks at the sensors while something runs.

    Attributes
    ----------
    look : callable
        Returns a `Sample`; its errors are not the run's.
    taken : list
        (time on this machine's monotonic clock, sample).
    """

    look: Callable[[], Sample]
    every_s: float = EVERY_S
    taken: list[tuple[int, Sample]] = field(default_factory=list)

    def once(self) -> None:
        """Take one sample, timed at the middle of the look."""
        t0 = time.monotonic_ns()
        try:
            sample = self.look()
        except (OSError, ValueError, WorkbenchError):
            return
        self.taken.append(((t0 + time.monotonic_ns()) // 2, sample))

    def __enter__(self) -> Sampler:
        self._done = threading.Event()
        self.once()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        return self

    def _loop(self) -> None:
        while not self._done.wait(self.every_s):
            self.once()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.once()

    @property
    def thermal_state(self) -> str | None:
        """The last one known."""
        return next((s.thermal_state for _, s in reversed(self.taken) if s.thermal_state is not None), None)

    def drain(self, offset_ns: int) -> list[dict[str, Any]]:
        """The samples so far as rows on the runner's clock; they are forgotten here."""
        taken, self.taken = self.taken, []
        return [{"t_ns": t + offset_ns, **asdict(sample)} for t, sample in taken]


def from_meter(path: Path | str, *, wall_minus_mono_ns: int) -> list[dict[str, Any]]:
    """Rows of an external power meter's CSV, source `meter`.

    Parameters
    ----------
    path
        Columns `time` (seconds since 1970, or ISO 8601 with its offset) and `power_w` (or `voltage_v`, `current_a`).
    wall_minus_mono_ns
        Difference of the runner's two clocks, from a header's `clock`; the meter's clock must be set to wall time.

    Raises
    ------
    MeterError
        Naming the file and what is missing or unreadable.
    """
    path = Path(path)
    rows = []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = set(reader.fieldnames or ())
            if "time" not in names or not ("power_w" in names or {"voltage_v", "current_a"} <= names):
                raise MeterError(
                    f"{path}: needs the columns time and power_w (or voltage_v and current_a); "
                    f"it has {', '.join(sorted(names)) or 'none'}"
                )
            for number, row in enumerate(reader, start=2):
                try:
                    factors = ("power_w",) if "power_w" in names else ("voltage_v", "current_a")
                    power = math.prod(float(row[name]) for name in factors)
                    t_ns = _wall_ns(row["time"]) - wall_minus_mono_ns
                except (TypeError, ValueError) as error:
                    raise MeterError(f"{path}: line {number}: {error}") from None
                rows.append({"t_ns": t_ns, **asdict(Sample(source="meter", power_w=power))})
    except OSError as error:
        raise MeterError(f"{path}: {error.strerror or error}") from error
    if not rows:
        raise MeterError(f"{path}: no rows")
    return rows


def _wall_ns(text: str) -> int:
    try:
        return round(float(text) * 1e9)
    except ValueError:
        when = datetime.datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError(f"time {text!r} has no offset from UTC: write it as 2026-01-31T12:00:00+00:00")
    return round(when.timestamp() * 1e9)
