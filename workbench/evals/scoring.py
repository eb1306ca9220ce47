"""Score continuations through `Session.evaluate`: what texts begin with in common is decoded once.

A *wave* is a set of texts (context and continuation) held in the KV cache together, decoded as one prefix tree: many
sequences per decode call, one pass over the experts per call.

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
from workbench.evals.prefixes import PrefixTree, Rows, Tokens, common

if TYPE_CHECKING:
    from workbench.session import Session

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
        """Tokens that texts are gathered up to; one that is longer makes a wave alone.

        A quarter of what fits: attention costs as if every token saw all that is held.
        """
        return max(1, self.n_cells // 4)


@dataclass(frozen=True)
class Request:
    """A continuation to score: predicted from token `start` of a wave's text on; `place` is that among all requests."""

    place: int
    text: int
    start: int
    continuation: Tokens


@dataclass(frozen=True)
class Wave:
    """Texts decoded together, in lexicographic order, and the requests they answer."""

    texts: tuple[Tokens, ...]
    requests: tuple[Request, ...]
    n_tokens: int

    def key(self, limits: Limits) -> str:
        """Hash of all that its scores depend on besides the model and the run's configuration."""
        values = [self.texts, [(r.text, r.start, r.continuation) for r in self.requests]]
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
    """Sort requests by what they feed, so that neighbours begin alike, and pack them into waves."""
    fed = sorted(
        ((*context, *continuation[:-1]), len(context) - 1, continuation, place)
        for place, (context, continuation) in enumerate(requests)
    )
    waves: list[Wave] = []
    texts: list[Tokens] = []
    found: list[Request] = []
    cells = 0
    for text, start, continuation, place in fed:
        shared = common(texts[-1], text) if texts else 0
        extends = bool(texts) and shared == len(texts[-1])
        full = len(texts) == limits.n_seq and not extends
        if texts and (full or cells + len(text) - shared > limits.wave_cells):
            waves.append(Wave(tuple(texts), tuple(found), cells))
            texts, found, cells, shared, extends = [], [], 0, 0, False
        texts[-1 if extends else len(texts) :] = [text]
        found.append(Request(place, len(texts) - 1, start, continuation))
        cells += len(text) - shared
    return [*waves, Wave(tuple(texts), tuple(found), cells)] if texts else waves


def decode(session: Session, rows: Rows, want: Sequence[bool], limits: Limits) -> Iterator[np.ndarray]:
    """Decode rows in calls of at most `n_batch` tokens; yields the wanted logits in order, call by call."""
    most_wanted = max(1, _MAX_LOGITS // session.n_vocab)
    start = 0
    while start < len(want):
        end, wanted = start, 0
        while end < len(want) and end - start < limits.n_batch and wanted < most_wanted:
            wanted += want[end]
            end += 1
        part = slice(start, end)
        logits = session.evaluate(rows.tokens[part], rows.positions[part], rows.sequences[part], want[part])
        if wanted:
            yield logits
        start = end


def token_scores(
    logits: np.ndarray, targets: Sequence[int] | np.ndarray, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability of each target, and whether it is the most likely token (float32 logits, float64 sums).

    Target i belongs to row `rows[i]` of the logits; None = row i.
    """
    rows = np.arange(len(targets)) if rows is None else rows
    top = logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(axis=1, dtype=np.float64))
    picked = logits[rows, targets].astype(np.float64)
    return picked - top[rows, 0] - total[rows], logits.argmax(axis=1)[rows] == np.asarray(targets)


def _wanted(tree: PrefixTree, rows: Sequence[int] | np.ndarray) -> tuple[list[bool], np.ndarray]:
    """Which of the tree's rows are asked for, and the place of each given row among those."""
    wanted, places = np.unique(rows, return_inverse=True)
    want = np.zeros(len(tree.tokens), bool)
    want[wanted] = True
    return want.tolist(), places


def score_wave(session: Session, wave: Wave, limits: Limits) -> list[Score]:
    """Scores of a wave's requests, in their order."""
    session.clear()
    tree = PrefixTree.of(wave.texts)
    rows = np.concatenate([tree.paths[r.text][r.start : r.start + len(r.continuation)] for r in wave.requests])
    targets = np.concatenate([r.continuation for r in wave.requests])
    want, places = _wanted(tree, rows)
    values, greedy = np.empty(len(rows)), np.empty(len(rows), bool)
    done = 0
    for logits in decode(session, tree, want, limits):
        here = (places >= done) & (places < done + len(logits))
        values[here], greedy[here] = token_scores(logits, targets[here], places[here] - done)
        done += len(logits)
    ends = np.cumsum([len(r.continuation) for r in wave.requests])[:-1]
    pieces = zip(np.split(values, ends), np.split(greedy, ends), strict=True)
    return [(float(v.sum()), bool(g.all())) for v, g in pieces]


def greedy_tokens(
    session: Session,
    prompts: Sequence[Sequence[int]],
    counts: Sequence[int],
    limits: Limits,
    stop: Callable[[int, list[int]], bool] = lambda which, tokens: False,
) -> list[list[int]]:
    """Greedy continuations of several prompts, one sequence each; `stop` is asked after every token."""
    session.clear()
    order = sorted(range(len(prompts)), key=lambda i: tuple(prompts[i]))  # sequence j is prompt order[j]
    tree = PrefixTree.of([tuple(prompts[i]) for i in order])
    want, places = _wanted(tree, [path[-1] for path in tree.paths])
    logits = np.concatenate([*decode(session, tree, want, limits)])[places]
    out: list[list[int]] = [[] for _ in prompts]
    active = list(range(len(prompts)))
    while active:
        going = []
        for j, row in zip(active, logits, strict=True):
            i = order[j]
            out[i].append(int(row.argmax()))
            if not stop(i, out[i]) and len(out[i]) < counts[i]:
                going.append(j)
        active = going
        rows = Rows(
            [out[order[j]][-1] for j in active],
            [len(prompts[order[j]]) + len(out[order[j]]) - 1 for j in active],
            [range(j, j + 1) for j in active],
        )
        logits = np.concatenate([*decode(session, rows, [True] * len(active), limits)]) if active else logits
    return out
