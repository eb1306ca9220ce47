"""The ablation ladder: measured speed, verdict and memory, beside the article's reported ladder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench import lossless
from workbench.figures.ladder import article_ladder, choose_ladder, measured_rows, repeats_text
from workbench.figures.reported import article
from workbench.figures.runs import RecordedRun, Runs, flash_text
from workbench.figures.sheet import (
    BLUE,
    GREY,
    ORANGE,
    SKY,
    FigureData,
    bounds,
    drawn_from,
    measured,
    reported,
    reported_ground,
    sheet,
    slanted,
)
from workbench.lossless import BIT_EXACT, DIFFERS, NEAR_TIE, SAME_TOKENS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def data(runs: Runs) -> FigureData:
    """The largest recorded ladder."""
    return of_ladder(choose_ladder(runs, "ablation"))


def of_ladder(run: RecordedRun) -> FigureData:
    """The figure's data of one ladder."""
    document = run.document
    ours = measured_rows(run)
    if len(ours):
        ours["mark"] = [_mark(row) for row in run.rows if row["decode_tok_s"] is not None]
    ours["model_mb"] = document["model"]["file_bytes"] / 1e6
    frame = pd.concat([ours, article_ladder()], ignore_index=True)
    return FigureData(frame, f"Ablation ladder: {document['model']['name']}", _caption(run), run.labels)


def draw(given: FigureData) -> Figure:
    """Speed with verdicts, peak memory, and the reported ladder."""
    figure, axes = sheet(given, (10.0, 4.6), nrows=1, ncols=3, width_ratios=[4.4, 3.2, 2.9])
    ours = measured(given.frame)
    draw_speed(axes[0], ours, "emulated" in given.labels)
    _memory(axes[1], ours)
    draw_article(axes[2], reported(given.frame))
    return figure


def _mark(row: Mapping[str, Any]) -> str:
    if row["lossless"]["verdict"] == lossless.MEASURED:
        return f"KL {row['lossless']['quality']['kl']['mean']['value']:.2g}"
    marks = {BIT_EXACT: "bit-exact", DIFFERS: "DIFFERS", SAME_TOKENS: "same\ntokens", NEAR_TIE: "near-tie"}
    mark = marks.get(row["lossless"]["verdict"])
    return "not\nchecked" if mark is None else mark + ("\nto plain" if _drafts(row) else "")


def _drafts(row: Mapping[str, Any]) -> bool:
    return bool(row["config"].get("speculation", "off") != "off")


def draw_speed(axes: Axes, ours: pd.DataFrame, emulated: bool) -> None:
    """Speed of every rung as bars, with its speed-up and, where the rows have one, its verdict (`mark`)."""
    resident = (ours["experts"] == "resident").tolist()
    errors = bounds(ours, "tok_s", "tok_s_low", "tok_s_high")
    bars = axes.bar(
        range(len(ours)),
        ours["tok_s"],
        color=[SKY if r else BLUE for r in resident],
        hatch=["//" if r else "" for r in resident],
        edgecolor="white",
        yerr=errors,
        error_kw={"elinewidth": 1, "capsize": 2.5, "ecolor": "black"},
    )
    tops = ours[["tok_s", "tok_s_high"]].max(axis=1)
    for bar, row, top in zip(bars, ours.to_dict("records"), tops, strict=True):
        lines = [f"{row['tok_s']:.3g}"]
        lines += [] if pd.isna(row["speedup"]) else [f"{row['speedup']:.2f} ×"]
        at = (bar.get_x() + bar.get_width() / 2, top)
        lines += [row["mark"]] if "mark" in row else []
        text = "\n".join(lines)
        axes.annotate(text, at, (0, 3), textcoords="offset points", ha="center", va="bottom", fontsize=6.5)
    axes.set_ylim(0, tops.max() * 1.32 if len(ours) else 1.0)
    axes.set_title("Decode speed, tok/s" + (", emulated flash" if emulated else ""))
    contended = ours["contended"].astype(str) == "True"
    slanted(axes, [f"{n}\n(contended)" if c else n for n, c in zip(ours["rung"], contended, strict=True)])


def _memory(axes: Axes, ours: pd.DataFrame) -> None:
    peaks = ours["peak_mb"].fillna(0.0)
    bars = axes.bar(range(len(ours)), peaks, color=ORANGE, edgecolor="white")
    for label in axes.bar_label(bars, [f"{p:.3g}" if p else "not\nmeasured" for p in peaks], padding=2, fontsize=6.5):
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    model_mb = float(ours["model_mb"].iloc[0]) if len(ours) else 0.0
    axes.axhline(model_mb, color="black", linewidth=0.8, linestyle="--", zorder=0)
    axes.set_ylim(0, max([*peaks, model_mb, 1.0]) * 1.18)
    axes.set_title(f"Peak memory, MB (dashed: model file, {model_mb:.3g})")
    slanted(axes, list(ours["rung"]))


def draw_article(axes: Axes, ladder: pd.DataFrame) -> None:
    """The article's ladder as bars."""
    bars = axes.bar(range(len(ladder)), ladder["tok_s"], color=GREY, hatch="..", edgecolor="white")
    texts = [f"{v:g}\n{s:.2f} ×" for v, s in zip(ladder["tok_s"], ladder["speedup"], strict=True)]
    axes.bar_label(bars, texts, padding=2, fontsize=6.5)
    axes.set_ylim(0, ladder["tok_s"].max() * 1.2)
    reported_ground(axes, "tok/s")
    slanted(axes, list(ladder["rung"]))


def _caption(run: RecordedRun) -> str:
    document = run.document
    parts = [
        f"Bars: {repeats_text(run)}; × = speed-up over {document['baseline']!r}; lossless verdict: logits against "
        f"{document['reference']!r}.",
        flash_text(run.rows),
    ]
    if any(_drafts(row) for row in run.rows):
        parts.append("To plain: a rung that drafts is compared with plain decoding of the same file.")
    if any(row["lossless"]["verdict"] == lossless.MEASURED for row in run.rows):
        parts.append("KL: mean divergence (nats) from the model as given on held-out text, where weights differ.")
    left_out = [row["rung"] for row in document["rows"] if row["decode_tok_s"] is None]
    if left_out:
        parts.append(f"Failed or not measured: {', '.join(left_out)}.")
    if "contended" in run.labels:
        parts.append("Contended: something else wanted the cores during the run; its speed is not to be trusted.")
    values = article()
    parts.append(
        f"Right: reported by {values['source']} ({values['model']}; {values['ladder']['device']}), another model on "
        f"another device: for orientation only."
    )
    parts.append(drawn_from([run.name]))
    return " ".join(parts)
