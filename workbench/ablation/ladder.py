"""The whole job: model → checked steps → runs → rows → files. Both `ablate` and `demo` call `run_ladder`."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.ablation import drafting, precision
from workbench.ablation.phone_profile import PhoneProfile, from_recordings
from workbench.ablation.results import SCHEMA, rows, to_json, write_files
from workbench.ablation.rungs import NATIVE, PACKED, ModelFacts, Step, resolve, to_config
from workbench.ablation.schedule import Outcome, Progress, Reference, Runner, Schedule, model_files
from workbench.ablation.store import RunStore, build_id, machine_id, write_atomic
from workbench.ablation.suites import PHONE, Suite
from workbench.errors import ModelFileError, RunError, WorkbenchError
from workbench.models import resolve_model
from workbench.runner import model_sha256, run_native
from workbench.telemetry import Recording

CALIBRATION_TOKENS = 48


@dataclass(frozen=True, kw_only=True)
class Model:
    """The model of a ladder, as its file describes it."""

    path: Path
    sha256: str
    facts: ModelFacts
    name: str
    expert_bytes_total: int
    file_bytes: int
    synthetic: bool
    context_tokens: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.path.name,
            "name": self.name,
            "sha256": self.sha256,
            "n_expert": self.facts.n_expert,
            "n_expert_used": self.facts.n_expert_used,
            "expert_bytes_total": self.expert_bytes_total,
            "file_bytes": self.file_bytes,
            "synthetic": self.synthetic,
        }


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the runs are made, when not by the installed runner on this machine.

    Attributes
    ----------
    runner : callable
        Makes a run, as `run_native` does.
    build : str
        What identifies the runner there.
    machine : mapping
        What of that machine a timing depends on: a run is reused only where this and the build are equal.
    n_cpu : int or None
        Its cores.
    about : mapping
        Goes into `results.json` and `manifest.json` as `target`.
    """

    runner: Runner
    build: str
    machine: Mapping[str, Any]
    n_cpu: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """What `run_ladder` made.

    Attributes
    ----------
    document : dict
        The one JSON document (`results.json`).
    """

    document: dict[str, Any]
    suite: Suite
    outcomes: list[Outcome]
    reused: int
    ran: int


def read_model(path: Path | str) -> Model:
    """Read what the ladder needs to know about a model.

    Raises
    ------
    ModelFileError
        When it is not a whole GGUF with experts, or is packed already (the ladder starts from the original).
    """
    from workbench.storage.gguf_file import open_gguf
    from workbench.storage.layout import expert_layout

    file = open_gguf(path)
    if file.packed:
        raise ModelFileError(
            f"{path}: a packed file; the ladder starts from the original, which stock llama.cpp can read: "
            f"`workbench unpack` it (the packed one can be given with --packed)"
        )
    layout = expert_layout(file)
    return Model(
        path=file.path,
        sha256=model_sha256(file.path),
        facts=ModelFacts(n_expert=layout.n_expert, n_expert_used=layout.n_expert_used),
        name=str(file.get("general.name", file.path.stem)),
        expert_bytes_total=layout.expert_bytes_total,
        file_bytes=file.size_bytes,
        synthetic=bool(file.get("les.synthetic", False)),
        context_tokens=int(file.get(f"{file.get('general.architecture')}.context_length", 2048)),
    )


