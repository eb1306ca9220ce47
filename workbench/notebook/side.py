"""One side of the panel: its toggles, what they say, the figures and the text of its run."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as w

from workbench.config import RunConfig
from workbench.demo import demo_drafter, demo_model
from workbench.errors import WorkbenchError
from workbench.notebook.attempt import Attempt
from workbench.notebook.compare import Piece, differing, pieces
from workbench.notebook.controls import Toggles
from workbench.notebook.figures import live_figures, table


class Side(w.VBox):
    """A configuration and its run.

    Attributes
    ----------
    attempt : Attempt or None
        The latest run, also while it goes.
    """

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self.toggles = Toggles(values)
        self.attempt: Attempt | None = None
        self.contradiction, self.message, self.text = w.HTML(), w.HTML(), w.HTML()
        self.figures = w.HTML(table(live_figures([])))
        title = w.HTML(f"<div class='les-side-title'>{name}</div>")
        super().__init__([title, self.toggles, self.contradiction, self.message, self.figures, self.text])
        self.add_class("les-side")
        self.add_class(f"les-side-{name}")

    def config(self, flash: Mapping[str, int], model: str) -> RunConfig:
        """The chosen configuration; `flash` (emulation toggles) applies where experts are read from it.

        Raises
        ------
        ToggleError
            If toggles contradict each other.
        """
        values = self.toggles.values()
        if values["speculation"] == "dspark" and not values["draft_model"] and is_demo(model):
            values["draft_model"] = str(demo_drafter())
        if values["experts"] == "flash":
            values |= flash
        return RunConfig.from_dict(values)

    def check(self, flash: Mapping[str, int], model: str) -> bool:
        """Whether the toggles can run; says why not."""
        try:
            self.config(flash, model)
        except WorkbenchError as error:
            self.contradiction.value = _line(str(error), "error")
            return False
        self.contradiction.value = ""
        return True

    def say(self, sentence: str, kind: str = "note") -> None:
        """Show one sentence about the run: a `note`, or an `error`."""
        self.message.value = _line(sentence, kind)

    def begin(self, attempt: Attempt) -> None:
        """Show a run that is about to start."""
        self.attempt = attempt
        self.say("loading …")
        self.paint(None)

    def paint(self, other: Attempt | None) -> None:
        """Show what the run has recorded so far; tokens that differ from the other side's are marked."""
        if self.attempt is None:
            return
        records = list(self.attempt.records)
        mine = pieces(records)
        marks = differing(mine, pieces(list(other.records))) if other else [False] * len(mine)
        self.figures.value = table(live_figures(records))
        self.text.value = marked_text(self.attempt.prompt, mine, marks)

    def conclude(self) -> None:
        """Say how the run ended."""
        attempt = self.attempt
        if attempt is None:
            return
        calls = sum(record["phase"] == "decode" for record in attempt.records)
        kept = f"{calls} decode calls are kept." if attempt.records else "Nothing was recorded."
        if attempt.problem:
            self.say(f"{attempt.problem.rstrip('.')}." + (f" {kept}" if attempt.records else ""), "error")
        elif attempt.stopped:
            self.say(f"Stopped: {kept}")
        else:
            self.say("")


def _line(sentence: str, kind: str) -> str:
    return f"<div class='les-{kind}'>{html.escape(sentence)}</div>" if sentence else ""


def is_demo(model: str) -> bool:
    """Whether a model's name stands for the embedded one."""
    return model == "demo" or Path(model) == demo_model()


def marked_text(prompt: str, mine: Sequence[Piece], marks: Sequence[bool]) -> str:
    """The prompt and the generated text as HTML, differing tokens marked."""
    shown = []
    for piece, marked in zip(mine, marks, strict=True):
        text = html.escape(piece.text)
        where = f"position {piece.start}, token {', '.join(map(str, piece.ids))}"
        shown.append(f"<mark title='{where}'>{text or '·'}</mark>" if marked else text)
    return f"<div class='les-text'><span class='les-prompt'>{html.escape(prompt)}</span>{''.join(shown)}</div>"
