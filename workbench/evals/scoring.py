"""Score continuations through `Session.evaluate`: contexts shared, many sequences per decode call.

A *wave* is a set of contexts held in the KV cache together. Its contexts are decoded side by side, one sequence each;
then every sequence is copied to as many as it has continuations, and these are decoded side by side. A lone
continuation is decoded with its context; continuations of one token need no second pass.

Which requests share a wave follows from the requests and `Limits` alone, never from toggles or cache state, so equal
requests and limits give bit-equal scores under every toggle. Other limits use kernels of another batch width: scores
then agree within float noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import ToggleError

if TYPE_CHECKING:
    from workbench.session import Session

Tokens = tuple[int, ...]
Score = tuple[float, bool]
_MAX_LOGITS = 1 << 25


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What fits into a wave.

    Attributes
    ----------
    n_batch : int
        Tokens per decode call.
    n_cells : int
        Tokens of all sequences that can be held at once: the session's `n_ctx`.
    n_seq : int
        Sequences side by side: the session's `n_seq_max`.
    """

    n_batch: int
    n_cells: int
    n_seq: int

    @property
    def wave_cells(self) -> int:
        """Tokens that groups are gathered up to; one that is longer makes a wave alone.

        A quarter of what fits: attention costs as if every token saw all that is held.
        """
        return max(1, self.n_cells // 4)


@dataclass(frozen=True)
class Group:
    """A context with its continuations; `index` gives each continuation's place among the requests."""

    context: Tokens
    continuations: tuple[Tokens, ...]
    index: tuple[int, ...]

    @property
    def n_cells(self) -> int:
        return len(self.context) + sum(len(c) - 1 for c in self.continuations)

    @property
    def n_seq(self) -> int:
        return len(self.continuations)


@dataclass(frozen=True)
class Wave:
    """Groups decoded together."""

    groups: tuple[Group, ...]

    @property
    def n_tokens(self) -> int:
        """Tokens decoded for this wave."""
        return sum(group.n_cells for group in self.groups)

    def key(self, limits: Limits) -> str:
        """Hash of all that its scores depend on besides the model and the run's configuration."""
        values = [[g.context, g.continuations] for g in self.groups]
        text = json.dumps([limits.n_batch, values], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def fit(context: Sequence[int], continuation: Sequence[int], max_length: int) -> tuple[Tokens, Tokens]:
    """Cut a context from the left so that it and the continuation fit, as lm-eval does.

    Raises
    ------
    ToggleError
        When the continuation alone is longer than the model's context.
    """
    if len(continuation) > max_length:
        raise ToggleError(f"a continuation of {len(continuation)} tokens exceeds the context of {max_length}")
    whole = [*context, *continuation][-(max_length + 1) :]
    cut = len(whole) - len(continuation)
    return tuple(whole[:cut]), tuple(whole[cut:])


def plan(requests: Iterable[tuple[Tokens, Tokens]], limits: Limits) -> list[Wave]:
    """Group requests by context, longest first, and pack the groups into waves."""
    by_context: dict[Tokens, list[tuple[int, Tokens]]] = {}
    for index, (context, continuation) in enumerate(requests):
        by_context.setdefault(context, []).append((index, continuation))
    groups = []
    for context in sorted(by_context, key=lambda c: (-len(c), c)):
        items = by_context[context]
        for part in _parts(context, items, limits):
            groups.append(Group(context, tuple(c for _, c in part), tuple(i for i, _ in part)))
    waves: list[Wave] = []
    wave: list[Group] = []
    for group in groups:
        if wave and (
            sum(g.n_cells for g in wave) + group.n_cells > limits.wave_cells
            or sum(g.n_seq for g in wave) + group.n_seq > limits.n_seq
        ):
            waves.append(Wave(tuple(wave)))
            wave = []
        wave.append(group)
    return [*waves, Wave(tuple(wave))] if wave else waves


def _parts(context: Tokens, items: list[tuple[int, Tokens]], limits: Limits) -> Iterator[list[tuple[int, Tokens]]]:
    part: list[tuple[int, Tokens]] = []
    cells = len(context)
    for index, continuation in items:
        more = len(continuation) - 1
        if part and (cells + more > limits.n_cells or len(part) == limits.n_seq):
            yield part
            part, cells = [], len(context)
        part.append((index, continuation))
        cells += more
    if part:
        yield part


@dataclass(frozen=True)
class _Row:
    """One token to decode; `want` asks for its logits."""

    token: int
    position: int
    sequence: int
    want: bool


def decode(session: Session, rows: Sequence[_Row], limits: Limits) -> Iterator[np.ndarray]:
    """Decode rows in calls of at most `n_batch` tokens; yields the wanted logits in order, call by call."""
    most_wanted = max(1, _MAX_LOGITS // session.n_vocab)
    start = 0
    while start < len(rows):
        end, wanted = start, 0
        while end < len(rows) and end - start < limits.n_batch and wanted < most_wanted:
            wanted += rows[end].want
            end += 1
        part = rows[start:end]
        logits = session.evaluate(
            [r.token for r in part], [r.position for r in part], [r.sequence for r in part], [r.want for r in part]
        )
        if wanted:
            yield logits
        start = end


def text_rows(tokens: Sequence[int], sequence: int) -> list[_Row]:
    """Rows that ask for the logits of every token of a text."""
    return [_Row(t, i, sequence, True) for i, t in enumerate(tokens)]


def last_rows(tokens: Sequence[int], position: int, sequence: int) -> list[_Row]:
    """Rows that continue a sequence at `position` and ask for the last token's logits."""
    return [_Row(t, position + i, sequence, i == len(tokens) - 1) for i, t in enumerate(tokens)]


def token_scores(logits: np.ndarray, targets: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability of each target, and whether it is the most likely token (float32 logits, float64 sums)."""
    top = logits.max(axis=1, keepdims=True)
    total = np.exp(logits - top).sum(axis=1, dtype=np.float64)
    picked = logits[np.arange(len(targets)), targets].astype(np.float64)
    return picked - top[:, 0] - np.log(total), logits.argmax(axis=1) == np.asarray(targets)


def score_wave(session: Session, wave: Wave, limits: Limits) -> dict[int, Score]:
    """Scores of a wave's continuations, by their place among the requests."""
    session.clear()
    first: list[_Row] = []
    asked: list[tuple[Group, Tokens]] = []  # what the wanted rows of the first pass score
    for group, base in zip(wave.groups, _bases(wave), strict=True):
        lone = len(group.continuations) == 1
        tokens = group.context + (group.continuations[0][:-1] if lone else ())
        at = len(group.context) - 1
        first += [_Row(t, i, base, i >= at) for i, t in enumerate(tokens)]
        asked.append((group, group.continuations[0] if lone else tuple(c[0] for c in group.continuations)))
    rows = _rows_of(session, first, limits, [len(g.continuations[0]) if g.n_seq == 1 else 1 for g, _ in asked])
    sums: dict[int, list[float | bool]] = {}
    second: list[_Row] = []
    behind: list[tuple[int, Tokens]] = []
    for (group, targets), logits, base in zip(asked, rows, _bases(wave), strict=True):
        if group.n_seq == 1:
            values, greedy = token_scores(logits, targets)
            sums[group.index[0]] = [float(values.sum()), bool(greedy.all())]
            continue
        repeated = np.repeat(logits, len(targets), axis=0)
        values, greedy = token_scores(repeated, targets)
        for i, (index, continuation) in enumerate(zip(group.index, group.continuations, strict=True)):
            sums[index] = [float(values[i]), bool(greedy[i])]
            if len(continuation) > 1:
                if i:
                    session.copy_sequence(base, base + i)
                at = len(group.context)
                second += [_Row(t, at + j, base + i, True) for j, t in enumerate(continuation[:-1])]
                behind.append((index, continuation[1:]))
    for (index, targets), logits in zip(
        behind, _rows_of(session, second, limits, [len(t) for _, t in behind]), strict=True
    ):
        values, greedy = token_scores(logits, targets)
        sums[index][0] += float(values.sum())
        sums[index][1] = bool(sums[index][1]) and bool(greedy.all())
    return {index: (float(total), bool(greedy)) for index, (total, greedy) in sums.items()}


def _bases(wave: Wave) -> list[int]:
    """First sequence of each group."""
    bases, at = [], 0
    for group in wave.groups:
        bases.append(at)
        at += group.n_seq
    return bases


def _rows_of(session: Session, rows: Sequence[_Row], limits: Limits, counts: Sequence[int]) -> Iterator[np.ndarray]:
    """Wanted logits, cut into pieces of the given numbers of rows."""
    calls = decode(session, rows, limits)
    held: list[np.ndarray] = []
    n_held = 0
    for count in counts:
        while n_held < count:
            held.append(next(calls))
            n_held += len(held[-1])
        joined = held[0] if len(held) == 1 else np.concatenate(held)
        yield joined[:count]
        held, n_held = [joined[count:]], n_held - count
    for _ in calls:
        pass


def greedy_tokens(
    session: Session,
    prompts: Sequence[Sequence[int]],
    counts: Sequence[int],
    limits: Limits,
    stop: Callable[[int, list[int]], bool] = lambda which, tokens: False,
) -> list[list[int]]:
    """Greedy continuations of several prompts, one sequence each; `stop` is asked after every token."""
    session.clear()
    out: list[list[int]] = [[] for _ in prompts]
    active = list(range(len(prompts)))
    rows = [row for i, prompt in enumerate(prompts) for row in last_rows(prompt, 0, i)]
    while active:
        logits = np.concatenate([*decode(session, rows, limits)])
        going = []
        for i, row in zip(active, logits, strict=True):
            out[i].append(int(row.argmax()))
            if not stop(i, out[i]) and len(out[i]) < counts[i]:
                going.append(i)
        active = going
        rows = [row for i in active for row in last_rows(out[i][-1:], len(prompts[i]) + len(out[i]) - 1, i)]
    return out
