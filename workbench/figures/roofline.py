"""Roofline of decoding: speed against bytes read per token, under the limits of flash bandwidth and of compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.figures.ladder import LADDER_HOW, choose_ladder, repeats_text
from workbench.figures.reported import article
from workbench.figures.runs import NotMeasured, Runs, flash_text
from workbench.figures.sheet import (
    BLUE,
    GREEN,
    MEASURED,
    RED,
    REPORTED_GROUND,
    FigureData,
    bounds,
    drawn_from,
    log_ticks,
    measured,
    reported,
    sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X<>"


def data(runs: Runs) -> FigureData:
    """The largest ladder's reading rungs, the flash they read from, and compute alone."""
    run = choose_ladder(runs, "roofline")
    rows = [r for r in run.rows if r["bytes_per_token"] and r["decode_tok_s"] and r["compute_ms_per_token"]]
    if not rows:
        raise NotMeasured("the recorded ladder has no bytes per token", LADDER_HOW)
    bandwidth, how = _bandwidth(rows)
    resident = next((r for r in run.rows if r["config"]["experts"] == "resident" and r["decode_tok_s"]), None)
    ours: list[dict[str, Any]] = [
        {
            "name": r["rung"],
            "mark": "rung",
            "mb_per_token": r["bytes_per_token"] / 1e6,
            "tok_s": r["decode_tok_s"],
            "tok_s_low": r["decode_tok_s_low"],
            "tok_s_high": r["decode_tok_s_high"],
            "compute_limit_tok_s": 1e3 / r["compute_ms_per_token"],
            "bound": (r["regime"] or {}).get("kind"),
            "how": MEASURED,
        }
        for r in rows
    ]
    ours.append({"name": how, "mark": "flash", "bandwidth_mb_s": bandwidth / 1e6, "how": MEASURED})
    if resident:
        ours.append({"name": resident["rung"], "mark": "compute", "tok_s": resident["decode_tok_s"], "how": MEASURED})
    caption = (
        f"Left: {repeats_text(run)}. Sloped line: {how}. Dashed: everything resident, compute alone. Small bars: the "
        f"compute limit of that rung (its own compute time, reads cost nothing). {flash_text(run.rows)} Right: "
        f"reported by {article()['source']} ({article()['model']}, {article()['cache_window']['device']}, c = 0); "
        f"sloped line: a bandwidth derived here from its ladder; dashed: its own estimate for everything resident. "
        + drawn_from([run.name])
    )
    frame = pd.DataFrame([*ours, *_reported()])
    return FigureData(frame, f"Roofline: {run.document['model']['name']}", caption, run.labels)


def _reported() -> list[dict[str, Any]]:
    values, arm = article()["roofline"], article()["cache_window"]["arms"][0]
    low, high = arm["tok_s_low"], arm["tok_s_high"]
    return [
        {"name": "c = 0", "mark": "rung", "mb_per_token": values["bytes_per_token"] / 1e6, "tok_s": (low + high) / 2,
         "tok_s_low": low, "tok_s_high": high, "how": "reported"},
        {"name": "flash", "mark": "flash", "bandwidth_mb_s": values["bandwidth_bytes_s"] / 1e6, "how": values["how"]},
        {"name": "resident", "mark": "compute", "tok_s": values["resident_tok_s"], "how": "estimated"},
    ]  # fmt: skip


def _bandwidth(rows: list[dict[str, Any]]) -> tuple[float, str]:
    """Bytes/s of the flash, and what that is."""
    emulated = next((r["flash"].get("bandwidth_bytes_s") for r in rows if r["flash"]["kind"] == "emulated"), None)
    if emulated:
        return float(emulated), "the emulated flash's bandwidth"
    reading = [r["bytes_per_token"] / r["flash_busy_ms_per_token"] * 1e3 for r in rows if r["flash_busy_ms_per_token"]]
    if not reading:
        raise NotMeasured("the recorded ladder has no time of its reads", LADDER_HOW)
    return max(reading), "the highest bandwidth any rung reached while reading"


def draw(given: FigureData) -> Figure:
    """Left: ours; right: reported and derived."""
    figure, axes = sheet(given, (9.2, 4.3), nrows=1, ncols=2, width_ratios=[1.7, 1])
    ours, theirs = measured(given.frame), reported(given.frame)
    _roof(axes[0], ours, (0.5, 3.0))
    for i, (_, row) in enumerate(ours[ours["mark"] == "rung"].iterrows()):
        _point(axes[0], row, MARKERS[i % len(MARKERS)], BLUE, filled=True)
        axes[0].plot(
            [row["mb_per_token"]], [row["compute_limit_tok_s"]], "_", color=GREEN, markersize=12, markeredgewidth=2
        )
    axes[0].set_title("Measured" + (", emulated flash" if "emulated" in given.labels else ""))
    axes[0].set_xlabel("MB read per token")
    axes[0].set_ylabel("decode, tok/s")
    axes[0].legend(loc="lower left", fontsize=6.5)
    _roof(axes[1], theirs, (0.45, 2.2))
    for _, row in theirs[theirs["mark"] == "rung"].iterrows():
        _point(axes[1], row, "D", "black", filled=False)
    axes[1].set_facecolor(REPORTED_GROUND)
    axes[1].set_title("Reported or derived, not measured")
    axes[1].set_xlabel("MB read per token, about")
    axes[1].legend(loc="lower left", fontsize=6.5)
    return figure


def _point(axes: Axes, row: pd.Series, marker: str, colour: str, *, filled: bool) -> None:
    one = row.to_frame().T.astype({"tok_s": float, "tok_s_low": float, "tok_s_high": float})
    bound = "" if pd.isna(row.get("bound")) else f" ({row['bound']})"
    errors = bounds(one, "tok_s", "tok_s_low", "tok_s_high")
    axes.errorbar([row["mb_per_token"]], [row["tok_s"]], yerr=errors, fmt=marker, color=colour, capsize=2.5,
                  elinewidth=1, markerfacecolor=colour if filled else "none", markersize=6,
                  label=f"{row['name']}{bound}")  # fmt: skip


def _roof(axes: Axes, rows: pd.DataFrame, spread: tuple[float, float]) -> None:
    """Log axes with the flash line and the compute line."""
    points, flash = rows[rows["mark"] == "rung"], rows[rows["mark"] == "flash"].iloc[0]
    low, high = points["mb_per_token"].min() * spread[0], points["mb_per_token"].max() * spread[1]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    speed = float(flash["bandwidth_mb_s"])
    kind = "" if flash["how"] == MEASURED else f" ({flash['how']})"
    axes.plot(
        [low, high], [speed / low, speed / high], color=RED, linewidth=1.2, label=f"flash: {speed / 1e3:.3g} GB/s{kind}"
    )
    for _, row in rows[rows["mark"] == "compute"].iterrows():
        kind = "" if row["how"] == MEASURED else f" ({row['how']})"
        axes.axhline(row["tok_s"], color=GREEN, linestyle="--", linewidth=1.2,
                     label=f"compute, all resident: {row['tok_s']:.3g} tok/s{kind}")  # fmt: skip
    ceiling = max([speed / low, *rows["tok_s"].dropna()])
    axes.set_ylim(points["tok_s"].min() * 0.25, ceiling * 1.4)
    axes.grid(which="major", alpha=0.3)
    log_ticks(axes.xaxis)
    log_ticks(axes.yaxis)
