"""Rungs that draft: where their drafter comes from, and whether they still generate the same tokens.

A verified batch is wider than one token. With `batch_invariant` its products are those of single tokens, and the rung
is compared bit by bit with plain greedy decoding of the same file; without, it runs other kernels and is compared
token by token. Where the two part, a control decodes the plain tokens once more, without any drafter, in batches of
every width a draft can have: if that alone moves the two logits as far as they are apart, it was a near-tie that
batched numerics decide; if not, an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from workbench.ablation.rungs import AUTO, Rung
from workbench.config import RunConfig
from workbench.lossless import BIT_EXACT, DIFFERS, NEAR_TIE, SAME_TOKENS, LogitsVerdict, compare_logits, not_checked

EMBEDDED = "embedded"
AGAINST = "plain decoding of the same file"
DRAFT_MOST = 7
"""The longest draft the control allows for where the drafter's trained block decides."""


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
    """What plain greedy decoding generated, and the file of its logits (float32 rows of `n_vocab`).

    `model`, `config` and `prompt` are what it ran on, for the control.
    """

    tokens: list[int]
    logits: Path
    n_vocab: int
    model: Path
    config: RunConfig
    prompt: str
    _gaps: dict[tuple[int, int], tuple[float, ...]] = field(default_factory=dict)

    def gaps(self, at: int, other: int) -> tuple[float, ...]:
        """Logit of the chosen token minus that of `other` at position `at`: decoded singly, then by batch width.

        Widths 2 to one more than the longest draft, over all tokens up to there, so that keys and values are those of
        wide batches too. Without a drafter, in this process.
        """
        if (at, other) not in self._gaps:
            row = np.memmap(self.logits, dtype="<f4", mode="r").reshape(-1, self.n_vocab)[at]
            widths = range(2, 2 + (self.config.draft_max or DRAFT_MOST))
            found = [self._row(at, width) for width in widths]
            chosen = self.tokens[at]
            self._gaps[at, other] = tuple(float(r[chosen] - r[other]) for r in (row, *found))
        return self._gaps[at, other]

    def _row(self, at: int, width: int) -> np.ndarray:
        from workbench.session import Session

        quick = replace(plain(self.config), emulate_bandwidth_bytes_s=0, emulate_latency_ns=0, telemetry="off")
        with Session(self.model, quick) as session:
            prompt = session.tokenize(self.prompt)
            tokens, start = prompt + self.tokens, 0
            row = np.empty(0, np.float32)
            while start < len(prompt) + at:
                size = min(quick.n_batch, len(prompt) - start) if start < len(prompt) else width
                part = tokens[start : start + size]
                wanted = len(prompt) - 1 + at - start  # the row that chose token `at`
                want = [i == wanted for i in range(len(part))]
                logits = session.evaluate(part, range(start, start + len(part)), [0] * len(part), want)
                row = logits[0] if any(want) else row
                start += len(part)
        return row


def compare(plain: Plain, candidate: Sequence[int], logits: Path) -> LogitsVerdict:
    """Compare tokens, and with `batch_invariant` the logits they were chosen from, bit by bit."""
    tokens = compare_tokens(plain, candidate)
    if tokens.verdict != SAME_TOKENS or not plain.config.batch_invariant:
        return tokens
    bits = compare_logits(plain.logits, logits, plain.n_vocab, against=AGAINST)
    if bits.verdict != DIFFERS:
        return bits
    moved = f"{bits.differing:,} of {bits.compared:,} logits differ, by up to {bits.max_abs_diff:.2g}"
    return replace(tokens, reason=f"the same tokens, but {moved}: this machine's kernels depend on batch width")


def compare_tokens(plain: Plain, candidate: Sequence[int]) -> LogitsVerdict:
    """Compare a drafted generation with the plain one, and classify a difference by the control."""
    reference = plain.tokens
    if not reference or len(reference) != len(candidate):
        return not_checked(f"{len(reference)} and {len(candidate)} tokens were generated", against=AGAINST)
    n = len(reference)
    first = next((i for i in range(n) if reference[i] != candidate[i]), None)
    if first is None:
        return LogitsVerdict(verdict=SAME_TOKENS, compared=n, positions=n, against=AGAINST)
    gap, *moved = plain.gaps(first, candidate[first])
    most = max(abs(g - gap) for g in moved)
    return LogitsVerdict(
        verdict=NEAR_TIE if gap <= most else DIFFERS,
        compared=n,
        differing=n - first,
        positions=n,
        first_differing_position=first,
        against=AGAINST,
        reason=f"other tokens from {first} on, where the two logits are {gap:.2g} apart; without a drafter, "
        f"batches of 2 to {len(moved) + 1} tokens move that by up to {most:.2g}",
    )


def worst(verdicts: Sequence[LogitsVerdict]) -> LogitsVerdict:
    """One verdict over prompts or repeats: the worst of them, with all tokens counted."""
    order = (BIT_EXACT, SAME_TOKENS, NEAR_TIE, DIFFERS)
    unchecked = next((v for v in verdicts if v.verdict not in order), None)
    if unchecked or not verdicts:
        return unchecked or not_checked("nothing was compared", against=AGAINST)
    found = max(verdicts, key=lambda v: order.index(v.verdict))
    return replace(found, compared=sum(v.compared for v in verdicts), differing=sum(v.differing for v in verdicts))
