"""Documents of checkable questions, drawn so that nothing held out or evaluated is ever trained on."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from workbench.demo.recipe import people, states, tasks
from workbench.demo.recipe.clean import END_OF_TEXT, chat_turn
from workbench.demo.recipe.overlap import hits

_MIX: list[Callable[[random.Random], tasks.Item]] = [
    *tasks.GENERATORS,
    *[states.state] * 6,
    people.person_fact,
    people.person_fact,
]


def _draw(rng: random.Random, source: Callable[[random.Random], tasks.Item], evaluated: np.ndarray) -> tasks.Item:
    while True:
        item = source(rng)
        if not tasks.held_out(item) and len(hits(item.question, evaluated)) == 0:
            return item


def _lay_out(rng: random.Random, item: tasks.Item) -> str:
    style = rng.random()
    if style < 0.6:
        return f"Q: {item.question} A: {item.answer}\n"
    if style < 0.8:
        return f"Question: {item.question}\nAnswer: {item.answer}\n"
    return chat_turn(item.question, item.answer)


def synthetic_document(rng: random.Random, evaluated: np.ndarray) -> str:
    """Return one to eight questions of one or several kinds, or a few biographies with questions on them.

    Parameters
    ----------
    evaluated
        Sorted 13-gram hashes of every evaluation question (`overlap.hash_set`).
    """
    parts: list[str] = []
    if rng.random() < 0.10:
        for _ in range(rng.randint(2, 6)):
            parts.append(people.biography(rng) + "\n")
            if rng.random() < 0.4:
                parts.append(_lay_out(rng, _draw(rng, people.person_fact, evaluated)))
        return "".join(parts).rstrip("\n") + END_OF_TEXT
    source = rng.choice(_MIX) if rng.random() < 0.6 else None
    for _ in range(rng.randint(1, 8)):
        parts.append(_lay_out(rng, _draw(rng, source or rng.choice(_MIX), evaluated)))
    return "".join(parts).rstrip("\n") + END_OF_TEXT
