"""Under the panel's sides: the timeline of a chosen token, and the whole run as a trace file."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path

import ipywidgets as w

from workbench.errors import WorkbenchError
from workbench.notebook.side import Side
from workbench.notebook.timeline import Timeline
from workbench.telemetry import Recording, chrome_trace
from workbench.timeline import token_spans


class Inspector(w.VBox):
    """Chooses a side and a token, and draws its timeline."""

    def __init__(self, sides: Mapping[str, Side]) -> None:
        self._sides = sides
        self.side = w.ToggleButtons(options=list(sides), style={"button_width": "36px"}, layout=w.Layout(width="90px"))
        self.token = w.IntSlider(
            value=0, min=0, max=0, description="token", continuous_update=False, layout=w.Layout(width="340px")
        )
        self.save = w.Button(description="Save trace", icon="download", disabled=True, layout=w.Layout(width="110px"))
        self.save.tooltip = "the whole run, for ui.perfetto.dev or chrome://tracing"
        self.note = w.HTML()
        self.timeline = Timeline(message="The timeline of a token appears here after a run.")
        super().__init__([w.HBox([self.side, self.token, self.save, self.note]), self.timeline])
        self.add_class("les-inspector")
        self.side.observe(lambda _change: self._choose(), names="value")
        self.token.observe(lambda _change: self.draw(), names="value")
        self.save.on_click(lambda _button: self.save_trace())

    @property
    def recording(self) -> Recording | None:
        """What the chosen side recorded."""
        attempt = self._sides[self.side.value].attempt
        return attempt.recording if attempt else None

    def refresh(self, side: str) -> None:
        """Show a side whose run has just ended."""
        if self.side.value == side:
            self._choose()
        else:
            self.side.value = side

    def _choose(self) -> None:
        """Another run: keep the token where that run has it, else take one from its middle."""
        calls = 0 if self.recording is None else len(self.recording.decode)
        last = max(0, calls - 1)
        wanted = self.token.value if 0 < self.token.value <= last else last // 2
        with self.token.hold_trait_notifications():
            self.token.max, self.token.value = last, wanted
        self.draw()

    def draw(self) -> None:
        """Draw the chosen token."""
        self.save.disabled = self.recording is None
        self.note.value = ""
        if self.recording is None:
            self.timeline.clear(f"{self.side.value} has no finished run.")
            return
        try:
            self.timeline.show(token_spans(self.recording, self.token.value))
        except WorkbenchError as error:
            self.timeline.clear(f"Nothing to draw: {error}.")

    def save_trace(self, folder: Path | str = ".") -> Path | None:
        """Write the chosen side's run as a Chrome trace; says where."""
        if self.recording is None:
            return None
        path = Path(folder) / f"les-panel-{self.side.value}.trace.json"
        try:
            path.write_text(json.dumps(chrome_trace(self.recording)), encoding="utf-8")
        except OSError as error:
            self.note.value = f"<span class='les-error'>{html.escape(f'{path}: {error.strerror}')}</span>"
            return None
        self.note.value = f"<span class='les-note'>{html.escape(f'{path}: open it in ui.perfetto.dev')}</span>"
        return path
