"""Power and warmth of a sustained run, as the article reports them: watts, watts above idle, rise, tokens per joule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True, kw_only=True)
class PowerReport:
    """One rung's sustained phase; None where there is no sensor (or too few samples in the phase).

    Attributes
    ----------
    duration_s : float
        From the first token's start to the last token's end.
    tokens : int
        Decoded meanwhile.
    watts : float or None
        Mean of the whole device over the phase, weighted by time.
    watts_above_idle : float or None
        Minus the mean of the idle phase (screen on).
    celsius_rise : float or None
        Battery temperature: last sample minus first.
    tokens_per_joule : float or None
        Over all of the device's energy, idle share included.
    source : str or None
        What measured the power: `meter` where there is one.
    """

    rung: str
    duration_s: float
    tokens: int
    watts: float | None
    watts_above_idle: float | None
    celsius_rise: float | None
    tokens_per_joule: float | None
    source: str | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def report(samples: pd.DataFrame, windows: Sequence[Mapping[str, Any]]) -> list[PowerReport]:
    """One report per sustained window.

    Parameters
    ----------
    samples : DataFrame
        `samples.COLUMNS`.
    windows : sequence of mapping
        `kind` (idle or sustained), `rung`, `t0_ns`, `t1_ns`, `tokens`; t on the runner's clock.
    """
    idle = next((w for w in windows if w["kind"] == "idle"), None)
    return [_one(samples, w, idle) for w in windows if w["kind"] == "sustained"]


def _one(samples: pd.DataFrame, window: Mapping[str, Any], idle: Mapping[str, Any] | None) -> PowerReport:
    duration_s = (window["t1_ns"] - window["t0_ns"]) / 1e9
    watts, source = _watts(samples, window)
    idle_watts, idle_source = _watts(samples, idle) if idle else (None, None)
    same = watts is not None and idle_watts is not None and source == idle_source
    warmth = _within(samples, window)["battery_temp_c"].dropna()
    return PowerReport(
        rung=window["rung"],
        duration_s=duration_s,
        tokens=window["tokens"],
        watts=watts,
        watts_above_idle=watts - idle_watts if same and watts is not None and idle_watts is not None else None,
        celsius_rise=float(warmth.iloc[-1] - warmth.iloc[0]) if len(warmth) > 1 else None,
        tokens_per_joule=window["tokens"] / (watts * duration_s) if watts and duration_s > 0 else None,
        source=source,
    )


def _within(samples: pd.DataFrame, window: Mapping[str, Any]) -> pd.DataFrame:
    return samples[(samples["t_ns"] >= window["t0_ns"]) & (samples["t_ns"] <= window["t1_ns"])]


def _watts(samples: pd.DataFrame, window: Mapping[str, Any]) -> tuple[float | None, str | None]:
    inside = _within(samples, window)
    inside = inside[inside["power_w"].notna()]
    sources = list(inside["source"].unique())
    if not sources:
        return None, None
    source = "meter" if "meter" in sources else str(sources[0])
    chosen = inside[inside["source"] == source].sort_values("t_ns")
    t, power = chosen["t_ns"].to_numpy(float), chosen["power_w"].to_numpy(float)
    if len(t) < 2 or t[-1] <= t[0]:
        return None, None
    return float(np.trapezoid(power, t) / (t[-1] - t[0])), source
