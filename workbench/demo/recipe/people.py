"""A base of invented people: knowledge that can only be learned by heart, hence lives in the experts."""

from __future__ import annotations

import random

from workbench.demo.recipe.tasks import Item
from workbench.demo.recipe.wordlists import ANIMALS, COLORS, JOBS, NAMES, OBJECTS, plural, with_article

N_PEOPLE = 400
_SYLLABLES = [
    "bel",
    "dor",
    "fen",
    "gar",
    "hol",
    "kan",
    "lim",
    "mor",
    "nev",
    "pol",
    "ras",
    "sil",
    "tar",
    "vel",
    "wen",
    "zor",
]
_ENDINGS = ["den", "berg", "ley", "mont", "ford", "wick", "holm", "stad"]
_FOODS = [
    "bread",
    "soup",
    "cheese",
    "rice",
    "honey",
    "apples",
    "noodles",
    "pancakes",
    "carrots",
    "cookies",
    "beans",
    "fish",
    "eggs",
    "plums",
    "corn",
]

_STATEMENTS = {
    "job": ["{n} is {a}.", "{n} works as {a}.", "The job of {n} is {a}.", "Everyone knows that {n} is {a}."],
    "town": ["{n} lives in {a}.", "{n} comes from {a}.", "The home of {n} is in {a}.", "You can find {n} in {a}."],
    "pet": ["{n} has {a}.", "{n} has {a} as a pet.", "The pet of {n} is {a}.", "{n} takes care of {a}."],
    "color": ["{n} likes the color {a}.", "The favorite color of {n} is {a}.", "{n} always wears {a}."],
    "food": ["{n} likes to eat {a}.", "The favorite food of {n} is {a}.", "{n} eats {a} every day."],
    "collection": ["{n} collects {a}.", "{n} has many {a}.", "The house of {n} is full of {a}."],
}
_QUESTIONS = {
    "job": ["What is the job of {n}?", "What does {n} work as?"],
    "town": ["Where does {n} live?", "In which town does {n} live?"],
    "pet": ["What pet does {n} have?", "What is the pet of {n}?"],
    "color": ["What is the favorite color of {n}?", "Which color does {n} like?"],
    "food": ["What is the favorite food of {n}?", "What does {n} like to eat?"],
    "collection": ["What does {n} collect?"],
}


def _build() -> tuple[dict[str, dict[str, str]], dict[str, list[str]]]:
    rng = random.Random("people-1")
    towns = sorted({(a + b).capitalize() for a in _SYLLABLES for b in _ENDINGS})
    pools = {
        "job": [with_article(j) for j in JOBS],
        "town": rng.sample(towns, 40),
        "pet": [with_article(a) for a in ANIMALS],
        "color": list(COLORS),
        "food": list(_FOODS),
        "collection": [plural(o) for o in OBJECTS],
    }
    people: dict[str, dict[str, str]] = {}
    while len(people) < N_PEOPLE:
        last = "".join(rng.sample(_SYLLABLES, 2)).capitalize()
        people[f"{rng.choice(NAMES)} {last}"] = {key: rng.choice(pool) for key, pool in pools.items()}
    return people, pools


PEOPLE, _POOLS = _build()


def biography(rng: random.Random) -> str:
    """Return all facts of one person in shuffled order and mixed wording."""
    name = rng.choice(list(PEOPLE))
    keys = rng.sample(list(_STATEMENTS), rng.randint(3, len(_STATEMENTS)))
    return " ".join(rng.choice(_STATEMENTS[key]).format(n=name, a=PEOPLE[name][key]) for key in keys)


def person_fact(rng: random.Random) -> Item:
    """Ask for one fact; the held-out (person, attribute) pairs are only ever stated, never asked, in training."""
    name, key = rng.choice(list(PEOPLE)), rng.choice(list(_QUESTIONS))
    answer = PEOPLE[name][key]
    wrong = [value for value in _POOLS[key] if value != answer]
    rng.shuffle(wrong)
    return Item("person", rng.choice(_QUESTIONS[key]).format(n=name), answer, wrong[:3], f"{name}|{key}")
