"""Telemetry of one run: JSON Lines → `Recording` → metrics, Parquet, timeline.

A recording may be cut anywhere: a half-written last line is dropped, and a recording without its `end` record is
one of a crashed run. What was not measured is `None` or `NA`, never 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.errors import WorkbenchError

SCHEMA = 1

_INT, _STR, _ANY = "Int64", "string", "object"
TOKEN_COLUMNS = {
    "i": _INT,
    "phase": _STR,
    "n_tokens": _INT,
    "token": _INT,
    "next": _INT,
    "t0_ns": _INT,
    "t1_ns": _INT,
    "compute_ns": _INT,
    "dense_ns": _INT,
    "expert_compute_ns": _INT,
    "predict_ns": _INT,
    "stall_ns": _INT,
    "bytes": _INT,
    "reads": _INT,
    "lookups": _INT,
    "hits": _INT,
    "misses": _INT,
    "evictions": _INT,
    "prefetch_issued": _INT,
    "prefetch_used": _INT,
    "prefetch_wasted": _INT,
    "prefetch_wasted_bytes": _INT,
    "recall_hit": _INT,
    "recall_total": _INT,
    "flash_busy_ns": _INT,
    "logits_hash": _STR,
    "rss_bytes": _INT,
    "drafted": _INT,
    "accepted": _INT,
    "chosen": _ANY,
    "draft_ns": _INT,
    "inject_ns": _INT,
    "thermal": _STR,
}
LAYER_COLUMNS = {
    "i": _INT,
    "phase": _STR,
    "layer": _INT,
    "t0_ns": _INT,
    "t1_ns": _INT,
    "routed": _ANY,
    "predicted": _ANY,
    "hits": _INT,
    "stall_ns": _INT,
    "compute_ns": _INT,
    "waves": _INT,
    "wave_spans": _ANY,
    "wait_spans": _ANY,
}
IO_COLUMNS = {
    "i": _INT,
    "layer": _INT,
    "experts": _ANY,
    "offset": _INT,
    "bytes": _INT,
    "lane": _INT,
    "queue_ns": _INT,
    "start_ns": _INT,
    "end_ns": _INT,
    "source": _STR,
}


class TelemetryError(WorkbenchError):
    """A telemetry file is empty, malformed in the middle, or of another schema."""


@dataclass(frozen=True)
class Recording:
    """One run as it was recorded.

    Attributes
    ----------
    header : dict
        The `hdr` record: configuration, model, build, device, flash.
    end : dict or None
        The `end` record; None when the run crashed.
    tokens : DataFrame
        One row per decode call (`TOKEN_COLUMNS`), prefill first.
    layers, io : DataFrame or None
        One row per layer and call, one per read; None below those telemetry levels.
    """

    header: dict[str, Any]
    end: dict[str, Any] | None
    tokens: pd.DataFrame
    layers: pd.DataFrame | None
    io: pd.DataFrame | None

    @property
    def status(self) -> str:
        """`ok`, `interrupted`, `error` or `crashed`."""
        if self.end is None:
            return "crashed"
        if self.end.get("reason") == "interrupted":
            return "interrupted"
        return "ok" if self.end.get("rc") == 0 else "error"

    @property
    def decode(self) -> pd.DataFrame:
        """The decode rows of `tokens`."""
        return self.tokens[self.tokens["phase"] == "decode"]

    @property
    def generated(self) -> list[int]:
        """Token ids chosen, in order; the last one was chosen but not fed. A verified draft chooses several at once."""
        out: list[int] = []
        for chosen, token in zip(self.tokens["chosen"], self.tokens["next"], strict=True):
            if isinstance(chosen, (list, np.ndarray)):
                out += [int(t) for t in chosen]
            elif not pd.isna(token):
                out.append(int(token))
        return out

    def to_parquet(self, folder: Path | str) -> None:
        """Write `tokens.parquet` (header and end in its metadata) and, where recorded, `layers` and `io`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pandas(self.tokens.reset_index(drop=True), preserve_index=False)
        extra = {b"les.header": json.dumps(self.header).encode(), b"les.end": json.dumps(self.end).encode()}
        pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), **extra}), folder / _TOKENS)
        for name, frame in ((_LAYERS, self.layers), (_IO, self.io)):
            if frame is not None:
                frame.to_parquet(folder / name, index=False)

    @classmethod
    def from_parquet(cls, folder: Path | str) -> Recording:
        """Read what `to_parquet` wrote."""
        import pyarrow.parquet as pq

        folder = Path(folder)
        table = pq.read_table(folder / _TOKENS)
        metadata = table.schema.metadata or {}
        if b"les.header" not in metadata:
            raise TelemetryError(f"{folder / _TOKENS} has no run header: it was not written by to_parquet")
        layers, io = (pd.read_parquet(folder / name) if (folder / name).exists() else None for name in (_LAYERS, _IO))
        return cls(
            header=json.loads(metadata[b"les.header"]),
            end=json.loads(metadata[b"les.end"]),
            tokens=_typed(table.to_pandas(), TOKEN_COLUMNS),
            layers=None if layers is None else _typed(layers, LAYER_COLUMNS),
            io=None if io is None else _typed(io, IO_COLUMNS),
        )


