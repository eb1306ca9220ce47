"""The ablation figure: measured speed and memory, beside the article's reported ladder; the same bytes every time."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import lossless
from workbench.lossless import BIT_EXACT, DIFFERS, NEAR_TIE, SAME_TOKENS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ARTICLE = (
    ("baseline", 3.38),
    ("+ lookahead", 6.57),
    ("+ scheduling, storage", 11.34),
    ("+ mixed precision", 17.16),
    ("+ DSpark", 20.51),
)
"""Decode tok/s per rung as the LES article reports them: a 35B-A3B MoE on a 12 GB iPhone. Not measured here."""

MEASURED, MEMORY, REPORTED = "#0072B2", "#E69F00", "#BBBBBB"
RESIDENT = "#56B4E9"
RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
    "svg.hashsalt": "les-workbench",
    "hatch.linewidth": 0.6,
}


def draw(document: Mapping[str, Any]) -> Figure:
    """Draw the ladder of a results document."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(10.0, 4.4), dpi=160)
        speed, memory, article = figure.subplots(1, 3, width_ratios=[4.6, 3, 3])
        ran = [row for row in document["rows"] if row["decode_tok_s"] is not None]
        _speed(speed, ran)
        _memory(memory, ran, document["model"])
        _article(article)
        figure.suptitle(_title(document), x=0.01, ha="left", fontsize=10, fontweight="bold")
        figure.text(0.01, 0.012, textwrap.fill(_caption(document), 190), ha="left", va="bottom", fontsize=6.5)
        figure.subplots_adjust(left=0.045, right=0.99, top=0.85, bottom=0.34, wspace=0.2)
    return figure


