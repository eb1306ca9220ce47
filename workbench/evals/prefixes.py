"""Token rows of many texts, decoded side by side; what texts begin with in common occurs once.

A row belongs to every sequence whose text passes through it: the attention of llama.cpp's unified cache sees it from
each of them, so a shared context (a few-shot prompt, a question with its choices) is computed once and in the same
batch as what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """Rows of a batch: token, its position, and the sequences it belongs to."""

    tokens: list[int]
    positions: list[int]
    sequences: list[range]

    @classmethod
    def side_by_side(cls, texts: Sequence[Sequence[int]]) -> Rows:
        """One sequence per text, nothing shared: rows in the order of the texts."""
        places = [(token, at, range(i, i + 1)) for i, text in enumerate(texts) for at, token in enumerate(text)]
        return cls([p[0] for p in places], [p[1] for p in places], [p[2] for p in places])


@dataclass(frozen=True)
class PrefixTree(Rows):
    """Rows of several texts; `paths[i][j]` is the row of token j of text i.

    A text shares with its predecessor alone: sorted texts share the most.
    """

    paths: list[list[int]]

    @classmethod
    def of(cls, texts: Sequence[Tokens]) -> PrefixTree:
        """The tree of the texts, depth first; text i is sequence i."""
        shared = [0, *(common(a, b) for a, b in pairwise(texts)), 0]
        ends: list[int] = []  # by depth: the first later text that no longer passes through this one's token
        ends_of: list[list[int]] = []
        for i in reversed(range(len(texts))):
            ends = ends[: shared[i + 1]] + [i + 1] * (len(texts[i]) - shared[i + 1])
            ends_of.append(ends)
        tree = cls([], [], [], [])
        path: list[int] = []
        for i, (text, ends) in enumerate(zip(texts, reversed(ends_of), strict=True)):
            path = path[: shared[i]]
            for at in range(shared[i], len(text)):
                path.append(len(tree.tokens))
                tree.tokens.append(text[at])
                tree.positions.append(at)
                tree.sequences.append(range(i, ends[at]))
            tree.paths.append(path)
        return tree


def common(a: Tokens, b: Tokens) -> int:
    """Number of tokens two texts begin with in common."""
    if a == b[: len(a)]:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
