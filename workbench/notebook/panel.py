"""The live panel: choose model and toggles, run, watch; two configurations side by side on one prompt."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as w

from workbench.config import RunConfig
from workbench.demo import demo_model
from workbench.errors import WorkbenchError
from workbench.models import resolve_model
from workbench.notebook.attempt import Attempt
from workbench.notebook.compare import judge
from workbench.notebook.flash import FlashChoice
from workbench.notebook.inspector import Inspector
from workbench.notebook.side import Side, is_demo

if TYPE_CHECKING:
    from workbench.api import Run

PROMPT = "Once upon a time there was a little fox who lived at the edge of a quiet forest. One morning the fox"
FAST: dict[str, Any] = {"lookahead": "router", "ready_first": True, "cache_slots": 8}
PAINT_EVERY_S = 0.15
_CSS = (Path(__file__).parent / "panel.css").read_text(encoding="utf-8")


class Panel(w.VBox):
    """Two sides, A and B. B starts with lookahead, ready-first and a cache, A without.

    Parameters
    ----------
    model
        A GGUF, or `owner/repo:file.gguf` on the hub. None: the embedded model under an emulated phone flash.
    **toggles
        Fields of `RunConfig` for both sides to start from.

    Raises
    ------
    ToggleError
        If the toggles are unknown or impossible.
    """

    def __init__(self, model: str | Path | None = None, **toggles: Any) -> None:
        RunConfig.from_dict(toggles)
        start = {"telemetry": "io"} | toggles
        if model is None:
            start = {"io": "buffered", "threads": 1} | start
        fast = FAST | toggles if start.get("experts", "flash") == "flash" else {}
        self.flash = FlashChoice(start, emulated=model is None)
        self.sides = {"A": Side("A", start), "B": Side("B", start | fast)}
        self.inspector = Inspector(self.sides)
        self._thread: threading.Thread | None = None
        self._busy = self._stopping = False
        self._synthetic = False
        self._build(str(model or "demo"))
        for side in self.sides.values():
            side.toggles.on_change(self.check)
        self.flash.on_change(self.check)
        self.model.observe(lambda _change: self.check(), names="value")
        self.check()

    def _build(self, model: str) -> None:
        wide = w.Layout(width="auto", flex="1 1 auto", min_width="0")
        label = {"description_width": "52px"}
        files = sorted(str(path) for path in Path().glob("*.gguf"))
        self.model = w.Combobox(value=model, options=["demo", *files], description="model", layout=wide, style=label)
        self.tokens = w.BoundedIntText(
            value=48, min=1, max=100_000, description="tokens", layout=w.Layout(width="140px"), style=label
        )
        self.prompt = w.Textarea(value=PROMPT, description="prompt", rows=2, layout=wide, style=label)
        self.buttons = {
            "both": w.Button(description="Run A and B", icon="play", button_style="primary"),
            "A": w.Button(description="Run A"),
            "B": w.Button(description="Run B"),
            "stop": w.Button(description="Stop", icon="stop", disabled=True),
        }
        for name, button in self.buttons.items():
            button.layout.width = "120px" if name == "both" else "84px"
            button.add_class(f"les-{name}")
        self.buttons["both"].on_click(lambda _button: self.start("A", "B"))
        self.buttons["A"].on_click(lambda _button: self.start("A"))
        self.buttons["B"].on_click(lambda _button: self.start("B"))
        self.buttons["stop"].on_click(lambda _button: self.stop())
        self.status, self.badges, self.verdict = w.HTML(), w.HTML(), w.HTML()
        super().__init__([
            w.HTML(f"<style>{_CSS}</style>"),
            w.HBox([w.HTML("<div class='les-title'>LES Workbench</div>"), self.badges]),
            w.HBox([self.model, self.tokens, self.flash]),
            self.prompt,
            w.HBox([*self.buttons.values(), self.status]),
            w.HBox(list(self.sides.values())).add_class("les-sides"),
            self.verdict,
            self.inspector,
        ])  # fmt: skip
        self.add_class("les-panel")

    @property
    def running(self) -> bool:
        """Whether a run is under way."""
        return self._busy

    @property
    def runs(self) -> dict[str, Run]:
        """The latest finished run of each side that has one, with its DataFrames."""
        from workbench.api import Run

        attempts = {name: side.attempt for name, side in self.sides.items()}
        return {name: Run(a.recording) for name, a in attempts.items() if a is not None and a.recording is not None}

    def check(self) -> bool:
        """Say what is wrong with the toggles, before anything runs."""
        if self.running:
            return False
        good = {name: side.check(self.flash.toggles, self.model.value) for name, side in self.sides.items()}
        self.buttons["A"].disabled, self.buttons["B"].disabled = not good["A"], not good["B"]
        self.buttons["both"].disabled = not all(good.values())
        self._show_badges()
        return all(good.values())

    def start(self, *names: str) -> None:
        """Run these sides one after the other, in a thread; returns at once."""
        if self.running:
            return
        for name in names:
            if not self.sides[name].check(self.flash.toggles, self.model.value):
                return
        self._busy, self._stopping = True, False
        for name, button in self.buttons.items():
            button.disabled = name != "stop"
        self._thread = threading.Thread(target=self._run, args=(names,), name="les-panel", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the run under way; what it recorded is kept."""
        self._stopping = True
        self.buttons["stop"].disabled = True
        self._say("stopping …")
        attempts = [side.attempt for side in self.sides.values() if side.attempt is not None]
        for attempt in attempts:
            if attempt.recording is None and attempt.problem is None:
                threading.Thread(target=attempt.stop, name="les-panel-stop", daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when nothing runs any more."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, names: Sequence[str]) -> None:
        try:
            path = self._resolve()
            for name in names:
                if self._stopping:
                    break
                self._run_side(name, path)
            self._say("stopped" if self._stopping else "done")
        except WorkbenchError as error:
            self._say(str(error), "error")
        except Exception as error:  # a thread has nobody else to tell
            self._say(f"unexpected {type(error).__name__}: {error}", "error")
        finally:
            self._busy = False
            self.buttons["stop"].disabled = True
            self.check()

    def _resolve(self) -> Path:
        from workbench.storage.inspect import summarize

        self._say("opening the model …")
        path = demo_model() if is_demo(self.model.value) else resolve_model(self.model.value)
        try:
            self._synthetic = summarize(path).synthetic
        except WorkbenchError:  # the runner says it better
            self._synthetic = False
        return path

    def _run_side(self, name: str, path: Path) -> None:
        side = self.sides[name]
        other = self.sides["B" if name == "A" else "A"]
        config = side.config(self.flash.toggles, self.model.value)
        attempt = Attempt(path, self.prompt.value, self.tokens.value, config)
        painted = 0.0

        def watch() -> None:
            nonlocal painted
            if time.monotonic() - painted >= PAINT_EVERY_S:
                side.say("")
                side.paint(other.attempt if comparable() else None)
                self._say(f"{name} runs: {len(attempt.records)} calls of at most {attempt.tokens}")
                painted = time.monotonic()

        def comparable() -> bool:
            theirs = other.attempt
            return theirs is not None and (theirs.model, theirs.prompt) == (attempt.model, attempt.prompt)

        side.begin(attempt)
        self.verdict.value = ""
        if self._stopping:
            attempt.stop()
        attempt.run(watch)
        side.paint(other.attempt if comparable() else None)
        other.paint(attempt if comparable() else None)
        side.conclude()
        self._show_badges()
        self._show_verdict()
        self.inspector.refresh(name)

    def _say(self, sentence: str, kind: str = "note") -> None:
        self.status.value = f"<div class='les-status les-{kind}'>{html.escape(sentence)}</div>"

    def _show_badges(self) -> None:
        badges = []
        if self.flash.toggles and any(s.toggles.values()["experts"] == "flash" for s in self.sides.values()):
            badges.append(("emulated", "reads are delayed to the time an emulated flash would take; not a phone's"))
        if self._synthetic:
            badges.append(("synthetic", "a generated model: it speaks no language"))
        for name, run in self.runs.items():
            if (run.recording.end or {}).get("contended"):
                badges.append((f"{name} contended", "other processes held cores while it ran"))
        badges.append(("watched live", "drawing while it runs costs time; `wb.ablate` measures"))
        self.badges.value = "".join(f"<span class='les-badge' title='{why}'>{name}</span>" for name, why in badges)

    def _show_verdict(self) -> None:
        verdict = judge(self.sides["A"].attempt, self.sides["B"].attempt)
        self.verdict.value = f"<div class='les-verdict les-{verdict.kind}'>{html.escape(verdict.text)}</div>"


def panel(model: str | Path | None = None, **toggles: Any) -> Panel:
    """Choose a model and toggles, run, and watch; two configurations side by side on one prompt.

    Parameters
    ----------
    model
        A GGUF, or `owner/repo:file.gguf` on the hub. None: the embedded model under an emulated phone flash.
    **toggles
        Fields of `RunConfig`, for both sides to start from.

    Raises
    ------
    ToggleError
        If the toggles are unknown or impossible.
    """
    return Panel(model, **toggles)
