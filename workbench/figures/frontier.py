"""The frontier: score and speed against memory, with the real-time line at 8 tok/s."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from workbench.figures.ladder import SCORE_HOW, choose_ladder, measured_rows, repeats_text, score_points
from workbench.figures.reported import article
from workbench.figures.runs import NotMeasured, Runs, flash_text
from workbench.figures.sheet import (
    BLUE,
    GREEN,
    RED,
    FigureData,
    absent,
    bounds,
    drawn_from,
    log_ticks,
    measured,
    reported,
    reported_ground,
    sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REAL_TIME_TOK_S = 8.0
MARKERS = "osD^vP*X<>"


def data(runs: Runs) -> FigureData:
    """Rungs of the largest ladder with their peak memory; scores where a run holds them."""
    run = choose_ladder(runs, "frontier")
    ours = measured_rows(run).dropna(subset=["peak_mb"])
    if ours.empty:
        raise NotMeasured("the ladder recorded no peak memory", "workbench ablate MODEL on a platform that reports it")
    scored, points = score_points(runs, run)
    by_recipe = {p["recipe"]: p for p in points}
    for key in ("score", "low", "high"):
        ours[key] = [
            100 * by_recipe[recipe][key] if recipe in by_recipe else None
            for recipe in (None if pd.isna(r) else r for r in ours["recipe"])
        ]
    arms = pd.DataFrame(
        {
            "rung": f"c = {arm['cache_slots']}",
            "tok_s": (arm["tok_s_low"] + arm["tok_s_high"]) / 2,
            "tok_s_low": arm["tok_s_low"],
            "tok_s_high": arm["tok_s_high"],
            "peak_mb": 1e3 * arm["peak_gb"],
            "how": arm["how"],
        }
        for arm in article()["cache_window"]["arms"]
        if arm["peak_gb"] is not None
    )
    caption = [
        f"Left: {repeats_text(run)}; peak memory: the largest of all repeats. {flash_text(run.rows)}",
        f"Dashed: real time, {REAL_TIME_TOK_S:g} tok/s; filled markers are faster.",
        "Scores belong to the weights: all rungs on the same weights share one."
        + (f" Bars: 95 % intervals over {points[0]['items']} items." if points else ""),
        f"Right: reported by {article()['source']} ({article()['cache_window']['device']}, {article()['model']}); bars "
        f"there: the reported range.",
        drawn_from(dict.fromkeys([run.name, *([scored.name] if scored else [])])),
    ]
    labels = sorted({*run.labels} | (set() if points else {"not measured"}))
    frame = pd.concat([ours, arms], ignore_index=True)
    return FigureData(frame, f"Frontier: {run.document['model']['name']}", " ".join(caption), labels)


def draw(given: FigureData) -> Figure:
    """Score over memory, speed over memory, and the reported points."""
    figure, axes = sheet(given, (9.6, 4.2), nrows=1, ncols=3, width_ratios=[1.2, 1.2, 0.9])
    ours, theirs = measured(given.frame), reported(given.frame)
    if ours["score"].notna().any():
        _points(axes[0], ours, "score", ("low", "high"), GREEN)
        axes[0].set_ylabel("score, %")
        axes[0].set_title("Score against memory")
    else:
        absent(axes[0], "score", SCORE_HOW)
    _points(axes[1], ours, "tok_s", ("tok_s_low", "tok_s_high"), BLUE)
    axes[1].set_yscale("log")
    log_ticks(axes[1].yaxis)
    axes[1].set_ylabel("decode, tok/s")
    axes[1].set_title("Speed against memory" + (", emulated flash" if "emulated" in given.labels else ""))
    for ax in axes[:2]:
        ax.set_xlabel("peak memory, MB")
        ax.margins(x=0.12)
    _line(axes[1])
    handles, names = axes[1].get_legend_handles_labels()
    if ours["score"].notna().any():
        axes[0].legend(handles, names, loc="lower right", fontsize=6)
    else:
        axes[0].legend(handles, names, loc="lower center", fontsize=6.5, ncols=1)
    _reported(axes[2], theirs)
    return figure


def _points(axes: Axes, rows: pd.DataFrame, value: str, interval: tuple[str, str], colour: str) -> None:
    for i, (_, row) in enumerate(rows.iterrows()):
        if pd.isna(row[value]):
            continue
        one = row.to_frame().T.astype({value: float, interval[0]: float, interval[1]: float})
        fast = row["tok_s"] >= REAL_TIME_TOK_S
        axes.errorbar([row["peak_mb"]], [row[value]], yerr=bounds(one, value, *interval), fmt=MARKERS[i % len(MARKERS)],
                      color=colour, markerfacecolor=colour if fast else "white", markersize=6, capsize=2.5, alpha=0.75,
                      elinewidth=1, label=row["rung"])  # fmt: skip


def _line(axes: Axes) -> None:
    axes.axhline(REAL_TIME_TOK_S, color=RED, linestyle="--", linewidth=1)
    axes.annotate(f"real time, {REAL_TIME_TOK_S:g} tok/s", (0.02, REAL_TIME_TOK_S), (0, 3), fontsize=7, color=RED,
                  xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, REAL_TIME_TOK_S * 0.7), high)


def _reported(axes: Axes, rows: pd.DataFrame) -> None:
    axes.errorbar(rows["peak_mb"] / 1e3, rows["tok_s"], yerr=bounds(rows, "tok_s", "tok_s_low", "tok_s_high"), fmt="D",
                  color="black", markerfacecolor="none", markersize=6, capsize=2.5, linestyle="none")  # fmt: skip
    for _, row in rows.iterrows():
        text = f"{row['rung']}: {row['tok_s_low']:g}" + (
            f"–{row['tok_s_high']:g}" if row["tok_s_high"] > row["tok_s_low"] else ""
        )
        axes.annotate(
            text, (row["peak_mb"] / 1e3, row["tok_s"]), (0, 9), textcoords="offset points", ha="center", fontsize=7
        )
    axes.set_ylim(0, 24)
    axes.set_xlim(0, 10)
    _line(axes)
    axes.set_xlabel("peak memory, GB")
    axes.set_ylabel("decode, tok/s")
    reported_ground(axes, "tok/s")
