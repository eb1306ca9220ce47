"""Which resource bounds a run, and which optimization can still pay: a diagnosis from measured numbers.

Time model per token: serial t = transfer + latency not shared + compute; pipelined t = max(I/O, compute) + what could
not be hidden. Prefetch moves bytes in time and adds no bandwidth, so its gain ends at max(I/O, compute).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMPUTE, FLASH, LATENCY, UNKNOWN = "compute-bound", "flash-bound", "latency-bound", "unknown"
MARGIN = 1.1


@dataclass(frozen=True, kw_only=True)
class Regime:
    """Where a token's time goes, ms per token.

    Attributes
    ----------
    kind : str
        `compute-bound`, `flash-bound` (transfer at full bandwidth is the largest part), `latency-bound` (requests wait
        for latency longer than for bytes) or `unknown`.
    token_ms, compute_ms, stall_ms : float or None
        Measured. `stall_ms` is the part of flash time that compute did not hide.
    io_ms : float or None
        Time in which a read was in flight.
    transfer_ms : float or None
        Bytes over bandwidth; known for emulated flash only.
    floor_ms : float or None
        max(transfer or I/O, compute): perfect overlap with these bytes and this compute.
    text : str
        One paragraph.
    """

    kind: str
    token_ms: float | None
    compute_ms: float | None
    stall_ms: float | None
    io_ms: float | None
    transfer_ms: float | None
    floor_ms: float | None
    text: str


def diagnose(row: Mapping[str, Any]) -> Regime:
    """Diagnose a result row (fields as in `results.json`)."""
    rate, compute, stall = (row.get(k) for k in ("decode_tok_s", "compute_ms_per_token", "stall_ms_per_token"))
    token = None if not rate else 1e3 / rate
    n_bytes, n_reads, io = (row.get(k) for k in ("bytes_per_token", "reads_per_token", "flash_busy_ms_per_token"))
    flash = row.get("flash") or {}
    bandwidth = flash.get("bandwidth_bytes_s") if flash.get("kind") == "emulated" else None
    transfer = 1e3 * n_bytes / bandwidth if bandwidth and n_bytes is not None else None
    known = {"token_ms": token, "compute_ms": compute, "stall_ms": stall, "io_ms": io, "transfer_ms": transfer}
    if token is None or compute is None:
        return Regime(kind=UNKNOWN, floor_ms=None, text="Not measured: no diagnosis.", **known)
    if n_bytes is None or io is None:
        text = f"No experts are read: {token:.3g} ms per token of compute. Only faster kernels or fewer passes pay."
        return Regime(kind=COMPUTE, floor_ms=compute, text=text, **known)
    bytes_ms = io if transfer is None else transfer
    floor = max(bytes_ms, compute)
    latency = None if transfer is None else max(0.0, io - transfer)
    if latency is not None and latency > MARGIN * max(transfer or 0.0, compute):
        kind = LATENCY
    else:
        kind = FLASH if bytes_ms > compute else COMPUTE
    text = " ".join(
        [
            _where(kind, token, compute, io, transfer, row),
            _overlap(token, io, floor, stall, emulated=transfer is not None),
            _pays(kind, n_bytes, n_reads, latency, transfer, row),
        ]
    )
    return Regime(kind=kind, floor_ms=floor, text=text, **known)


def _where(kind: str, token: float, compute: float, io: float, transfer: float | None, row: Mapping[str, Any]) -> str:
    split = (
        "" if transfer is None else f": {transfer:.3g} transfer at full bandwidth, {max(0.0, io - transfer):.3g} more"
    )
    idle = row.get("flash_idle_share")
    tail = "" if idle is None else f"; flash idle {100 * idle:.0f} % of the time"
    return (
        f"{kind.capitalize()}: {token:.3g} ms per token; compute {compute:.3g}, reads in flight {io:.3g}{split}{tail}."
    )


def _overlap(token: float, io: float, floor: float, stall: float | None, *, emulated: bool) -> str:
    text = ""
    if stall is not None and io > 0:
        text = f"{100 * max(0.0, 1.0 - stall / io):.0f} % of the reading is hidden behind compute. "
        if stall > MARGIN * io:
            late = "the disk is slower than the flash it emulates, or the cores are busy" if emulated else "busy cores?"
            text += f"{stall - io:.3g} ms of waiting are not reading: {late}. "
    best = f"With these bytes and this compute nothing beats {1e3 / floor:.3g} tok/s ({token / floor:.2f} × this)."
    return text + best


def _pays(
    kind: str,
    n_bytes: float,
    n_reads: float | None,
    latency: float | None,
    transfer: float | None,
    row: Mapping[str, Any],
) -> str:
    config, ideas = row.get("config") or {}, []
    if latency is not None and transfer is not None and latency > 0.25 * transfer and n_reads:
        if config.get("lanes", 1) == 1:
            ideas.append("more lanes (latencies then overlap)")
        if row.get("layout") == "native":
            ideas.append(f"the contiguous layout (fewer, larger reads than {n_bytes / n_reads / 1e3:.3g} kB)")
    if config.get("lookahead") == "off" and kind != COMPUTE:
        ideas.append("lookahead (it moves bytes in time, no more)")
    if kind in (FLASH, LATENCY):
        if not config.get("cache_slots"):
            ideas.append("a cache")
        elif row.get("hit_rate") is not None:
            ideas.append(f"more cache slots (hit rate now {100 * row['hit_rate']:.0f} %)")
        ideas.append("fewer bits per expert")
        wasted = row.get("prefetch_wasted_bytes_per_token")
        if wasted and wasted > 0.1 * n_bytes:
            ideas.append(f"better prediction ({100 * wasted / n_bytes:.0f} % of the bytes are wasted prefetch)")
    else:
        ideas.append("faster compute or fewer forward passes (speculation); faster flash would not")
    return "Can still pay: " + ", ".join(ideas) + "."
