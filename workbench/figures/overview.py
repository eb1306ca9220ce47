"""Speed and score at a glance: every rung's speed, every model file's score, and what the article reports of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.figures.ablation import draw_article, draw_speed
from workbench.figures.ladder import (
    AS_GIVEN,
    SCORE_HOW,
    article_ladder,
    choose_ladder,
    measured_rows,
    repeats_text,
    score_points,
)
from workbench.figures.reported import REPORTED, article
from workbench.figures.runs import Runs, flash_text
from workbench.figures.sheet import (
    GREEN,
    GREY,
    MEASURED,
    FigureData,
    absent,
    bounds,
    drawn_from,
    measured,
    reported,
    reported_ground,
    sheet,
    slanted,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def data(runs: Runs) -> FigureData:
    """The largest recorded ladder, and the scores of its model's files where a run holds them."""
    run = choose_ladder(runs, "overview")
    scored, points = score_points(runs, run)
    values = article()["quantization"]
    scores: list[dict[str, Any]] = [
        {"name": p["recipe"] or AS_GIVEN, "how": MEASURED}
        | {key: 100 * p[key] for key in ("score", "low", "high")}
        | {"items": p["items"]}
        for p in _one_per_recipe(points)
    ]
    scores += [
        {"name": n, "score": values[k], "how": REPORTED} for n, k in (("FP16", "fp16_score"), ("mixed", "mixed_score"))
    ]
    frames = [measured_rows(run), article_ladder()]
    frame = pd.concat([*(f.assign(panel="speed") for f in frames), pd.DataFrame(scores).assign(panel="score")])
    caption = [
        f"Speed: {repeats_text(run)}. {flash_text(run.rows)}",
        f"Score: accuracy over {points[0]['items']} items, bars: 95 % intervals." if points else "Score: not measured.",
        f"Grey ground: reported by {article()['source']} ({article()['model']}, {article()['ladder']['device']}; "
        f"score: mean of five benchmarks, no interval reported), another model, device and tasks.",
        drawn_from(dict.fromkeys([run.name, *([scored.name] if scored else [])])),
    ]
    labels = sorted({*run.labels} | (set() if points else {"not measured"}))
    title = f"Speed and score: {run.document['model']['name']}"
    return FigureData(frame.reset_index(drop=True), title, " ".join(caption), labels)


def _one_per_recipe(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({p["recipe"]: p for p in reversed(points)}.values())[::-1]


def draw(given: FigureData) -> Figure:
    """Left: ours; right, on grey ground: reported."""
    figure, axes = sheet(given, (9.6, 4.3), nrows=1, ncols=4, width_ratios=[4.2, 1.7, 2.7, 1.9])
    speed, score = (given.frame[given.frame["panel"] == p] for p in ("speed", "score"))
    draw_speed(axes[0], measured(speed), "emulated" in given.labels)
    if len(measured(score)):
        _score(axes[1], measured(score), GREEN, "")
        axes[1].set_title("Score, %")
    else:
        absent(axes[1], "score", SCORE_HOW, width=22)
    draw_article(axes[2], reported(speed))
    _score(axes[3], reported(score), GREY, "..")
    reported_ground(axes[3], "score, %")
    axes[3].set_title("Reported: score, %")
    return figure


def _score(axes: Axes, rows: pd.DataFrame, colour: str, hatch: str) -> None:
    errors = bounds(rows, "score", "low", "high")
    bars = axes.bar(range(len(rows)), rows["score"], width=0.6, color=colour, hatch=hatch, edgecolor="white",
                    yerr=errors, error_kw={"elinewidth": 1, "capsize": 2.5, "ecolor": "black"})  # fmt: skip
    axes.bar_label(bars, [f"{s:.4g}" for s in rows["score"]], padding=2, fontsize=6.5)
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 25))
    slanted(axes, list(rows["name"]))
