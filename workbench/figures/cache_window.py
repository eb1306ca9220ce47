"""The cache window: cached experts per layer against speed, peak memory and hit rate; the article's beside them."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.figures.ladder import repeats_text
from workbench.figures.reported import article
from workbench.figures.runs import NotMeasured, RecordedRun, Runs, flash_text
from workbench.figures.sheet import (
    BLUE,
    GREEN,
    MEASURED,
    ORANGE,
    FigureData,
    bounds,
    drawn_from,
    measured,
    reported,
    reported_ground,
    sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOW = "workbench ablate MODEL --suite device_runs/suites/demo-cache-window.yaml --out RUNS/NAME"
FEWEST_ARMS = 3


def data(runs: Runs) -> FigureData:
    """A ladder whose rungs differ in `cache_slots` alone, with the most arms."""
    run = runs.choose(
        "cache_window", (r for r in runs.ladders if len(_arms(r)) >= FEWEST_ARMS), lambda r: len(_arms(r))
    )
    if run is None:
        raise NotMeasured("no recorded ladder varies cache_slots alone", HOW)
    n_expert = run.document["model"]["n_expert"]
    ours = [
        {
            "cache_slots": row["config"]["cache_slots"],
            "share": row["config"]["cache_slots"] / n_expert,
            "tok_s": row["decode_tok_s"],
            "tok_s_low": row["decode_tok_s_low"],
            "tok_s_high": row["decode_tok_s_high"],
            "peak_mb": None if row["peak_bytes"] is None else row["peak_bytes"] / 1e6,
            "hit_rate": row["hit_rate"],
            "how": MEASURED,
        }
        for row in _arms(run)
    ]
    values = article()["cache_window"]
    theirs = [
        {
            "cache_slots": arm["cache_slots"],
            "share": arm["cache_slots"] / values["n_expert"],
            "tok_s": (arm["tok_s_low"] + arm["tok_s_high"]) / 2,
            "tok_s_low": arm["tok_s_low"],
            "tok_s_high": arm["tok_s_high"],
            "peak_mb": None if arm["peak_gb"] is None else 1e3 * arm["peak_gb"],
            "how": arm["how"],
        }
        for arm in values["arms"]
    ]
    frame = pd.DataFrame([*sorted(ours, key=lambda r: r["cache_slots"]), *theirs])
    caption = (
        f"Points: {repeats_text(run)}; peak memory: the largest of all repeats; hit rate: cached over needed experts. "
        f"{flash_text(run.rows)} Right: reported by {article()['source']} ({values['device']}, {article()['model']}); "
        f"bars there: the reported range; hollow square: the article's own estimate for everything resident, whose "
        f"memory is not reported. {drawn_from([run.name])}"
    )
    title = f"Cache window: {run.document['model']['name']}, {n_expert} experts per layer"
    return FigureData(frame, title, caption, run.labels)


def _arms(run: RecordedRun) -> list[dict[str, Any]]:
    """The largest group of rungs that are equal but for `cache_slots`."""
    rows = [r for r in run.rows if r["config"].get("experts") == "flash" and r["decode_tok_s"] is not None]
    keys = [
        json.dumps(
            [{k: v for k, v in r["config"].items() if k != "cache_slots"}, r["layout"], r["recipe"]], sort_keys=True
        )
        for r in rows
    ]
    if not keys:
        return []
    (most, _), *_ = Counter(keys).most_common(1)
    return [row for row, key in zip(rows, keys, strict=True) if key == most]


def draw(given: FigureData) -> Figure:
    """Speed, memory, hit rate over c; the reported arms."""
    figure, axes = sheet(given, (9.6, 3.5), nrows=1, ncols=4, width_ratios=[1, 1, 1, 1.05])
    ours, theirs = measured(given.frame), reported(given.frame)
    emulated = ", emulated flash" if "emulated" in given.labels else ""
    c = ours["cache_slots"]
    axes[0].errorbar(c, ours["tok_s"], yerr=bounds(ours, "tok_s", "tok_s_low", "tok_s_high"), fmt="o-", color=BLUE,
                     capsize=2.5, markersize=4)  # fmt: skip
    axes[0].set_title(f"tok/s{emulated}")
    axes[1].plot(c, ours["peak_mb"], "s--", color=ORANGE, markersize=4)
    axes[1].set_title("Peak memory, MB")
    axes[2].plot(c, 100 * ours["hit_rate"], "^:", color=GREEN, markersize=5)
    axes[2].set_title("Hit rate, %")
    for ax in axes[:3]:
        ax.set_ylim(bottom=0)
        ax.set_xticks(c)
        ax.set_xlabel("c, experts kept per layer")
        ax.grid(axis="y", alpha=0.3)
    _theirs(axes[3], theirs)
    return figure


def _theirs(axes: Axes, rows: pd.DataFrame) -> None:
    for _, row in rows.iterrows():
        one = row.to_frame().T.astype({"tok_s": float, "tok_s_low": float, "tok_s_high": float})
        marker = "D" if row["how"] == "reported" else "s"
        errors = bounds(one, "tok_s", "tok_s_low", "tok_s_high")
        axes.errorbar([row["cache_slots"]], [row["tok_s"]], yerr=errors, fmt=marker, color="black",
                      markerfacecolor="none", capsize=2.5)  # fmt: skip
        memory = "memory\nnot reported" if pd.isna(row["peak_mb"]) else f"{row['peak_mb'] / 1e3:g} GB"
        side = "right" if row["cache_slots"] > 200 else "left"
        text = f"{row['tok_s_low']:g}" + (f"–{row['tok_s_high']:g}" if row["tok_s_high"] > row["tok_s_low"] else "")
        text += (" (estimated)" if row["how"] != "reported" else "") + f"\n{memory}"
        axes.annotate(text, (row["cache_slots"], row["tok_s"]), (-7 if side == "right" else 7, -13), ha=side,
                      va="center", textcoords="offset points", fontsize=6.5)  # fmt: skip
    axes.set_ylim(0, 25)
    axes.set_xlim(-14, 270)
    axes.set_xticks(rows["cache_slots"])
    axes.set_xlabel("c of 256")
    reported_ground(axes, "tok/s")
