"""The ablation figure of one ladder, as `workbench ablate` writes it into the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.figures import ablation
from workbench.figures import build as figures
from workbench.figures.runs import RecordedRun
from workbench.figures.sheet import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(document: Mapping[str, Any]) -> Figure:
    """Draw the ladder of a results document."""
    with style():
        return ablation.draw(ablation.of_ladder(RecordedRun(Path(document["suite"]), document)))


def save(document: Mapping[str, Any], folder: Path, name: str = "ablation") -> dict[str, Path]:
    """Write PNG and PDF; equal documents give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    given = ablation.of_ladder(RecordedRun(Path(document["suite"]), document))
    return figures.save(ablation.draw, given, folder, name, kinds=("png", "pdf"))