_TOKENS, _LAYERS, _IO = "tokens.parquet", "layers.parquet", "io.parquet"


def read_jsonl(source: Path | str | Iterable[str]) -> Recording:
    """Read a recording from a file, or from an iterable of lines.

    Raises
    ------
    TelemetryError
        When there is no header, a line other than the last is malformed, or the schema is unknown.
    """
    name = str(source) if isinstance(source, (str, Path)) else "telemetry"
    if isinstance(source, (str, Path)):
        with open(source, encoding="utf-8", errors="replace") as file:
            return from_records(_parse(file, name), name=name)
    return from_records(_parse(source, name), name=name)


def _parse(lines: Iterable[str], name: str) -> Iterable[dict[str, Any]]:
    broken = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if broken is not None:
            raise TelemetryError(f"{name}: line {broken} is not a record, and it is not the last one")
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            broken = number
            continue
        if not isinstance(record, dict) or "t" not in record:
            raise TelemetryError(f"{name}: line {number} is not a telemetry record")
        yield record


def from_records(records: Iterable[Mapping[str, Any]], *, name: str = "telemetry") -> Recording:
    """Assemble a recording from parsed records; kinds this version does not know are skipped."""
    kinds: dict[str, list[Mapping[str, Any]]] = {"hdr": [], "tok": [], "layer": [], "io": [], "end": []}
    for record in records:
        if record["t"] in kinds:
            kinds[record["t"]].append(record)
    if not kinds["hdr"]:
        raise TelemetryError(f"{name}: no header record; the run stopped before it began")
    header = _payload(kinds["hdr"][0])
    if header.get("schema") != SCHEMA:
        raise TelemetryError(f"{name}: schema {header.get('schema')}, this version reads {SCHEMA}")
    return Recording(
        header=header,
        end=_payload(kinds["end"][-1]) if kinds["end"] else None,
        tokens=_frame(kinds["tok"], TOKEN_COLUMNS),
        layers=_frame(kinds["layer"], LAYER_COLUMNS) if kinds["layer"] else None,
        io=_frame(kinds["io"], IO_COLUMNS) if kinds["io"] else None,
    )


def _payload(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "t"}


def _frame(records: list[Mapping[str, Any]], columns: Mapping[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            name: pd.Series([record.get(name) for record in records], dtype=_ANY).astype(dtype)
            for name, dtype in columns.items()
        }
    )


