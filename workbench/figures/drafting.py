"""Where drafting pays: speed-up over no drafting against τ and against the experts a batch reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.figures.reported import REPORTED, article
from workbench.figures.runs import NotMeasured, Runs
from workbench.figures.sheet import (
    BLUE,
    GREY,
    MEASURED,
    ORANGE,
    FigureData,
    bounds,
    drawn_from,
    measured,
    reported,
    sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOW = "workbench bench draft_width --out RUNS/NAME"
FLASHES = {"emulated": BLUE, "native": ORANGE}
TEXTS = {"easy": "o", "hard": "s"}
PANELS = {
    "tau": "τ, tokens per round",
    "union": "union: experts of a batch over those of its tokens",
    "flash_gain": "τ / (width × union): gain in flash time",
}


def data(runs: Runs) -> FigureData:
    """The latest recorded `bench draft_width`."""
    run = runs.choose("drafting", runs.benches("draft_width"))
    if run is None:
        raise NotMeasured("no recorded benchmark of draft lengths", HOW)
    ours = [_row(r) for r in run.document["rows"] if r["tau"] is not None and r["drafted"] is not None]
    if not ours:
        raise NotMeasured("the recorded benchmark of draft lengths drafted nothing", HOW)
    reports = {"speedup": article()["drafting"]["speedup"], "how": REPORTED}
    source, model = article()["source"], article()["model"]
    caption = (
        "Points: medians of interleaved repeats, speed-up over the same run without drafting, bars 95 % bootstrap; "
        "numbers: draft length, a: adaptive, n: without the Markov head. union: experts a verified batch reads over "
        "what its tokens would read one by one; width: drafted tokens per round + 1. Above the line at 1 drafting "
        "pays; right of 1 in the last panel it saves reads. "
        f"Dotted: reported by {source} for DSpark over the rung before ({model}); its τ and union are not reported. "
        + drawn_from([run.name])
    )
    return FigureData(pd.DataFrame([*ours, reports]), "Drafting: break-even", caption, run.labels)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    arm = str(row["arm"]).removesuffix(" (best fixed)")
    sign = "a" if arm.startswith("adaptive") else "n" if arm.startswith("no Markov") else arm.split()[-1]
    cost = None if not row["union"] else (row["drafted"] + 1) * row["union"]
    return {
        "flash": row["flash"],
        "text": row["text"],
        "arm": arm,
        "sign": sign,
        "tau": row["tau"],
        "union": row["union"],
        "drafted": row["drafted"],
        "flash_gain": None if cost is None else row["tau"] / cost,
        "speedup": row["x off"],
        "speedup_low": row.get("x off low"),
        "speedup_high": row.get("x off high"),
        "how": MEASURED,
    }


def draw(given: FigureData) -> Figure:
    """Speed-up against τ, the union, and the two together."""
    figure, axes = sheet(given, (9.6, 4.0), nrows=1, ncols=3, sharey=True)
    ours, theirs = measured(given.frame), reported(given.frame)["speedup"].iloc[0]
    for ax, (key, title) in zip(axes, PANELS.items(), strict=True):
        for flash, colour in FLASHES.items():
            for text, marker in TEXTS.items():
                rows = ours[(ours["flash"] == flash) & (ours["text"] == text)]
                if len(rows):
                    _points(ax, rows, key, colour, marker, f"{flash} flash, {text} text")
        ax.axhline(1.0, color="black", linewidth=1)
        ax.axhline(theirs, color=GREY, linestyle=":", linewidth=1.5, label=f"reported: {theirs:.2f} ×")
        ax.set_xlabel(title)
        ax.margins(0.1)
    axes[2].axvline(1.0, color="black", linewidth=0.8, linestyle="--")
    axes[0].set_ylabel("speed-up over no drafting, ×")
    axes[0].set_ylim(0, max(theirs, ours["speedup"].max()) * 1.4)
    axes[0].legend(loc="upper left", fontsize=6.5)
    return figure


def _points(axes: Axes, rows: pd.DataFrame, key: str, colour: str, marker: str, label: str) -> None:
    face = colour if marker == "o" else "white"
    errors = bounds(rows, "speedup", "speedup_low", "speedup_high")
    axes.errorbar(rows[key], rows["speedup"], yerr=errors, fmt=marker, color=colour, markerfacecolor=face, markersize=5,
                  elinewidth=0.8, label=label)  # fmt: skip
    for _, row in rows.iterrows():
        if not pd.isna(row[key]):
            axes.annotate(str(row["sign"]), (row[key], row["speedup"]), (4, 2), textcoords="offset points", fontsize=6)
