"""The lossless ladder between two models or two configurations: evidence, controls, one verdict per level."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.config import RunConfig
from workbench.errors import RunError, ToggleError
from workbench.evals import evidence as ev
from workbench.evals.harness import EvalSpec, Evaluation, eval_config, evaluate
from workbench.evals.store import SCHEMA
from workbench.evals.tasks import CHOICE, LOCAL, local_tasks
from workbench.evals.verdict import (
    LEVELS,
    LOSSLESS,
    NOT_LOSSLESS,
    BitExactLevel,
    DistributionLevel,
    GreedyLevel,
    LevelVerdict,
    TaskLevel,
)
from workbench.lossless import combine, compare_logits

CONTROL = "control"


@dataclass(frozen=True, kw_only=True)
class Side:
    """A model and its toggles."""

    model: Path
    config: RunConfig


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What `compare` found."""

    levels: tuple[LevelVerdict, ...]
    document: dict[str, Any] = field(default_factory=dict)

    def level(self, number: int) -> LevelVerdict:
        """The verdict of a level.

        Raises
        ------
        KeyError
            When it was not asked for.
        """
        return {v.level: v for v in self.levels}[number]

    def passes(self, required: int | None) -> bool:
        """Whether the required level is lossless; with None, whether no level is refuted."""
        if required is None:
            return all(v.verdict != NOT_LOSSLESS for v in self.levels)
        return self.level(required).verdict == LOSSLESS


def matched(reference: Side, candidate: Side) -> tuple[Side, Side]:
    """Both sides with the sizes of `eval_config` and equal threads, batch sizes and context.

    Kernels split their sums by thread and batch width, so only equal ones can be bit-exact.

    Raises
    ------
    ToggleError
        When the two were given different ones.
    """
    second = eval_config(candidate.config)
    shared = ("threads", "n_ctx", "n_batch", "n_ubatch", "n_seq_max")
    plain = RunConfig()
    for name in shared:
        given = getattr(reference.config, name)
        if given not in (getattr(plain, name), getattr(second, name)):
            raise ToggleError(f"{name}: reference has {given}, candidate {getattr(second, name)}; they must be equal")
    first = replace(eval_config(reference.config), **{name: getattr(second, name) for name in shared})
    return replace(reference, config=first), replace(candidate, config=second)


def compare(
    reference: Side,
    candidate: Side,
    *,
    spec: EvalSpec | None = None,
    levels: Sequence[int] = (1, 2, 3, 4),
    margin: float = 0.01,
    root: Path = Path("runs/evals"),
    given: ev.Material | None = None,
    fresh: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: None,
    wrap: Any = None,
) -> Comparison:
    """Run the ladder.

    Parameters
    ----------
    spec
        Tasks of level 4; default: the local suite.
    progress
        Show bars while tasks are scored.
    given
        Texts of levels 1 to 3; default: from all local tasks, whichever of them level 4 scores.
    wrap
        Makes the candidate's lm-eval model; for tests.
    """
    spec = spec or EvalSpec()
    unknown = sorted(set(levels) - set(LEVELS))
    if unknown or not levels:
        raise ToggleError(f"levels={unknown or list(levels)}: choose from {', '.join(map(str, LEVELS))}")
    reference, candidate = matched(reference, candidate)
    verdicts: list[LevelVerdict] = []
    if set(levels) & {1, 2, 3}:
        given = given or ev.material(replace(spec, tasks=()).local() or local_tasks())
        if not set(levels) & {1, 3}:  # greedy identity needs the texts' beginnings only
            given = replace(given, text_tokens=given.prompt_tokens)
        verdicts += _logit_levels(reference, candidate, given, levels, margin, root, say)
    scores: dict[str, Any] = {}
    if 4 in levels:
        verdict, scores = _task_level(reference, candidate, spec, margin, root, fresh, progress, say, wrap)
        verdicts.append(verdict)
    document = {
        "schema": SCHEMA,
        "kind": "comparison",
        "reference": _describe(reference),
        "candidate": _describe(candidate),
        "suite": spec.suite,
        "margin": margin,
        "levels": [v.to_dict() for v in verdicts],
        "scores": scores,
    }
    return Comparison(levels=tuple(verdicts), document=document)


