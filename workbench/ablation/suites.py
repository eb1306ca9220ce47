"""Suites: a ladder, its prompts and its repeats, from a YAML or JSON file checked before anything runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.ablation.rungs import (
    BASE,
    DEFAULT_LADDER,
    FLASH_TOGGLES,
    NATIVE,
    PACKED,
    ModelFacts,
    Rung,
    check_start,
    to_config,
)
from workbench.errors import ToggleError, WorkbenchError

PHONE = "phone"
ABBA, ABAB = "abba", "abab"
POWER_KEYS = ("idle_s", "sustained_s")
EXPECT_KEYS = ("model_bytes", "decode_tok_s", "push_bytes_s")
DEFAULT_PROMPTS = (
    "Once upon a time there was a little fox who lived at the edge of a quiet forest. One morning the fox",
)
_RUNG_KEYS = {"name", "set", "start", "model", "recipe", "note", "pending"}
_ANY_MODEL = ModelFacts(n_expert=1 << 20, n_expert_used=1)


class SuiteError(WorkbenchError):
    """A suite file is unreadable or has a wrong key or value; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What `workbench ablate` runs.

    Attributes
    ----------
    prompts : tuple of str
        Real text: random tokens misrepresent routing. A rung's repeat runs all of them and pools them.
    tokens : int
        Tokens generated per prompt, at least 2: the first comes from prefill.
    repeats : int
        Timed repeats per rung, after one verification run that also warms up.
    base : mapping
        Toggles common to all rungs.
    flash : mapping or "phone"
        Emulation toggles for the rungs that read flash; empty = native flash; `phone` = derive them on this machine.
    baseline, reference : str
        Rungs that speed-up and losslessness are measured against.
    calibration, held_out : str
        Text files for rungs that quantize: the importance matrix is computed over the first, the loss measured on the
        second. Empty: the small bundled ones.
    drafter : str
        The DSpark drafter trained for the model, for rungs with `draft_model: auto`; `embedded`: the demo model's.
    model : str
        The model's file, for `workbench device run`; relative names count from the folder the command runs in.
    files : mapping
        Variant (`packed`, `packed, les-mixed`, …) → a file that is there already instead of being made.
    order : "abba" or "abab"
        Timed repeats forwards and backwards in turn, so that slow drift meets every rung alike; or always forwards.
    cooldown_s : int
        Pause before every run on a device, seconds.
    power : mapping
        `idle_s`: seconds of idle (screen on) measured first; `sustained_s`: seconds every rung then decodes for, its
        speed, power and temperature taken over them. Empty or 0: not measured.
    expect : mapping
        What a dry run estimates with (never a result): `model_bytes`, `decode_tok_s`, `push_bytes_s`.
    """

    name: str = "default"
    note: str = ""
    rungs: tuple[Rung, ...] = DEFAULT_LADDER
    prompts: tuple[str, ...] = DEFAULT_PROMPTS
    tokens: int = 64
    repeats: int = 5
    base: Mapping[str, Any] = field(default_factory=dict)
    flash: Mapping[str, int] | str = field(default_factory=dict)
    baseline: str = "baseline"
    reference: str = "resident (stock)"
    calibration: str = ""
    held_out: str = ""
    drafter: str = ""
    model: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    order: str = ABBA
    cooldown_s: int = 0
    power: Mapping[str, int] = field(default_factory=dict)
    expect: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, in the form of a suite file."""
        rungs = []
        for rung in self.rungs:
            values = {"name": rung.name, "start": rung.start, "set": dict(rung.changes), "model": rung.model}
            values |= {"recipe": rung.recipe, "note": rung.note, "pending": rung.pending}
            rungs.append({key: value for key, value in values.items() if value not in (None, "", {})})
        return {
            "name": self.name,
            "note": self.note,
            "prompts": list(self.prompts),
            "tokens": self.tokens,
            "repeats": self.repeats,
            "base": dict(self.base),
            "flash": self.flash if isinstance(self.flash, str) else dict(self.flash),
            "baseline": self.baseline,
            "reference": self.reference,
            "calibration": self.calibration,
            "held_out": self.held_out,
            "drafter": self.drafter,
            "model": self.model,
            "files": dict(self.files),
            "order": self.order,
            "cooldown_s": self.cooldown_s,
            "power": dict(self.power),
            "expect": dict(self.expect),
            "rungs": rungs,
        }


