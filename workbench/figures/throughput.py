"""Scoring speed: tokens per second against batch size when experts are streamed, and lm-eval's hf backend beside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from workbench.figures.runs import NotMeasured, Runs
from workbench.figures.sheet import BLUE, GREY, MEASURED, ORANGE, FigureData, bounds, drawn_from, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOW = "workbench bench eval_throughput --out RUNS/NAME"


def data(runs: Runs) -> FigureData:
    """The latest recorded `bench eval_throughput`."""
    run = runs.choose("throughput", runs.benches("eval_throughput"))
    if run is None:
        raise NotMeasured("no recorded benchmark of scoring", HOW)
    rows = [
        {
            "case": row["case"],
            "n_batch": row["n_batch"],
            "tok_s": row["tok/s"],
            "tok_s_low": row["low"],
            "tok_s_high": row["high"],
            "mb_per_token": row["MB read/token"],
            "how": MEASURED,
        }
        for row in run.document["rows"]
    ]
    caption = (
        f"Medians of interleaved repeats, bars 95 % bootstrap; {'. '.join(run.document['notes'])}. Speeds count "
        "the tokens of all requests, before anything is shared. Streamed through the page cache of this machine: every "
        f"layer's experts are read once per batch. {drawn_from([run.name])}"
    )
    return FigureData(pd.DataFrame(rows), "Scoring throughput", caption, run.labels)


def draw(given: FigureData) -> Figure:
    """Speed over the batch with the resident cases as lines; bytes read per token."""
    figure, axes = sheet(given, (7.2, 3.3), nrows=1, ncols=2)
    curve = given.frame[given.frame["n_batch"].notna()].sort_values("n_batch")
    lines = given.frame[given.frame["n_batch"].isna()]
    axes[0].errorbar(curve["n_batch"], curve["tok_s"], yerr=bounds(curve, "tok_s", "tok_s_low", "tok_s_high"),
                     fmt="o-", color=BLUE, capsize=2.5, markersize=4, label="streamed")  # fmt: skip
    for (_, row), colour, dash in zip(lines.iterrows(), (GREY, "black", GREY), ("--", ":", "-."), strict=False):
        axes[0].axhline(row["tok_s"], color=colour, linestyle=dash, label=f"{row['case']}: {row['tok_s']:.0f}")
    axes[0].set_ylabel("scored tokens per second")
    axes[1].plot(curve["n_batch"], curve["mb_per_token"], "s--", color=ORANGE, markersize=4)
    axes[1].set_ylabel("MB read per token")
    for ax in axes:
        ax.set_xscale("log", base=2)
        ax.set_xticks(curve["n_batch"], [f"{n:.0f}" for n in curve["n_batch"]])
        ax.minorticks_off()
        ax.set_xlabel("tokens per batch")
        ax.set_ylim(bottom=0)
        ax.grid(axis="y", alpha=0.3)
    axes[0].set_ylim(top=1.5 * given.frame["tok_s_high"].max())
    axes[0].legend(loc="upper left")
    return figure
