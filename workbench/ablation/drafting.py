"""Rungs that draft: where their drafter comes from, and whether they still generate the same tokens.

A verified batch is wider than one token and runs other kernels, so such a rung is not compared bit by bit but token by
token with plain greedy decoding of the same file. Where the two part, the gap between the plain run's two best logits
says whether it was a near-tie that batched numerics decide, or an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from workbench.ablation.rungs import AUTO, Rung
from workbench.config import RunConfig
from workbench.lossless import DIFFERS, NEAR_TIE, SAME_TOKENS, LogitsVerdict, not_checked

EMBEDDED = "embedded"
AGAINST = "plain decoding of the same file"
NEAR_TIE_LOGITS = 0.5
"""Two best logits closer than this are a near-tie: batch width alone moves Q8_0 logits by up to some tenths."""


def drafter_of(name: str) -> str:
    """A suite's drafter as a path; `embedded` is that of the demo model, empty is none."""
    if name != EMBEDDED:
        return name
    from workbench.demo import demo_drafter

    return str(demo_drafter())


def places(rungs: Sequence[Rung], drafter: str) -> tuple[Rung, ...]:
    """The rungs, those that need a drafter marked as pending when there is none."""
    if drafter:
        return tuple(rungs)
    reason = "no drafter given: --draft FILE, trained for this model"
    return tuple(
        replace(rung, pending=rung.pending or reason) if rung.changes.get("draft_model") == AUTO else rung
        for rung in rungs
    )


def plain(config: RunConfig) -> RunConfig:
    """The same run without drafting."""
    return replace(config, speculation="off", draft_model="", draft_max=0, draft_min_p=0.0, draft_adaptive=False)


@dataclass(frozen=True, kw_only=True)
class Plain:
    """What plain greedy decoding generated, and the file of its logits (float32 rows of `n_vocab`)."""

    tokens: list[int]
    logits: Path
    n_vocab: int


def compare_tokens(plain: Plain, candidate: Sequence[int]) -> LogitsVerdict:
    """Compare a drafted generation with the plain one, and classify a difference by the logits there."""
    reference = plain.tokens
    if not reference or len(reference) != len(candidate):
        return not_checked(f"{len(reference)} and {len(candidate)} tokens were generated", against=AGAINST)
    n = len(reference)
    first = next((i for i in range(n) if reference[i] != candidate[i]), None)
    if first is None:
        return LogitsVerdict(verdict=SAME_TOKENS, compared=n, positions=n, against=AGAINST)
    row = np.memmap(plain.logits, dtype="<f4", mode="r").reshape(-1, plain.n_vocab)[first]
    second, best = np.sort(np.partition(row, -2)[-2:])
    gap = float(best - second)
    return LogitsVerdict(
        verdict=NEAR_TIE if gap < NEAR_TIE_LOGITS else DIFFERS,
        compared=n,
        differing=n - first,
        positions=n,
        first_differing_position=first,
        against=AGAINST,
        reason=f"other tokens from {first} on, where the two best logits are {gap:.2g} apart",
    )


def worst(verdicts: Sequence[LogitsVerdict]) -> LogitsVerdict:
    """One verdict over prompts or repeats: the worst of them, with all tokens counted."""
    order = (SAME_TOKENS, NEAR_TIE, DIFFERS)
    unchecked = next((v for v in verdicts if v.verdict not in order), None)
    if unchecked or not verdicts:
        return unchecked or not_checked("nothing was compared", against=AGAINST)
    found = max(verdicts, key=lambda v: order.index(v.verdict))
    return replace(found, compared=sum(v.compared for v in verdicts), differing=sum(v.differing for v in verdicts))