def run_ladder(
    path: Path | str,
    suite: Suite,
    folder: Path | str,
    *,
    packed: Path | None = None,
    fresh: bool = False,
    timeout_s: float | None = None,
    place: Place | None = None,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int], Progress] | None = None,
) -> Ladder:
    """Run a suite on a model and write the run folder's data files (the figure is drawn from the document).

    Parameters
    ----------
    packed
        The model's packed form; made in the run folder when a rung needs it and none is given.
    fresh
        Measure again what the folder already holds.
    place
        A device to run on.
    say
        Receives lines for people while it runs.
    progress
        Given the number of runs, returns what is called with the label of every finished run.

    Raises
    ------
    WorkbenchError
        When the model cannot be used at all. A rung that fails is a row, not an error.
    """
    folder = Path(folder)
    suite = with_matched_threads(suite, n_cpu=place.n_cpu if place else os.cpu_count())
    model = read_model(path)
    drafter = drafting.drafter_of(suite.drafter)
    given = {variant: resolve_model(file) for variant, file in suite.files.items()} | (
        {PACKED: packed} if packed else {}
    )
    kept = suite.rungs if _all_given(suite, given) else precision.places(suite.rungs, model.path)
    suite = replace(suite, rungs=drafting.places(kept, drafter))
    model = replace(model, facts=replace(model.facts, drafter=drafter))
    sha256 = {NATIVE: model.sha256}
    machine, build = (place.machine, place.build) if place else (machine_id(), build_id())
    runner = place.runner if place else run_native
    identity = {"build": build, "machine": machine}
    store = RunStore(folder=folder / "runs", identity=identity)
    if fresh:
        store.clear()
        (folder / _PROFILE).unlink(missing_ok=True)
    profile = None
    if suite.flash == PHONE:
        profile = phone_profile(model, suite, folder, identity, runner)
        say(profile.explain())
        suite = replace(suite, flash=profile.toggles)
    flash = dict(suite.flash) if not isinstance(suite.flash, str) else {}
    steps = resolve(suite.rungs, base=suite.base, flash=flash, facts=model.facts)
    models, broken = model_files(steps, model.path, model.sha256, folder, given)
    quantized = _quantize(steps, model, suite, folder, models, broken, say)
    sha256 |= {variant: model_sha256(file) for variant, file in models.items() if variant != NATIVE}
    schedule = Schedule(
        suite=suite, steps=steps, store=store, models=models, sha256=sha256, broken=broken, timeout_s=timeout_s
    )
    schedule.runner, schedule.context_tokens = runner, model.context_tokens
    if progress is not None:
        schedule.progress = progress(schedule.n_runs)
    reference, outcomes = schedule.run()
    document = _document(model, suite, profile, steps, reference, outcomes, identity)
    document["quantized"] = quantized
    if place:
        document["target"] = dict(place.about)
    manifest = {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": document["model"],
        "packed": {"file": models["packed"].name, "sha256": sha256["packed"]} if "packed" in models else None,
        "quantized": {v: {"file": f.name, "sha256": sha256[v]} for v, f in models.items() if v in quantized},
        "suite": suite.to_dict(),
        "profile": document["profile"],
        "build": document["build"],
        "machine": document["machine"],
        "runs": {"made": schedule.ran, "reused": schedule.reused},
    }
    if place:
        manifest["target"] = dict(place.about)
    write_files(folder, document=document, manifest=manifest, outcomes=outcomes)
    return Ladder(document=document, suite=suite, outcomes=outcomes, reused=schedule.reused, ran=schedule.ran)