def load_suite(path: Path | str) -> Suite:
    """Read a suite file (`.yaml`, `.yml` or `.json`).

    Raises
    ------
    SuiteError
        Naming the file, the key and what was expected.
    """
    import yaml

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise SuiteError(f"{path}: {error.strerror or error}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise SuiteError(f"{path}: {error}") from error
    try:
        return suite_from_dict(values)
    except SuiteError as error:
        raise SuiteError(f"{path}: {error}") from None


def suite_from_dict(values: Any) -> Suite:
    """Build a suite from the contents of a suite file; left-out keys keep their defaults."""
    defaults = Suite().to_dict()
    _mapping(values, "suite", set(defaults))
    for key, value in values.items():
        kind = type(defaults[key])
        if key == "flash" and value == PHONE:
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            raise SuiteError(f"{key}: expected {kind.__name__}, got {value!r}")
    values = dict(values)
    if "rungs" in values:
        values["rungs"] = tuple(_rung(rung, f"rungs[{i}]") for i, rung in enumerate(values["rungs"]))
    if "prompts" in values:
        values["prompts"] = tuple(values["prompts"])
    return Suite(**values)


def _mapping(values: Any, where: str, known: set[str]) -> None:
    if not isinstance(values, dict):
        raise SuiteError(f"{where}: expected a mapping, got {values!r}")
    for key in values:
        if key not in known:
            raise SuiteError(f"{where}: unknown key {key!r}; known: {', '.join(sorted(known))}")


def _rung(values: Any, where: str) -> Rung:
    _mapping(values, where, _RUNG_KEYS)
    for key in _RUNG_KEYS - {"set"}:
        if not isinstance(values.get(key, ""), str):
            raise SuiteError(f"{where}.{key}: expected text, got {values[key]!r}")
    if not values.get("name"):
        raise SuiteError(f"{where}.name: every rung needs a name")
    changes = values.get("set", {})
    if not isinstance(changes, dict):
        raise SuiteError(f"{where}.set: expected a mapping of toggles, got {changes!r}")
    return Rung(
        name=values["name"],
        changes=changes,
        start=values.get("start"),
        model=values.get("model"),
        recipe=values.get("recipe"),
        note=values.get("note", ""),
        pending=values.get("pending"),
    )


def _check(suite: Suite) -> None:
    for key, low in (("tokens", 2), ("repeats", 1)):
        if getattr(suite, key) < low:
            raise SuiteError(f"{key}: must be at least {low}, got {getattr(suite, key)}")
    if not suite.prompts:
        raise SuiteError("prompts: at least one is needed")
    for i, prompt in enumerate(suite.prompts):
        if not isinstance(prompt, str) or not prompt.strip():
            raise SuiteError(f"prompts[{i}]: expected text, got {prompt!r}")
    _check_protocol(suite)
    flash = _check_flash(suite)
    names = [rung.name for rung in suite.rungs]
    running = [rung.name for rung in suite.rungs if not rung.pending]
    for i, rung in enumerate(suite.rungs):
        where = f"rungs[{i}] {rung.name!r}"
        if names.count(rung.name) > 1:
            raise SuiteError(f"{where}: the name is used twice")
        if rung.name == BASE:
            raise SuiteError(f"{where}: {BASE!r} is reserved for the suite's common toggles")
        if rung.model not in (None, NATIVE, PACKED):
            raise SuiteError(f"{where}: model={rung.model!r}: choose {NATIVE} or {PACKED}")
    if not running:
        raise SuiteError("rungs: none can run")
    for key in ("baseline", "reference"):
        if getattr(suite, key) not in running:
            raise SuiteError(f"{key}: {getattr(suite, key)!r} is not a rung that runs; those are: {', '.join(running)}")
    _check_toggles(suite, flash)


def _check_protocol(suite: Suite) -> None:
    if suite.order not in (ABBA, ABAB):
        raise SuiteError(f"order: expected {ABBA!r} or {ABAB!r}, got {suite.order!r}")
    if suite.cooldown_s < 0:
        raise SuiteError(f"cooldown_s: must be at least 0, got {suite.cooldown_s}")
    for name, known, values in (("power", POWER_KEYS, suite.power), ("expect", EXPECT_KEYS, suite.expect)):
        for key, value in values.items():
            if key not in known:
                raise SuiteError(f"{name}: unknown key {key!r}; known: {', '.join(known)}")
            kinds = (int,) if name == "power" else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not value >= 0:
                raise SuiteError(f"{name}.{key}: expected a number that is not negative, got {value!r}")
    for variant, file in suite.files.items():
        if not isinstance(file, str) or not file:
            raise SuiteError(f"files.{variant}: expected a file name, got {file!r}")


def _check_flash(suite: Suite) -> dict[str, int]:
    if isinstance(suite.flash, str):
        if suite.flash != PHONE:
            raise SuiteError(f"flash: expected {PHONE!r} or a mapping, got {suite.flash!r}")
        return {}
    for key in suite.flash:
        if key not in FLASH_TOGGLES:
            raise SuiteError(f"flash: unknown key {key!r}; known: {', '.join(FLASH_TOGGLES)}")
    return dict(suite.flash)


def _check_toggles(suite: Suite, flash: dict[str, int]) -> None:
    resolved: dict[str, dict[str, Any]] = {}
    try:
        to_config(suite.base, flash=flash, facts=_ANY_MODEL)
    except ToggleError as error:
        raise SuiteError(f"base: {error}") from None
    for i, rung in enumerate(suite.rungs):
        if rung.pending:
            continue
        try:
            parent = check_start(suite.rungs, i)
            values = dict(resolved[parent.name] if parent else suite.base) | dict(rung.changes)
            resolved[rung.name] = values
            to_config(values, flash=flash, facts=_ANY_MODEL)
        except ToggleError as error:
            raise SuiteError(f"rungs[{i}] {rung.name!r}: {error}") from None
