"""Rungs: what each step of the ladder changes, and how it becomes a `RunConfig` on a given model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.config import RunConfig
from workbench.errors import ToggleError

NATIVE, PACKED = "native", "packed"
AUTO = "auto"
BASE = "base"
FLASH_TOGGLES = ("emulate_bandwidth_bytes_s", "emulate_latency_ns", "emulate_depth")


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One step of the ladder.

    Attributes
    ----------
    name : str
        As shown in tables and figures.
    changes : mapping
        Toggles set on this rung, over those of the rung it starts from; `cache_slots: auto` fits the model.
    start : str or None
        The rung whose toggles and file it starts from: an earlier name, `base`, or None for the one before.
    model : str or None
        `native` (the file as it is) or `packed` (expert-contiguous); None keeps that of the start.
    recipe : str or None
        Quantization recipe (a shipped one's name, or a file) of this rung's model; None keeps that of the start.
    note : str
        One line for people.
    pending : str or None
        Why this place of the ladder cannot run in this build; such a rung is shown, never run or counted.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    start: str | None = None
    model: str | None = None
    recipe: str | None = None
    note: str = ""
    pending: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a rung needs to know about the model."""

    n_expert: int
    n_expert_used: int
    drafter: str = ""

    @property
    def cache_slots(self) -> int:
        """Slots per layer for `auto`: a third of the experts, at least one token's."""
        return min(self.n_expert, max(self.n_expert_used, math.ceil(self.n_expert / 3)))


@dataclass(frozen=True, kw_only=True)
class Step:
    """A rung made concrete.

    Attributes
    ----------
    config : RunConfig or None
        None when the rung's toggles are impossible; `error` then says why.
    changed : dict
        Toggle → (before, after) against the rung it starts from; `model` and `recipe` among them.
    """

    rung: Rung
    config: RunConfig | None
    model: str
    changed: dict[str, tuple[Any, Any]]
    recipe: str | None = None
    error: str | None = None

    @property
    def variant(self) -> str:
        """Which file the rung runs on: `native`, `packed`, or one of those with its recipe."""
        return f"{self.model}, {self.recipe}" if self.recipe else self.model

    @property
    def change_line(self) -> str:
        """What changed, in one line."""
        return ", ".join(f"{k} {_text(a)} → {_text(b)}" for k, (a, b) in self.changed.items()) or "nothing changed"


def _text(value: Any) -> str:
    if isinstance(value, str) and value.endswith(".gguf"):
        return Path(value).name
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value) or "none"


DEFAULT_LADDER = (
    Rung(
        name="resident (stock)",
        start=BASE,
        changes={"experts": "resident"},
        note="stock llama.cpp with matched kernels, all experts in memory: the lossless reference",
    ),
    Rung(
        name="baseline",
        start=BASE,
        changes={"experts": "flash", "lanes": 1},
        note="experts on demand from flash, serial: read, wait, compute",
    ),
    Rung(
        name="+ lookahead",
        changes={"lookahead": "router", "lanes": 4},
        note="the next layer's router predicts which experts to read early",
    ),
    Rung(
        name="+ ready-first and cache",
        changes={"ready_first": True, "cache_slots": AUTO},
        note="experts are computed as they arrive, and some stay in memory",
    ),
    Rung(
        name="+ contiguous layout",
        model=PACKED,
        note="one read per expert instead of three",
    ),
    Rung(
        name="+ mixed precision",
        recipe="les-mixed",
        note="experts in 3 bits: fewer bytes per expert; no longer lossless, so its loss is measured",
    ),
    Rung(
        name="+ DSpark",
        changes={"speculation": "dspark", "draft_model": AUTO, "draft_adaptive": True, "batch_invariant": True},
        note="a drafter proposes tokens and one batch verifies them; the draft length adapts",
    ),
)


def check_start(rungs: Sequence[Rung], index: int) -> Rung | None:
    """The rung that rung `index` starts from (None: the base).

    Raises
    ------
    ToggleError
        When `start` names no earlier rung that can run.
    """
    earlier = [rung for rung in rungs[:index] if not rung.pending]
    start = rungs[index].start
    if start == BASE or (start is None and not earlier):
        return None
    if start is None:
        return earlier[-1]
    for rung in earlier:
        if rung.name == start:
            return rung
    raise ToggleError(f"start={start!r}: not an earlier rung; earlier are: {', '.join(r.name for r in earlier) or '-'}")


def resolve(
    rungs: Sequence[Rung], *, base: Mapping[str, Any], flash: Mapping[str, int], facts: ModelFacts
) -> list[Step]:
    """Turn rungs into runnable steps; a rung whose toggles are impossible becomes a step with its error.

    Parameters
    ----------
    base : mapping
        Toggles common to all rungs.
    flash : mapping
        Toggles of emulated flash, given to the rungs that read from flash; empty for native flash.
    """
    toggles: dict[str, dict[str, Any]] = {}
    models: dict[str, str] = {}
    recipes: dict[str, str | None] = {}
    configs: dict[str, RunConfig] = {}
    steps = []
    for index, rung in enumerate(rungs):
        if rung.pending:
            continue
        parent = check_start(rungs, index)
        values = dict(toggles[parent.name] if parent else base) | dict(rung.changes)
        model = rung.model or (models[parent.name] if parent else NATIVE)
        recipe = rung.recipe or (recipes[parent.name] if parent else None)
        toggles[rung.name], models[rung.name], recipes[rung.name] = values, model, recipe
        changed: dict[str, tuple[Any, Any]] = {}
        try:
            config = configs[rung.name] = to_config(values, flash=flash, facts=facts)
        except ToggleError as error:
            steps.append(Step(rung=rung, config=None, model=model, recipe=recipe, changed=changed, error=str(error)))
            continue
        before = configs.get(parent.name) if parent else to_config(base, flash=flash, facts=facts)
        if before is not None:
            changed |= before.diff(config)
            if "experts" in changed:
                changed = {key: change for key, change in changed.items() if key not in FLASH_TOGGLES}
        if model != (models[parent.name] if parent else NATIVE):
            changed["model"] = (models[parent.name] if parent else NATIVE, model)
        if recipe != (recipes[parent.name] if parent else None):
            changed["recipe"] = ((recipes[parent.name] if parent else None) or "as given", recipe)
        steps.append(Step(rung=rung, config=config, model=model, recipe=recipe, changed=changed))
    return steps


def to_config(values: Mapping[str, Any], *, flash: Mapping[str, int], facts: ModelFacts) -> RunConfig:
    """Toggles → `RunConfig`: `auto` becomes a number, emulated flash goes only where flash is read."""
    values = dict(values)
    if values.get("cache_slots") == AUTO:
        values["cache_slots"] = facts.cache_slots
    if values.get("draft_model") == AUTO:
        values["draft_model"] = facts.drafter or AUTO
    check_types(values)
    if values.get("experts", "flash") == "flash":
        values = dict(flash) | values
    return RunConfig.from_dict(values)


def check_types(values: Mapping[str, Any]) -> None:
    """Refuse a toggle whose value is of another type than its default, before ranges are compared.

    Raises
    ------
    ToggleError
        Naming the toggle.
    """
    for f in dataclasses.fields(RunConfig):
        if f.name not in values:
            continue
        value, default = values[f.name], f.default
        fits = isinstance(value, bool) == isinstance(default, bool) and (
            isinstance(value, (int, float)) if isinstance(default, float) else isinstance(value, type(default))
        )
        if not fits:
            raise ToggleError(f"{f.name}={value!r}: must be of type {type(default).__name__}")
