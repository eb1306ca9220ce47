"""The timeline of one token as a widget: wheel zooms, drag pans, hovering shows details."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from workbench.telemetry import Recording
from workbench.timeline import LOOK, token_spans

HERE = Path(__file__).parent
COLOURS = {kind: colour for kind, (colour, _) in LOOK.items()} | {"layer": "#56B4E9", "wave": LOOK["experts"][0]}
LEGEND = {
    "dense": "attention, router",
    "layer": "experts of a layer",
    "wave": "wave of compute",
    "wait": "wait",
    "demand": "demand read",
    "prefetch": "prefetch read",
}


class Timeline(anywidget.AnyWidget):
    """Draws what `workbench.timeline.token_spans` returns.

    Attributes
    ----------
    data : dict
        The spans; empty while there is nothing to draw, and then `message` is shown.
    view : list of float
        The stretch of time shown, µs from the token's start.
    """

    _esm = HERE / "timeline.js"
    _css = HERE / "timeline.css"
    data = traitlets.Dict().tag(sync=True)
    message = traitlets.Unicode("").tag(sync=True)
    view = traitlets.List(traitlets.Float(), [0.0, 1.0]).tag(sync=True)
    colours = traitlets.Dict(COLOURS).tag(sync=True)
    legend = traitlets.Dict(LEGEND).tag(sync=True)

    @classmethod
    def of(cls, recording: Recording, token: int = 0) -> Timeline:
        """The timeline of decode call `token`; `WorkbenchError` where `token_spans` raises it."""
        made = cls()
        made.show(token_spans(recording, token))
        return made

    def show(self, data: dict[str, Any]) -> None:
        """Draw other spans, all of their time."""
        with self.hold_sync():
            self.data, self.message, self.view = data, "", [0.0, max(1.0, data["duration_us"])]

    def clear(self, message: str) -> None:
        """Draw nothing, and say why."""
        with self.hold_sync():
            self.data, self.message = {}, message