def _describe(side: Side) -> dict[str, Any]:
    from workbench.runner import model_sha256
    from workbench.storage.gguf_file import open_gguf

    return {
        "model": side.model.name,
        "model_sha256": model_sha256(side.model),
        "file_bytes": side.model.stat().st_size,
        "synthetic": bool(open_gguf(side.model).get("les.synthetic", False)),
        "config": side.config.to_dict(),
    }


def _logit_levels(
    reference: Side,
    candidate: Side,
    given: ev.Material,
    levels: Sequence[int],
    margin: float,
    root: Path,
    say: Callable[[str], None],
) -> list[LevelVerdict]:
    folder = root / "evidence.partial"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        say("reference: greedy continuations and texts")
        base = ev.collect(reference.model, reference.config, given, folder, "reference")
        say("control: the reference again")
        again = ev.collect(reference.model, reference.config, given, folder, CONTROL, force=base)
        say("candidate: fed the same tokens")
        other = ev.collect(candidate.model, candidate.config, given, folder, "candidate", force=base)
        if other.tokenizer != base.tokenizer:
            raise RunError("the two models have different tokenizers: their tokens cannot be compared")
        found: list[LevelVerdict] = []
        if 1 in levels:
            found.append(BitExactLevel()(_logits(base, other), _logits(base, again)))
        if 2 in levels:
            n = given.new_tokens
            found.append(
                GreedyLevel()(
                    ev.cases(base, other.greedy, n),
                    ev.cases(base, again.greedy, n),
                    ev.cases(base, base.side_by_side, n),
                    base.width_noise,
                )
            )
        if 3 in levels:
            found.append(DistributionLevel(margin=margin)(ev.positions(base, other), ev.positions(base, again)))
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _logits(a: ev.Evidence, b: ev.Evidence) -> Any:
    pairs = ((a.forced_logits, b.forced_logits), (a.text_logits, b.text_logits))
    return combine([compare_logits(x, y, a.n_vocab) for x, y in pairs])


def _task_level(
    reference: Side,
    candidate: Side,
    spec: EvalSpec,
    margin: float,
    root: Path,
    fresh: bool,
    progress: bool,
    say: Callable[[str], None],
    wrap: Any,
) -> tuple[LevelVerdict, dict[str, Any]]:
    if spec.suite == LOCAL and not spec.tasks:  # plain texts have no score per item: they are level 3's
        spec = replace(spec, tasks=tuple(task.name for task in spec.local() if task.kind == CHOICE))
    say(f"reference: suite {spec.suite}")
    base = evaluate(reference.model, reference.config, spec, root=root, fresh=fresh, progress=progress)
    say("control: the reference's tasks again, in a new session")
    again = evaluate(reference.model, reference.config, spec, root=root / CONTROL, fresh=True, progress=progress)
    say(f"candidate: suite {spec.suite}")
    other = evaluate(candidate.model, candidate.config, spec, root=root, fresh=fresh, progress=progress, wrap=wrap)
    verdict = TaskLevel(margin=margin)(paired(base, other), paired(base, again))
    return verdict, {"reference": base.results["tasks"], "candidate": other.results["tasks"]}


def paired(reference: Evaluation, candidate: Evaluation) -> pd.DataFrame:
    """Items of both, matched by task and item; tasks without a score per item (perplexity) are left out.

    Raises
    ------
    RunError
        When the two did not see the same items.
    """
    keys = ["task", "item", "doc_hash"]
    a, b = (e.samples[e.samples["value"].notna()] for e in (reference, candidate))
    both = a.merge(b, on=keys, suffixes=("", "_other"), validate="one_to_one")
    if len(both) != len(a) or len(a) != len(b):
        raise RunError(f"the two evaluations share {len(both)} of {len(a)} and {len(b)} items")
    equal = [
        list(x) == list(y) and s == t
        for x, y, s, t in zip(both["lls"], both["lls_other"], both["answer"], both["answer_other"], strict=True)
    ]
    return pd.DataFrame(
        {
            "task": both["task"],
            "item": both["item"],
            "cluster": both["cluster"],
            "reference": both["value"],
            "candidate": both["value_other"],
            "chance": both["chance"],
            "equal": equal,
        }
    )


def labels(*sides: Mapping[str, Any]) -> list[str]:
    """What a table over these sides must say: emulated, synthetic. A side has `config` and, maybe, `synthetic`."""
    emulated = any(side["config"].get("emulate_bandwidth_bytes_s") for side in sides)
    found = {"emulated": emulated, "synthetic": any(side.get("synthetic") for side in sides)}
    return [label for label, holds in found.items() if holds]
