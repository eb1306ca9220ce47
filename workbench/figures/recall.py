"""Recall by layer: how many of the experts a layer really selects were predicted one layer earlier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.figures.reported import REPORTED, article
from workbench.figures.runs import NotMeasured, RecordedRun, Runs
from workbench.figures.sheet import (
    BLUE,
    GREEN,
    GREY,
    MEASURED,
    ORANGE,
    FigureData,
    drawn_from,
    measured,
    reported,
    sheet,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOW = "workbench ablate MODEL --suite device_runs/suites/demo-recall.yaml --out RUNS/NAME"
LOOK = {"top-k": (BLUE, "o-"), "top-2k": (GREEN, "s--"), "control": (ORANGE, "^:")}


def data(runs: Runs) -> FigureData:
    """A ladder recorded layer by layer with the predictor at top-k and wider."""
    run = runs.choose(
        "recall", (r for r in runs.ladders if {"top-k", "top-2k"} <= set(_arms(r).values())), lambda r: len(r.rows)
    )
    if run is None:
        raise NotMeasured("no ladder recorded layer by layer has lookahead_width 1 and 2", HOW)
    layers = run.telemetry("layers")
    assert layers is not None
    ours = [row for name, arm in _arms(run).items() for row in _by_layer(layers[layers["rung"] == name], arm)]
    values = article()["recall"]
    theirs = [
        {"arm": "top-k", "recall": values["top_k"], "how": REPORTED},
        {"arm": "top-2k", "recall": values["top_2k"], "how": REPORTED},
    ]
    model = run.document["model"]
    caption = (
        f"Points: share of a layer's selected experts ({model['n_expert_used']} of {model['n_expert']}) that were "
        f"predicted from the layer before, mean over decoded tokens; error bars: 95 % normal intervals over tokens "
        f"(which are not independent). Control: the layer's own input, must read 100 %. Grey lines: reported by "
        f"{article()['source']} as about 80 % at top-k and about 15 points more at top-2k ({article()['model']}). Not "
        f"a timing: flash does not matter. {drawn_from([run.name])}"
    )
    labels = [label for label in run.labels if label == "synthetic"]
    return FigureData(pd.DataFrame([*ours, *theirs]), f"Recall by layer: {model['name']}", caption, labels)


def _arms(run: RecordedRun) -> dict[str, str]:
    """Rung → arm, of a ladder recorded layer by layer."""
    if not (run.folder / "telemetry-layers.parquet").is_file():
        return {}
    arms = {}
    for row in run.rows:
        config = row["config"]
        if config.get("lookahead") == "control":
            arms[row["rung"]] = "control"
        elif config.get("lookahead") == "router":
            arms[row["rung"]] = {1.0: "top-k", 2.0: "top-2k"}.get(config["lookahead_width"], "")
    firsts = {arm: name for name, arm in reversed(arms.items()) if arm}
    return {name: arm for arm, name in firsts.items()}


def _by_layer(layers: pd.DataFrame, arm: str) -> list[dict[str, Any]]:
    known = layers[(layers["phase"] == "decode") & (layers["kind"] == "timed") & layers["predicted"].notna()]
    shares = [
        len(set(routed[0]) & set(predicted)) / len(routed[0])
        for routed, predicted in zip(known["routed"], known["predicted"], strict=True)
    ]
    rows = []
    for layer, values in pd.Series(shares, index=known.index).groupby(known["layer"]):
        half = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
        mean = float(values.mean())
        rows.append({"arm": arm, "layer": layer, "recall": mean, "low": max(0.0, mean - half),
                     "high": min(1.0, mean + half), "tokens": len(values), "how": MEASURED})  # fmt: skip
    return rows


def draw(given: FigureData) -> Figure:
    """Recall over layers."""
    figure, axes = sheet(given, (6.8, 4.0), nrows=1, ncols=1)
    ours = measured(given.frame)
    for arm, (colour, fmt) in LOOK.items():
        rows = ours[ours["arm"] == arm]
        if len(rows):
            errors = [(100 * (rows["recall"] - rows["low"])).tolist(), (100 * (rows["high"] - rows["recall"])).tolist()]
            axes.errorbar(rows["layer"], 100 * rows["recall"], yerr=errors, fmt=fmt, color=colour, capsize=2.5,
                          markersize=5, label=f"{arm}: mean {100 * rows['recall'].mean():.0f} %")  # fmt: skip
    for row in reported(given.frame).to_dict("records"):
        label = f"reported, {row['arm']}: about {100 * row['recall']:.0f} %"
        axes.axhline(100 * row["recall"], color=GREY, linewidth=1.2, linestyle=LOOK[row["arm"]][1][1:], label=label)
    axes.set_ylim(0, 104)
    axes.set_xticks(sorted(ours["layer"].unique()))
    axes.set_xlabel("layer")
    axes.set_ylabel("recall, %")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="lower right")
    return figure