def _typed(frame: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    lists = {name for name, dtype in columns.items() if dtype == _ANY}
    frame = frame.assign(**{name: None for name in columns if name not in frame})  # an older file's
    frame = frame.astype({name: dtype for name, dtype in columns.items() if name not in lists})
    for name in lists:
        frame[name] = pd.Series(
            [value.tolist() if isinstance(value, np.ndarray) else value for value in frame[name]], dtype=_ANY
        )
    return frame


def _sum(frame: pd.DataFrame, column: str) -> int | None:
    """Sum of a column; None unless every row was measured."""
    values = frame[column]
    return int(values.sum()) if len(values) and not values.isna().any() else None


def _span_ns(frame: pd.DataFrame) -> int | None:
    return int(frame["t1_ns"].max() - frame["t0_ns"].min()) if len(frame) else None


def _add(values: Iterable[int | None]) -> int | None:
    values = list(values)
    return None if not values or any(v is None for v in values) else sum(v for v in values if v is not None)


def _ratio(numerator: float | None, denominator: float | None, scale: float = 1.0) -> float | None:
    return None if numerator is None or not denominator else scale * numerator / denominator


def _phase_total(recording: Recording, phase: str) -> tuple[int | None, int | None]:
    """Tokens and wall time (ns) of a phase: from the token records, or from `end` when telemetry was off."""
    rows = recording.tokens[recording.tokens["phase"] == phase]
    if len(rows):
        made = rows["n_tokens"].where(rows["accepted"].isna(), rows["accepted"] + 1)  # a draft may be rejected
        return (None if made.isna().all() else int(made.sum())), _span_ns(rows)
    end = recording.end or {}
    return end.get("n_prompt" if phase == "prefill" else "n_decode"), end.get(f"{phase}_ns")


_ENDS = ("ttft_ns", "peak_bytes", "contended")


def summarize(recording: Recording, *more: Recording) -> dict[str, Any]:
    """Metrics of a run, or of several prompts of one configuration pooled (sums divided by sums).

    Rates are tokens over wall time, from the start of the phase's first call to the end of its last, so sampling
    between calls counts (with telemetry off: the time inside the calls). No token is left out: warm-up is a separate
    run. Byte, read, stall, compute and cache
    figures are those of the decode phase; `peak_bytes` is that of the whole process (the largest of the pooled).

    Returns
    -------
    dict
        `prefill_tok_s`, `decode_tok_s`, `ttft_ms` (median of the pooled), `bytes_per_token`, `reads_per_token`,
        `stall_ms_per_token`, `compute_ms_per_token`, `expert_compute_ms_per_token`, `flash_busy_ms_per_token`,
        `flash_idle_share` (share of decode time in which no read was in flight), `hit_rate` (cached experts over
        experts needed), `recall` (real selections that were predicted), `prefetch_wasted_bytes` (whole decode),
        `prefetch_wasted_bytes_per_token`, `peak_bytes`, `contended`, `tau` (tokens per round of
        drafting and verifying, the bonus token included), `drafted_per_round`, `n_prompt`, `n_decode`. None where not
        measured.
    """
    runs = (recording, *more)
    decodes = [run.decode for run in runs]
    prefill = [_phase_total(run, "prefill") for run in runs]
    decode = [_phase_total(run, "decode") for run in runs]
    n_prompt, prefill_ns = _add(t[0] for t in prefill), _add(t[1] for t in prefill)
    n_decode, decode_ns = _add(t[0] for t in decode), _add(t[1] for t in decode)

    def total(column: str) -> int | None:
        return _add(_sum(frame, column) for frame in decodes)

    accepted, rounds = total("accepted"), _add(int(frame["accepted"].notna().sum()) for frame in decodes)
    ends = [run.end or {} for run in runs]
    ttft, peak, contended = ([end[k] for end in ends if end.get(k) is not None] for k in _ENDS)
    busy_share = _ratio(total("flash_busy_ns"), decode_ns)
    return {
        "prefill_tok_s": _ratio(n_prompt, prefill_ns, 1e9),
        "decode_tok_s": _ratio(n_decode, decode_ns, 1e9),
        "ttft_ms": float(np.median(ttft)) / 1e6 if len(ttft) == len(runs) else None,
        "bytes_per_token": _ratio(total("bytes"), n_decode),
        "reads_per_token": _ratio(total("reads"), n_decode),
        "stall_ms_per_token": _ratio(total("stall_ns"), n_decode, 1e-6),
        "compute_ms_per_token": _ratio(total("compute_ns"), n_decode, 1e-6),
        "expert_compute_ms_per_token": _ratio(total("expert_compute_ns"), n_decode, 1e-6),
        "flash_busy_ms_per_token": _ratio(total("flash_busy_ns"), n_decode, 1e-6),
        "flash_idle_share": None if busy_share is None else min(1.0, max(0.0, 1.0 - busy_share)),
        "hit_rate": _ratio(total("hits"), total("lookups")),
        "recall": _ratio(total("recall_hit"), total("recall_total")),
        "prefetch_wasted_bytes": total("prefetch_wasted_bytes"),
        "prefetch_wasted_bytes_per_token": _ratio(total("prefetch_wasted_bytes"), n_decode),
        "peak_bytes": max(peak) if len(peak) == len(runs) else None,
        "contended": any(contended) if contended else None,
        "n_prompt": n_prompt,
        "tau": _ratio(_add([accepted, rounds]), rounds) if accepted is not None else None,
        "drafted_per_round": _ratio(total("drafted"), rounds),
        "n_decode": n_decode,
    }


def chrome_trace(recording: Recording) -> dict[str, Any]:
    """Timeline for Perfetto or `chrome://tracing`: one compute track, one track per I/O lane (µs).

    Tokens are slices of the compute track with their layers inside; reads are named by layer and experts, and
    coloured by source through their category.
    """
    frames = [recording.tokens["t0_ns"]]
    frames += [] if recording.io is None else [recording.io["start_ns"]]
    starts = pd.concat(frames).dropna()
    origin_ns = int(starts.min()) if len(starts) else 0
    events = [_track_name(0, "compute")]
    for row in recording.tokens.to_dict("records"):
        args = {k: int(row[k]) for k in ("stall_ns", "bytes", "hits", "misses") if not pd.isna(row[k])}
        events.append(_slice(f"{row['phase']} {row['i']}", "token", 0, row["t0_ns"], row["t1_ns"], origin_ns, args))
    for row in [] if recording.layers is None else recording.layers.to_dict("records"):
        args = {"routed": row["routed"], "predicted": row["predicted"]}
        args |= {k: int(row[k]) for k in ("stall_ns", "compute_ns", "waves") if not pd.isna(row[k])}
        events.append(_slice(f"layer {row['layer']}", "layer", 0, row["t0_ns"], row["t1_ns"], origin_ns, args))
        for kind in ("wave", "wait"):
            for t0, t1, experts in spans_of(row[f"{kind}_spans"]):
                events.append(_slice(kind, kind, 0, t0, t1, origin_ns, {"experts": experts} if experts else {}))
    if recording.io is not None:
        events += [_track_name(1 + int(lane), f"lane {lane}") for lane in sorted(recording.io["lane"].unique())]
        for row in recording.io.to_dict("records"):
            args = {"bytes": int(row["bytes"]), "experts": row["experts"]}
            name, tid = f"layer {row['layer']} experts {row['experts']}", 1 + int(row["lane"])
            events.append(_slice(name, row["source"], tid, row["start_ns"], row["end_ns"], origin_ns, args))
    return {"traceEvents": events, "displayTimeUnit": "ms", "metadata": {"flash": recording.header.get("flash")}}


def spans_of(cell: Any) -> list[tuple[int, int, int]]:
    """A layer's `wave_spans` or `wait_spans` as (t0_ns, t1_ns, experts); empty below telemetry io."""
    return [(int(t0), int(t1), int(n)) for t0, t1, n in cell] if isinstance(cell, (list, np.ndarray)) else []


def _track_name(tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}


def _slice(name: str, cat: str, tid: int, t0: int, t1: int, origin: int, args: dict[str, Any]) -> dict[str, Any]:
    ts, dur = (int(t0) - origin) / 1e3, (int(t1) - int(t0)) / 1e3
    return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}
