"""A dry run: every command in its order, and an estimate of time and bytes, without touching the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.ablation import drafting
from workbench.ablation.ladder import read_model
from workbench.ablation.rungs import NATIVE, ModelFacts, Step, resolve
from workbench.ablation.schedule import timed_order
from workbench.ablation.store import slug
from workbench.ablation.suites import Suite
from workbench.devices.targets.base import Target
from workbench.runner import model_sha256

SHA256 = "SHA256"
"""Stands in the commands for hashes of files that are not there yet, as KEY does for the key of a run."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a suite would do.

    Attributes
    ----------
    commands : list of (str, tuple of str)
        What for, and the command.
    push_bytes, time_s : float or None
        Estimates; None where nothing is known to estimate from.
    notes : list of str
        What the estimates rest on, and what could not run.
    """

    commands: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    push_bytes: float | None = None
    time_s: float | None = None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        commands = [{"for": label, "argv": list(argv)} for label, argv in self.commands]
        estimate = {"push_bytes": self.push_bytes, "time_s": self.time_s}
        return {"kind": "dry run", "commands": commands, "estimate": estimate, "notes": self.notes}


def planned_runs(suite: Suite, steps: Sequence[Step]) -> Iterator[tuple[str, Step]]:
    """(label, step) of all runs, in the order of `Schedule`; the sustained ones once per rung."""
    prompts = range(len(suite.prompts))
    usable = [step for step in steps if step.config is not None]
    reference = next((s for s in usable if s.rung.name == suite.reference), None)
    if reference:
        yield from ((f"reference p{p}", reference) for p in prompts)
    for step in usable:
        assert step.config is not None
        for p in prompts:
            if step.config.speculation != "off":
                yield f"{step.rung.name} plain p{p}", step
            yield f"{step.rung.name} verify p{p}", step
    for repeat, index in timed_order(len(usable), suite.repeats, suite.order):
        yield from ((f"{usable[index].rung.name} r{repeat} p{p}", usable[index]) for p in prompts)
    if suite.power.get("sustained_s"):
        yield from ((f"{step.rung.name} sustained 0", step) for step in usable)


def plan(suite: Suite, target: Target, model: Path | None) -> Plan:
    """Plan a suite; a model that is not there is planned with the suite's `expect` figures."""
    drafter = drafting.drafter_of(suite.drafter)
    suite = replace(suite, rungs=drafting.places(suite.rungs, drafter))
    facts = read_model(model).facts if model else ModelFacts(n_expert=1 << 20, n_expert_used=1)
    facts = replace(facts, drafter=drafter)
    flash = dict(suite.flash) if not isinstance(suite.flash, str) else {}
    steps = resolve(suite.rungs, base=suite.base, flash=flash, facts=facts)
    notes = [f"{rung.name}: would not run: {rung.pending}" for rung in suite.rungs if rung.pending]
    notes += [f"{step.rung.name}: would fail: {step.error}" for step in steps if step.error]
    commands: list[tuple[str, tuple[str, ...]]] = []
    variants = dict.fromkeys(step.variant for step in steps if not step.error)
    sizes: list[float | None] = []
    for variant in variants:
        file = model if variant == NATIVE else Path(suite.files[variant]) if variant in suite.files else None
        there = file is not None and file.is_file()
        name = file.name if file else _made_name(suite, variant)
        digest = model_sha256(file) if there and file else SHA256
        _add(commands, f"push {variant} model", target.push_argv(file or name, target.blob(digest, name)))
        sizes.append(float(file.stat().st_size) if there and file else suite.expect.get("model_bytes"))
    if drafter and any(step.config and step.config.draft_model for step in steps):
        _add(commands, "push drafter", target.push_argv(drafter, target.blob(SHA256, Path(drafter).name)))
    runs = list(planned_runs(suite, steps))
    for label, _ in runs:
        job = target.output(f"{slug(label)}-KEY.json")
        _add(commands, label, target.push_argv(Path(job).name, job))
        _add(commands, label, target.launch_argv(job if "/" in job else Path(job).stem))
    copies = target.name != "local"
    push_bytes = (None if None in sizes else sum(s for s in sizes if s is not None)) if copies else 0.0
    if None in sizes and copies:
        notes.append("bytes: not known; the model is not here and the suite has no expect.model_bytes")
    return Plan(
        commands=commands, push_bytes=push_bytes, time_s=_time(suite, len(runs), push_bytes, notes), notes=notes
    )


def _made_name(suite: Suite, variant: str) -> str:
    stem = Path(suite.model).stem or "MODEL"
    return f"{stem}.gguf" if variant == NATIVE else f"{stem}.{variant.replace(', ', '.')}.gguf"


def _add(commands: list[tuple[str, tuple[str, ...]]], label: str, argv: Sequence[str]) -> None:
    if argv:
        commands.append((label, tuple(argv)))


def _time(suite: Suite, n_runs: int, push_bytes: float | None, notes: list[str]) -> float | None:
    rate, speed = suite.expect.get("push_bytes_s"), suite.expect.get("decode_tok_s")
    if not speed:
        notes.append("time: not known; the suite has no expect.decode_tok_s")
        return None
    sustained = sum(1 for rung in suite.rungs if not rung.pending) if suite.power.get("sustained_s") else 0
    seconds = (n_runs - sustained) * suite.tokens / speed + sustained * suite.power.get("sustained_s", 0)
    seconds += max(0, n_runs - 1) * suite.cooldown_s + suite.power.get("idle_s", 0)
    if rate and push_bytes:
        seconds += push_bytes / rate
    notes.append("estimates from the suite's expect figures, not measured; loading and prefill are not counted")
    return seconds
