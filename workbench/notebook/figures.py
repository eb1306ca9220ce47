"""What a run costs, token by token: values of the latest call, of the run so far, and a small curve of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOT_MEASURED = "not measured"
_WIDE, _HIGH = 150, 22


@dataclass(frozen=True)
class Figure:
    """One figure of the panel.

    Attributes
    ----------
    latest, mean : float or None
        Of the latest decode call, and over all of them (sums divided by sums); None is not measured.
    curve : list of float or None
        One value per decode call.
    """

    name: str
    unit: str
    latest: float | None
    mean: float | None
    curve: list[float | None]


def live_figures(records: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Tokens/s, stall, hit rate, bytes read and memory per token of `tok` records so far, decode calls only."""
    calls = [record for record in records if record["phase"] == "decode"]
    made = [1 if r.get("accepted") is None else r["accepted"] + 1 for r in calls]
    began = [calls[0]["t0_ns"], *(r["t1_ns"] for r in calls[:-1])] if calls else []
    took_s = [(r["t1_ns"] - start) / 1e9 for r, start in zip(calls, began, strict=True)]

    def per_token(name: str, unit: str, key: str, scale: float) -> Figure:
        values = [r.get(key) for r in calls]
        return _ratio(name, unit, [None if v is None else v * scale for v in values], made)

    memory = [None if r.get("rss_bytes") is None else r["rss_bytes"] / 1e6 for r in calls]
    peak = max((m for m in memory if m is not None), default=None)
    return [
        _ratio("tokens/s", "", list(map(float, made)), took_s),
        per_token("stall", "ms/token", "stall_ns", 1e-6),
        _ratio("hit rate", "%", [_times(r.get("hits"), 100) for r in calls], [r.get("lookups") for r in calls]),
        per_token("read", "MB/token", "bytes", 1e-6),
        Figure("memory", "MB", memory[-1] if memory else None, peak, memory),
    ]


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _ratio(name: str, unit: str, above: Sequence[float | None], below: Sequence[float | None]) -> Figure:
    curve = [None if a is None or not b else a / b for a, b in zip(above, below, strict=True)]
    whole = None
    if curve and None not in above and None not in below and sum(b for b in below if b):
        whole = sum(a for a in above if a) / sum(b for b in below if b)
    return Figure(name, unit, curve[-1] if curve else None, whole, curve)


def table(figures: Sequence[Figure]) -> str:
    """The figures as an HTML table with curves."""
    rows = "".join(
        f"<tr><th>{f.name}{f' <small>{f.unit}</small>' if f.unit else ''}</th><td>{_number(f.latest)}</td>"
        f"<td><b>{_number(f.mean)}</b></td><td>{_curve(f.curve)}</td></tr>"
        for f in figures
    )
    return (
        "<table class='les-figures'><tr><th></th><td>this token</td><td>run (memory: most)</td><td>per token</td></tr>"
        f"{rows}</table>"
    )


def _number(value: float | None) -> str:
    return f"<i>{NOT_MEASURED}</i>" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _curve(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    if len(known) < 2:
        return ""
    low, high = min(0.0, *known), max(known) or 1.0
    across, up = _WIDE / max(1, len(values) - 1), (_HIGH - 2) / (high - low or 1.0)
    points = " ".join(
        f"{n * across:.1f},{_HIGH - 1 - (v - low) * up:.1f}" for n, v in enumerate(values) if v is not None
    )
    return f"<svg width='{_WIDE}' height='{_HIGH}'><polyline points='{points}'/></svg>"
