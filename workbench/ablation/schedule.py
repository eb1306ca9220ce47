"""Run a suite: one process per run, verification first, then interleaved timed repeats; resumable.

Order: the reference generates greedily and keeps its logits. Every rung is then fed the reference's tokens once
(teacher-forced: this verifies it and warms up), and its logits are compared. The timed repeats generate freely, in the
order A B C … C B A, so that slow drift of the machine meets every rung alike. A rung that fails stops alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.ablation import drafting, precision
from workbench.ablation.rungs import NATIVE, PACKED, Step
from workbench.ablation.store import RunStore
from workbench.ablation.suites import ABBA, Suite
from workbench.config import RunConfig
from workbench.errors import WorkbenchError
from workbench.lossless import LogitsVerdict, combine, compare_hashes, compare_logits, not_checked
from workbench.runner import run_native
from workbench.telemetry import Recording, summarize

Progress = Callable[[str], None]
Runner = Callable[..., Recording]
"""Called as `run_native(job, timeout=…)` is."""
_NOT_RUN = not_checked("the rung did not run")


@dataclass(kw_only=True)
class Outcome:
    """What became of one rung.

    Attributes
    ----------
    verification : list of Recording
        One per prompt.
    timed : dict
        (repeat, prompt) → recording.
    plain : list of Plain
        Of rungs that draft: what plain decoding generates, one per prompt.
    lossless : LogitsVerdict
        Logits of the verification runs against the reference's.
    timed_lossless : LogitsVerdict
        Logits hashes of all timed runs against the reference's.
    sustained : list of Recording
        Of suites with a power protocol: runs in a row that together decode for its seconds.
    error : str or None
        Why the rung failed.
    failure : str or None
        The kind of failure, where the device target could tell (cable lost, killed for memory, …).
    """

    step: Step
    verification: list[Recording] = field(default_factory=list)
    timed: dict[tuple[int, int], Recording] = field(default_factory=dict)
    plain: list[drafting.Plain] = field(default_factory=list)
    lossless: LogitsVerdict = _NOT_RUN
    timed_lossless: LogitsVerdict = _NOT_RUN
    sustained: list[Recording] = field(default_factory=list)
    error: str | None = None
    failure: str | None = None

    def fail(self, error: Exception, where: str = "") -> None:
        """Take down why the rung failed."""
        self.error, self.failure = where + str(error), getattr(error, "kind", None)

    def repeats(self, n_prompts: int) -> dict[int, list[Recording]]:
        """Complete repeats: number → recordings in the order of the prompts."""
        numbers = sorted({repeat for repeat, _ in self.timed})
        rounds = {r: [self.timed[r, p] for p in range(n_prompts) if (r, p) in self.timed] for r in numbers}
        return {r: recordings for r, recordings in rounds.items() if len(recordings) == n_prompts}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The run that all others are compared with, per prompt."""

    name: str
    recordings: list[Recording]
    logits: list[Path]
    n_vocab: int


def timed_order(n_rungs: int, repeats: int, order: str = ABBA) -> list[tuple[int, int]]:
    """(repeat, rung) in running order: forwards, then backwards, and so on; or (`abab`) always forwards."""
    pairs = []
    for repeat in range(repeats):
        rungs = range(n_rungs) if repeat % 2 == 0 or order != ABBA else reversed(range(n_rungs))
        pairs += [(repeat, rung) for rung in rungs]
    return pairs