def save(document: Mapping[str, Any], folder: Path, name: str = "ablation") -> dict[str, Path]:
    """Write PNG and PDF; equal documents give equal bytes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    folder.mkdir(parents=True, exist_ok=True)
    paths = {kind: folder / f"{name}.{kind}" for kind in ("png", "pdf")}
    with matplotlib.rc_context(RC):
        figure = draw(document)
        FigureCanvasAgg(figure)
        figure.savefig(paths["png"], metadata={"Software": None})
        FigureCanvasPdf(figure)
        undated = dict.fromkeys(("CreationDate", "ModDate", "Producer", "Creator"))
        figure.savefig(paths["pdf"], metadata=undated)
    return paths


def _names(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), names, rotation=28, ha="right", rotation_mode="anchor")


def _speed(axes: Axes, ran: Sequence[Mapping[str, Any]]) -> None:
    values = [row["decode_tok_s"] for row in ran]
    emulated = any("emulated" in row["labels"] for row in ran)
    errors: list[list[float]] = [[], []]
    for row in ran:
        low, high = row["decode_tok_s_low"], row["decode_tok_s_high"]
        errors[0].append(0.0 if low is None else max(0.0, row["decode_tok_s"] - low))
        errors[1].append(0.0 if high is None else max(0.0, high - row["decode_tok_s"]))
    resident = [row["config"]["experts"] == "resident" for row in ran]
    bars = axes.bar(
        range(len(ran)),
        values,
        color=[RESIDENT if r else MEASURED for r in resident],
        hatch=["//" if r else "" for r in resident],
        edgecolor="white",
        yerr=errors,
        error_kw={"elinewidth": 1, "capsize": 2.5, "ecolor": "black"},
    )
    for bar, row, above in zip(bars, ran, errors[1], strict=True):
        lines = [f"{row['decode_tok_s']:.3g}"]
        lines += [f"{row['speedup']:.2f} ×"] if row["speedup"] is not None else []
        lines += [_mark(row)]
        axes.annotate(
            "\n".join(lines),
            (bar.get_x() + bar.get_width() / 2, bar.get_height() + above),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=7,
        )
    axes.set_ylim(0, max((v + e for v, e in zip(values, errors[1], strict=True)), default=1.0) * 1.28)
    axes.set_title("Decode speed, tok/s" + (", emulated flash" if emulated else ""), loc="left", fontsize=8.5)
    _names(axes, [_name(row) for row in ran])


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['rung']}\n(contended)" if "contended" in row["labels"] else str(row["rung"])


def _mark(row: Mapping[str, Any]) -> str:
    if row["lossless"]["verdict"] == lossless.MEASURED:
        return f"KL {row['lossless']['quality']['kl']['mean']['value']:.2g}"
    marks = {BIT_EXACT: "bit-exact", DIFFERS: "DIFFERS", SAME_TOKENS: "same tokens", NEAR_TIE: "near-tie"}
    return marks.get(row["lossless"]["verdict"], "not checked")


def _memory(axes: Axes, ran: Sequence[Mapping[str, Any]], model: Mapping[str, Any]) -> None:
    peaks = [(row["peak_bytes"] or 0) / 1e6 for row in ran]
    bars = axes.bar(range(len(ran)), peaks, color=MEMORY, edgecolor="white")
    for label in axes.bar_label(bars, [f"{p:.3g}" if p else "n. m." for p in peaks], padding=2, fontsize=7):
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    file_mb = model["file_bytes"] / 1e6
    axes.axhline(file_mb, color="black", linewidth=0.8, linestyle="--", zorder=0)
    axes.set_ylim(0, max([*peaks, file_mb]) * 1.18)
    axes.set_title(f"Peak memory, MB (dashed: model file, {file_mb:.3g})", loc="left", fontsize=8.5)
    _names(axes, [row["rung"] for row in ran])


def _article(axes: Axes) -> None:
    base = ARTICLE[0][1]
    bars = axes.bar(range(len(ARTICLE)), [v for _, v in ARTICLE], color=REPORTED, hatch="..", edgecolor="white")
    axes.bar_label(bars, [f"{v:g}\n{v / base:.2f} ×" for _, v in ARTICLE], padding=2, fontsize=7)
    axes.set_ylim(0, ARTICLE[-1][1] * 1.2)
    axes.set_facecolor("#F6F6F6")
    axes.set_title("Reported by the article, not measured", loc="left", fontsize=8.5)
    _names(axes, [name for name, _ in ARTICLE])


def _title(document: Mapping[str, Any]) -> str:
    labels = {label for row in document["rows"] for label in row["labels"]}
    shown = [
        text for label, text in (("synthetic", "synthetic weights"), ("emulated", "emulated flash")) if label in labels
    ]
    return f"Ablation ladder: {document['model']['name']}" + (f" ({', '.join(shown)})" if shown else "")


def _caption(document: Mapping[str, Any]) -> str:
    parts = [
        f"Bars: medians of {document['repeats']} interleaved repeats of {document['tokens']} tokens; error bars: 95 % "
        f"bootstrap intervals of the median; × = speed-up over {document['baseline']!r}; lossless verdict: logits "
        f"against {document['reference']!r}."
    ]
    flash = next((row["flash"] for row in document["rows"] if "emulated" in row["labels"]), None)
    if flash:
        derived = ", derived from the article's ratios" if document["profile"] else ""
        parts.append(
            f"Flash is emulated ({flash['bandwidth_bytes_s'] / 1e9:.3g} GB/s, {flash['latency_ns'] / 1e3:.3g} µs per "
            f"request{derived})."
        )
    if any(row["lossless"]["verdict"] == lossless.MEASURED for row in document["rows"]):
        parts.append("KL: mean divergence (nats) from the model as given on held-out text, where weights differ.")
    left_out = [row["rung"] for row in document["rows"] if row["decode_tok_s"] is None]
    if left_out:
        parts.append(f"Failed or not measured: {', '.join(left_out)}.")
    if any("contended" in row["labels"] for row in document["rows"]):
        parts.append("Contended: something else wanted the cores during the run; its speed is not to be trusted.")
    parts.append(
        "Right: the LES article's own figures (35B-A3B MoE, 12 GB iPhone), another model on another device: for "
        "orientation only."
    )
    return " ".join(parts)
