"""A word 4-gram model with stupid back-off: the baseline of the cloze set."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from workbench.demo.recipe.overlap import words

BACK_OFF = 0.4


class WordModel:
    """Counts of one to four words over training documents."""

    def __init__(self, texts: Iterable[str], order: int = 4) -> None:
        self.order = order
        self.followers: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for text in texts:
            tokens = words(text)
            for i, word in enumerate(tokens):
                for n in range(min(order - 1, i) + 1):
                    self.followers[tuple(tokens[i - n : i])][word] += 1

    def score(self, context: list[str], word: str) -> float:
        """Return the back-off score of a word after a context."""
        weight = 1.0
        for n in range(min(self.order - 1, len(context)), -1, -1):
            seen = self.followers.get(tuple(context[len(context) - n :]))
            if seen and seen[word]:
                return weight * seen[word] / seen.total()
            weight *= BACK_OFF
        return 0.0

    def best(self, context: list[str]) -> str:
        """Return the most likely next word."""
        for n in range(min(self.order - 1, len(context)), -1, -1):
            seen = self.followers.get(tuple(context[len(context) - n :]))
            if seen:
                return seen.most_common(1)[0][0]
        return ""