def _quantize(
    steps: list[Step],
    model: Model,
    suite: Suite,
    folder: Path,
    models: dict[str, Path],
    broken: dict[str, str],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Add the files of variants with a recipe; their reports, and the reasons for those that could not be made."""
    reports: dict[str, Any] = {}
    for step in steps:
        if step.recipe is None or step.variant in models or step.variant in broken or step.error is not None:
            continue
        try:
            made = precision.quantized_file(
                step, model.path, model.sha256, folder, calibration=suite.calibration, say=say
            )
        except WorkbenchError as error:
            broken[step.variant] = f"the model could not be quantized: {error}"
            continue
        models[step.variant], reports[step.variant] = made.path, made.report | {"lines": made.lines}
    return reports


def _given(variant: str, file: str) -> Path:
    try:
        return resolve_model(file)
    except ModelFileError as error:
        raise ModelFileError(
            f"files.{variant}: {error} (--file '{variant}=GGUF', or take it out of the suite)"
        ) from None


def _all_given(suite: Suite, given: Mapping[str, Path]) -> bool:
    """Whether every rung with a recipe has its file already, so that nothing has to be quantized."""
    steps = resolve(suite.rungs, base=suite.base, flash={}, facts=ModelFacts(n_expert=1 << 20, n_expert_used=1))
    return all(step.variant in given for step in steps if step.recipe)


def with_matched_threads(suite: Suite, *, n_cpu: int | None) -> Suite:
    """The suite with one number of compute threads for every rung, stock included: all cores but one for the lanes.

    Kernels split their sums by thread (attention over long contexts), so only equal threads can be bit-exact.
    """
    if suite.base.get("threads"):
        return suite
    return replace(suite, base={**suite.base, "threads": max(1, (n_cpu or 1) - 1)})


def _document(
    model: Model,
    suite: Suite,
    profile: PhoneProfile | None,
    steps: list[Step],
    reference: Reference | None,
    outcomes: list[Outcome],
    identity: Mapping[str, Any],
) -> dict[str, Any]:
    header = next((run.header for o in outcomes for run in (*o.verification, *o.timed.values())), {})
    return {
        "schema": SCHEMA,
        "kind": "ablation",
        "suite": suite.name,
        "model": model.to_dict(),
        "baseline": suite.baseline,
        "reference": reference.name if reference else None,
        "prompts": len(suite.prompts),
        "tokens": suite.tokens,
        "repeats": suite.repeats,
        "profile": profile.to_dict() if profile else None,
        "rows": rows(outcomes, n_prompts=len(suite.prompts), baseline=suite.baseline, synthetic=model.synthetic),
        "pending": [{"rung": rung.name, "reason": rung.pending} for rung in suite.rungs if rung.pending],
        "build": {"id": identity["build"], **header.get("build", {})},
        "machine": {**identity["machine"], "device": header.get("device")},
    }


_PROFILE = "profile.json"


def phone_profile(
    model: Model, suite: Suite, folder: Path, identity: Mapping[str, Any], runner: Runner = run_native
) -> PhoneProfile:
    """The folder's profile when it was made for this model, build, machine and base toggles; else a new one.

    The baseline on native flash gives bytes and reads; a resident run with the same compute threads gives compute.

    Raises
    ------
    RunError
        When a calibration run measured nothing.
    """
    key = json.loads(to_json({"model": model.sha256, "base": suite.base, **identity}))
    path = folder / _PROFILE
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["key"] == key:
            return PhoneProfile.from_dict(kept["profile"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    base = {k: v for k, v in suite.base.items() if k != "experts"}
    baseline = _calibrate(runner, model, suite, base | {"experts": "flash", "lanes": 1})
    threads = baseline.header.get("threads") or base.get("threads", 0)
    _calibrate(runner, model, suite, base | {"experts": "resident", "threads": threads})
    resident = _calibrate(runner, model, suite, base | {"experts": "resident", "threads": threads})
    try:
        profile = from_recordings(resident, baseline)
    except (TypeError, ValueError) as error:
        raise RunError("calibration measured no compute or no reads: no flash profile can be derived") from error
    write_atomic(path, to_json({"key": key, "profile": profile.to_dict()}, indent=1))
    return profile


def _calibrate(runner: Runner, model: Model, suite: Suite, values: Mapping[str, Any]) -> Recording:
    config = to_config(values, flash={}, facts=model.facts)
    return runner(
        {
            "model": str(model.path),
            "model_sha256": model.sha256,
            "config": config.to_dict(),
            "prompt": suite.prompts[0],
            "n_predict": min(suite.tokens, CALIBRATION_TOKENS),
            "force_tokens": None,
            "ignore_eos": True,
            "logits_path": None,
            "telemetry_path": None,
            "run_id": "calibration",
        }
    )
