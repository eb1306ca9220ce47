"""Quantization: file size against task score, with intervals; the article's two files beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.figures.ladder import SCORE_HOW, recipes_of
from workbench.figures.reported import REPORTED, article
from workbench.figures.runs import NotMeasured, Runs
from workbench.figures.sheet import (
    BLUE,
    GREY,
    MEASURED,
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

MARKERS = "osD^vP*X"


def data(runs: Runs) -> FigureData:
    """The run with the most scored model files."""
    run = runs.choose("quantization", runs.scored, lambda r: len(r.document["size_score"]))
    if run is None:
        raise NotMeasured("no recorded run scored models of different sizes", SCORE_HOW)
    points = pd.DataFrame(recipes_of(run.document)).drop_duplicates(["file_bytes", "score"])
    ours = pd.DataFrame(
        {
            "name": points["recipe"].fillna(points["name"]),
            "size_mb": points["file_bytes"] / 1e6,
            "score": 100 * points["score"],
            "low": 100 * points["low"],
            "high": 100 * points["high"],
            "items": points["items"],
            "how": MEASURED,
        }
    )
    values = article()["quantization"]
    theirs = pd.DataFrame(
        [
            {"name": "mixed", "size_mb": 1e3 * values["mixed_gb"], "score": values["mixed_score"], "how": REPORTED},
            {"name": "before mixed", "size_mb": 1e3 * values["before_gb"], "score": None, "how": REPORTED},
            {"name": "FP16", "size_mb": None, "score": values["fp16_score"], "how": REPORTED},
        ]
    )
    model = run.document.get("model") or {}
    caption = (
        f"Left: accuracy over {int(ours['items'].iloc[0])} items of the local suite; error bars: 95 % intervals of the "
        f"share of correct items. Right: reported by {article()['source']} ({article()['model']}): mean of five "
        f"benchmarks, no interval reported; the score of its file before mixed precision and the size of its FP16 file "
        f"are not reported. {drawn_from([run.name])}"
    )
    frame = pd.concat([ours, theirs], ignore_index=True)
    labels = [label for label in run.labels if label == "synthetic"]
    return FigureData(frame, f"Size against score: {model.get('name', run.name)}", caption, labels)


def draw(given: FigureData) -> Figure:
    """Left: ours; right: reported."""
    figure, axes = sheet(given, (8.0, 3.9), nrows=1, ncols=2, width_ratios=[1.4, 1])
    _ours(axes[0], measured(given.frame))
    _theirs(axes[1], reported(given.frame).set_index("name").T.to_dict())
    return figure


def _ours(axes: Axes, rows: pd.DataFrame) -> None:
    for i, (_, row) in enumerate(rows.sort_values("size_mb").iterrows()):
        one = row.to_frame().T.astype({"score": float, "low": float, "high": float})
        errors = bounds(one, "score", "low", "high")
        marker = MARKERS[i % len(MARKERS)]
        axes.errorbar([row["size_mb"]], [row["score"]], yerr=errors, fmt=marker, color=BLUE, markersize=6, capsize=3)
        text = f"{row['name']}\n{row['size_mb']:.3g} MB, {row['score']:.1f} %"
        above = i % 2 == 1  # neighbours are told apart
        axes.annotate(
            text,
            (row["size_mb"], row["high" if above else "low"]),
            (0, 4 if above else -4),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            fontsize=7,
        )
    axes.margins(x=0.3, y=0.25)
    axes.set_xlim(0, rows["size_mb"].max() * 1.35)
    axes.set_xlabel("model file, MB")
    axes.set_ylabel("score, %")
    axes.set_title("Measured")


def _theirs(axes: Axes, rows: dict[Any, dict[Any, Any]]) -> None:
    mixed, before, full = (rows[name] for name in ("mixed", "before mixed", "FP16"))
    x = float(mixed["size_mb"]) / 1e3
    axes.plot([x], [mixed["score"]], "D", markerfacecolor="none", color="black", markersize=6)
    axes.annotate(
        f"mixed\n{x:.4g} GB, {mixed['score']:.2f} %",
        (x, mixed["score"]),
        (7, -20),
        textcoords="offset points",
        fontsize=7,
    )
    axes.axhline(full["score"], color=GREY, linestyle="--", linewidth=1)
    axes.annotate(f"FP16: {full['score']:.2f} % (dashed)", (0.02, full["score"]), (0, 3), ha="left", fontsize=7,
                  xycoords=("axes fraction", "data"), textcoords="offset points")  # fmt: skip
    x = float(before["size_mb"]) / 1e3
    axes.axvline(x, color=GREY, linestyle=":", linewidth=1.2)
    axes.annotate(f"before:\n{x:.3g} GB (dotted),\nscore not reported", (x, 0.04), (-4, 0), ha="right", va="bottom",
                  fontsize=7, xycoords=("data", "axes fraction"), textcoords="offset points")  # fmt: skip
    axes.set_xlim(12, 21)
    axes.set_ylim(77.4, 78.6)
    axes.set_xlabel("model file, GB")
    reported_ground(axes, "score, %")
