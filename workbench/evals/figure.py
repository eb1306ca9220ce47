"""Size against score: the file sizes of quantized models against their task score, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def save_size_score(points: Sequence[Mapping[str, Any]], path: Path, *, title: str = "") -> Path:
    """Draw `size_score` of a ladder's document as a PNG; equal points give equal bytes.

    Parameters
    ----------
    points
        Each with `name`, `file_bytes`, `score`, `low`, `high` and `items`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.4), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    sizes = [p["file_bytes"] / 1e6 for p in points]
    errors = [[p["score"] - p["low"] for p in points], [p["high"] - p["score"] for p in points]]
    axes.errorbar(sizes, [p["score"] for p in points], yerr=errors, fmt="o", color="#0072B2", capsize=3)
    for size, p in zip(sizes, points, strict=True):
        axes.annotate(p["name"], (size, p["score"]), xytext=(6, 4), textcoords="offset points", fontsize=7)
    axes.margins(x=0.25)
    axes.set_xlabel("model file, MB")
    axes.set_ylabel(f"accuracy over {points[0]['items']} items")
    axes.set_title(title or "Size against score (bars: 95 % intervals)", loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    return path