@dataclass(kw_only=True)
class Schedule:
    """Runs the steps of a suite, reusing what the store holds.

    Attributes
    ----------
    models : dict
        Variant (`Step.variant`) → file; `sha256` are their hashes. A variant that could not be made is in `broken`
        with the reason.
    timeout_s : float or None
        Limit of a single run.
    runner : callable
        Makes a run: `run_native`, or that of a device target.
    context_tokens : int
        The model's context: what a sustained run may span at most.
    reused, ran : int
        Runs taken from the store, and made.
    """

    suite: Suite
    steps: Sequence[Step]
    store: RunStore
    models: dict[str, Path]
    sha256: dict[str, str]
    broken: dict[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    runner: Runner | None = None
    context_tokens: int = 2048
    progress: Progress = lambda label: None
    reused: int = 0
    ran: int = 0
    reference_errors: dict[str, str] = field(default_factory=dict)

    @property
    def n_runs(self) -> int:
        """Runs of the whole schedule when nothing fails."""
        return len(self.suite.prompts) * (1 + len(self.steps) * (1 + self.suite.repeats))

    def run(self) -> tuple[Reference | None, list[Outcome]]:
        """Run everything that is not yet in the store."""
        self.store.folder.mkdir(parents=True, exist_ok=True)
        outcomes = [Outcome(step=step, error=step.error or self.broken.get(step.variant)) for step in self.steps]
        reference = self._reference(outcomes)
        for outcome in outcomes:
            if outcome.error is None:
                self._verify(outcome, reference)
        for repeat, index in timed_order(len(outcomes), self.suite.repeats, self.suite.order):
            if outcomes[index].error is None:
                self._time(outcomes[index], repeat)
        for outcome in outcomes:
            if outcome.error is None and self.suite.power.get("sustained_s"):
                self._sustain(outcome, self.suite.power["sustained_s"])
        for outcome in outcomes:
            outcome.timed_lossless = self._compare_timed(outcome, reference)
        return reference, outcomes

    def _job(self, step: Step, config: RunConfig, prompt: int, **more: Any) -> dict[str, Any]:
        return {
            "model": str(self.models[step.variant]),
            "model_sha256": self.sha256[step.variant],
            "config": config.to_dict(),
            "prompt": self.suite.prompts[prompt],
            "n_predict": self.suite.tokens,
            "force_tokens": None,
            "ignore_eos": True,
            "logits_path": None,
        } | more

    def _run(self, label: str, job: dict[str, Any], needed: Path | None = None) -> Recording:
        """One run: from the store if it is there (and the file `needed` too), else now."""
        path = self.store.path(label, job)
        kept = self.store.finished(path)
        if kept is not None and (needed is None or needed.exists()):
            self.reused += 1
            self.progress(label)
            return kept
        path.unlink(missing_ok=True)
        sent = {k: v for k, v in job.items() if k != "purpose"}
        run = self.runner or run_native
        recording = run(sent | {"telemetry_path": str(path), "run_id": path.stem}, timeout=self.timeout_s)
        self.ran += 1
        self.progress(label)
        return recording

    def _reference(self, outcomes: list[Outcome]) -> Reference | None:
        """The reference rung's greedy run; when it fails, that of the next rung that works (it is named)."""
        ordered = sorted(outcomes, key=lambda outcome: outcome.step.rung.name != self.suite.reference)
        for outcome in ordered:
            if outcome.error is None:
                try:
                    return self._make_reference(outcome.step)
                except WorkbenchError as error:
                    outcome.fail(error)
                    self.reference_errors[outcome.step.rung.name] = str(error)
        return None

    def _make_reference(self, step: Step) -> Reference:
        assert step.config is not None
        recordings, logits = [], []
        for prompt in range(len(self.suite.prompts)):
            job = self._job(step, step.config, prompt, purpose="reference")
            label = f"reference p{prompt}"
            path = self.store.path(label, job, ".f32")
            recordings.append(self._run(label, job | {"logits_path": str(path)}, needed=path))
            logits.append(path)
        name = step.rung.name if step.rung.name == self.suite.reference else f"{step.rung.name}, not stock"
        return Reference(
            name=name, recordings=recordings, logits=logits, n_vocab=int(recordings[0].header["model"]["n_vocab"])
        )

    def _verify(self, outcome: Outcome, reference: Reference | None) -> None:
        """Feed the reference's tokens, compare the logits; this is also the warm-up."""
        step = outcome.step
        assert step.config is not None
        if step.config.speculation != "off":
            self._same_tokens(outcome)
            return
        if step.recipe:
            self._measure(outcome, reference)
            return
        verdicts = []
        try:
            for prompt in range(len(self.suite.prompts)):
                if reference is None:
                    raise WorkbenchError("no rung could make a reference run")
                tokens, purpose = reference.recordings[prompt].generated, f"verify {reference.logits[prompt].stem}"
                job = self._job(step, step.config, prompt, force_tokens=tokens, n_predict=len(tokens), purpose=purpose)
                label = f"{step.rung.name} verify p{prompt}"
                kept = self.store.path(label, job, ".verdict.json")
                logits = self.store.path(label, job, ".f32")
                outcome.verification.append(self._run(label, job | {"logits_path": str(logits)}, needed=kept))
                verdict = self.store.verdict(kept)
                if logits.exists() or verdict is None:
                    verdict = compare_logits(
                        reference.logits[prompt], logits, reference.n_vocab, against=reference.name
                    )
                    self.store.save_verdict(kept, verdict)
                    logits.unlink(missing_ok=True)
                verdicts.append(verdict)
        except WorkbenchError as error:
            outcome.fail(error)
            outcome.lossless = not_checked(f"the rung failed: {error}", against=reference.name if reference else "-")
            return
        assert reference is not None
        outcome.lossless = combine(verdicts, against=reference.name)

    def _measure(self, outcome: Outcome, reference: Reference | None) -> None:
        """For weights that differ on purpose: warm up, and measure the loss on held-out text."""
        step = outcome.step
        assert step.config is not None
        against = reference.name if reference else "the model as given"
        try:
            for prompt in range(len(self.suite.prompts)):
                label = f"{step.rung.name} verify p{prompt}"
                outcome.verification.append(self._run(label, self._job(step, step.config, prompt, purpose="warm-up")))
        except WorkbenchError as error:
            outcome.fail(error)
            outcome.lossless = not_checked(f"the rung failed: {error}", against=against)
            return
        try:
            about: dict[str, Any] = {"purpose": "quality", "config": step.config.to_dict(), "against": against}
            about |= {"model_sha256": self.sha256[step.variant], "original": self.sha256[NATIVE]}
            about["text_sha256"] = precision.text_sha256(self.suite.held_out)
            kept = self.store.path(f"{step.rung.name} quality", about, ".verdict.json")
            verdict = self.store.verdict(kept)
            if verdict is None:
                verdict = precision.measure(
                    self.models[NATIVE],
                    self.models[step.variant],
                    step.config,
                    held_out=self.suite.held_out,
                    against=against,
                )
                self.store.save_verdict(kept, verdict)
            outcome.lossless = verdict
        except WorkbenchError as error:
            outcome.lossless = not_checked(str(error), against=against)

    def _same_tokens(self, outcome: Outcome) -> None:
        """For verified drafts: the same file and toggles without drafting must generate the same tokens."""
        step = outcome.step
        assert step.config is not None
        verdicts = []
        try:
            for prompt in range(len(self.suite.prompts)):
                label = f"{step.rung.name} plain p{prompt}"
                job = self._job(step, drafting.plain(step.config), prompt, purpose="plain")
                logits = self.store.path(label, job, ".f32")
                reference = self._run(label, job | {"logits_path": str(logits)}, needed=logits)
                label = f"{step.rung.name} verify p{prompt}"
                job = self._job(step, step.config, prompt, purpose="same tokens")
                verified = self.store.path(label, job, ".f32")
                drafted = self._run(label, job | {"logits_path": str(verified)}, needed=verified)
                outcome.verification.append(drafted)
                n_vocab = int(reference.header["model"]["n_vocab"])
                outcome.plain.append(
                    drafting.Plain(
                        tokens=reference.generated,
                        logits=logits,
                        n_vocab=n_vocab,
                        model=self.models[step.variant],
                        config=step.config,
                        prompt=self.suite.prompts[prompt],
                    )
                )
                verdicts.append(drafting.compare(outcome.plain[-1], drafted.generated, verified))
        except WorkbenchError as error:
            outcome.fail(error)
            outcome.lossless = not_checked(f"the rung failed: {error}", against=drafting.AGAINST)
            return
        outcome.lossless = drafting.worst(verdicts)

    def _time(self, outcome: Outcome, repeat: int) -> None:
        step = outcome.step
        assert step.config is not None
        try:
            for prompt in range(len(self.suite.prompts)):
                job = self._job(step, step.config, prompt, purpose=f"timed {repeat}")
                outcome.timed[repeat, prompt] = self._run(f"{step.rung.name} r{repeat} p{prompt}", job)
        except WorkbenchError as error:
            outcome.fail(error, f"repeat {repeat + 1} of {self.suite.repeats}: ")

    def _sustain(self, outcome: Outcome, seconds: int) -> None:
        """Decode for so many seconds: runs in a row whose length follows from the speed measured before."""
        step = outcome.step
        assert step.config is not None
        repeats = outcome.repeats(len(self.suite.prompts)).values()
        rates = [summarize(*runs)["decode_tok_s"] for runs in repeats]
        known = sorted(rate for rate in rates if rate)
        if not known:
            return
        rate = known[len(known) // 2]
        n_predict = max(2, min(int(seconds * rate) + 2, self.context_tokens - len(self.suite.prompts[0].encode())))
        decoded_s = 0.0
        try:
            for part in range(2 * math.ceil(seconds * rate / (n_predict - 1))):
                job = self._job(step, step.config, 0, n_predict=n_predict, purpose=f"sustained {part}")
                recording = self._run(f"{step.rung.name} sustained {part}", job)
                outcome.sustained.append(recording)
                decoded_s += (recording.end or {}).get("decode_ns", 0) / 1e9
                if decoded_s >= seconds:
                    return
        except WorkbenchError as error:
            outcome.fail(error, "sustained run: ")

    def _compare_timed(self, outcome: Outcome, reference: Reference | None) -> LogitsVerdict:
        if outcome.step.config is not None and outcome.step.config.speculation != "off":
            pairs = [(outcome.plain[p], run) for (_, p), run in sorted(outcome.timed.items()) if p < len(outcome.plain)]
            checked = [drafting.compare_tokens(plain, run.generated) for plain, run in pairs]
            return drafting.worst(checked)
        if outcome.step.recipe:
            return self._compare_with_itself(outcome)
        if reference is None:
            return not_checked("there is no reference run")
        verdicts = [
            compare_hashes(reference.recordings[prompt].tokens, recording.tokens, against=reference.name)
            for (_, prompt), recording in sorted(outcome.timed.items())
        ]
        return combine(verdicts, against=reference.name)

    def _compare_with_itself(self, outcome: Outcome) -> LogitsVerdict:
        """Weights that differ have no reference but their own first repeat: the same tokens must give the same bits."""
        against = "its own first repeat"
        pairs = [(outcome.timed.get((0, p)), run) for (repeat, p), run in sorted(outcome.timed.items()) if repeat]
        verdicts = [compare_hashes(a.tokens, b.tokens, against=against) for a, b in pairs if a is not None]
        return combine(verdicts, against=against)


def model_files(
    steps: Sequence[Step], source: Path, sha256: str, folder: Path, given: Mapping[str, Path]
) -> tuple[dict[str, Path], dict[str, str]]:
    """Files per variant, and the reason for each variant that could not be made.

    Variants in `given` are there already. The packed form is made at most once per source (its name carries the
    source's hash), in `folder`.
    """
    from workbench.storage.pack import pack

    models, broken = {NATIVE: source, **given}, {}
    if PACKED not in given and any(step.variant == PACKED and step.error is None for step in steps):
        target = folder / f"{source.stem}-{sha256[:12]}.packed.gguf"
        try:
            if not target.exists():
                folder.mkdir(parents=True, exist_ok=True)
                pack(source, target)
            models[PACKED] = target
        except WorkbenchError as error:
            broken[PACKED] = f"the packed model could not be made: {error}"
    return models, broken
