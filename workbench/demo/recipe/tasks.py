"""Checkable questions: arithmetic, entity recall, state tracking, invented facts, small skills.

Every generator takes a `random.Random` and returns an `Item`. Sums and questions on people
whose `split_key` is held out are never used for training, so "unseen" holds for every wording of a problem.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from workbench.demo.recipe.wordlists import (
    ANIMALS,
    BOYS,
    COLOR_OF,
    COLORS,
    DAYS,
    GIRLS,
    HOME_OF,
    KIND_OF,
    LEGS_OF,
    MONTHS,
    NAMES,
    NUMBER_WORDS,
    OBJECTS,
    OPPOSITES,
    PLACES,
    SIZES,
    SOUND_OF,
    inside,
    plural,
    pronouns,
    with_article,
)


@dataclass(frozen=True)
class Item:
    """One question with its answer, wrong answers (nearest first) and the guesses of trivial baselines."""

    task: str
    question: str
    answer: str
    wrong: list[str]
    split_key: str
    baselines: dict[str, str] = field(default_factory=dict)


def held_out(item: Item) -> bool:
    """Tell whether a problem is held out: a tenth of the sums, a quarter of the questions on invented people."""
    share = {"arith": 0.10, "person": 0.25}.get(item.task, 0.0)
    return hashlib.sha256(item.split_key.encode()).digest()[0] < 256 * share


def arithmetic(rng: random.Random) -> Item:
    """Addition up to 60 + 60, subtraction, and both as one-line stories."""
    wording = rng.random()
    a, b = rng.randint(0, 60), rng.randint(0, 60)
    if wording >= 0.7:
        a, b = rng.randint(1, 30), rng.randint(1, 20)
    plus = rng.random() < 0.55
    if not plus and b > a:
        a, b = b, a
    result = a + b if plus else a - b
    if wording < 0.5:
        question = f"What is {a} {'+' if plus else '-'} {b}?"
    elif wording < 0.7:
        question = f"How much is {a} {'plus' if plus else 'minus'} {b}?"
    else:
        name, things = rng.choice(NAMES), plural(rng.choice(OBJECTS))
        subject = pronouns(name)[0].capitalize()
        event = f"gets {b} more" if plus else f"gives away {b}"
        tail = "now" if plus else "left"
        question = f"{name} has {a} {things}. {subject} {event}. How many {things} does {name} have {tail}?"
    near = [d for d in (1, -1, 10, -10, 2, -2) if result + d >= 0]
    rng.shuffle(near)
    key = f"{min(a, b)}+{max(a, b)}" if plus else f"{a}-{b}"
    return Item(
        "arith",
        question,
        str(result),
        [str(result + d) for d in near[:3]],
        key,
        {"first number": str(a), "last number": str(b)},
    )


def multiplication(rng: random.Random) -> Item:
    """Times tables up to 12; trained on, not tested as unseen."""
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    return Item("times", f"What is {a} x {b}?", str(a * b), [str(a * b + 1), str(a * b + 2), str(a + b)], "times")


def _holding(rng: random.Random, names: list[str]) -> tuple[str, str, str, list[str]]:
    things, colors = rng.sample(OBJECTS, len(names)), rng.sample(COLORS, len(names))
    verb = rng.choice(["has", "has", "holds", "found", "bought"])
    text = " ".join(f"{n} {verb} {with_article(f'{c} {o}')}." for n, c, o in zip(names, colors, things, strict=False))
    i = rng.randrange(len(names))
    kind = rng.randrange(3)
    owned = [with_article(f"{c} {o}") for c, o in zip(colors, things, strict=False)]
    if kind == 0:
        ask = {"has": "has", "holds": "holds"}.get(verb, verb)
        return text, f"Who {ask} the {things[i]}?", names[i], [n for n in names if n != names[i]]
    if kind == 1:
        ask = {"has": "have", "holds": "hold", "found": "find", "bought": "buy"}[verb]
        asked = f"What {'did' if verb in ('found', 'bought') else 'does'} {names[i]} {ask}?"
        return text, asked, owned[i], [o for o in owned if o != owned[i]]
    return text, f"What color is the {things[i]}?", colors[i], [c for c in colors if c != colors[i]]


def _located(rng: random.Random, names: list[str]) -> tuple[str, str, str, list[str]]:
    places = rng.sample(PLACES, len(names))
    subjects = names if rng.random() < 0.6 else [f"The {o}" for o in rng.sample(OBJECTS, len(names))]
    verbs = ["is {inside}", "went to the {place}"] if subjects is names else ["is {inside}"]
    text = " ".join(
        f"{s} {rng.choice(verbs).format(inside=inside(p), place=p)}." for s, p in zip(subjects, places, strict=False)
    )
    i = rng.randrange(len(names))
    if subjects is names and rng.random() < 0.5:
        return text, f"Who is {inside(places[i])}?", names[i], [n for n in names if n != names[i]]
    where = [inside(p) for p in places]
    asked = subjects[i] if subjects is names else "the" + subjects[i][3:]
    return text, f"Where is {asked}?", where[i], [w for w in where if w != where[i]]


def _liking(rng: random.Random, names: list[str]) -> tuple[str, str, str, list[str]]:
    liked = [plural(a) for a in rng.sample(ANIMALS, len(names))]
    text = " ".join(f"{n} likes {a}." for n, a in zip(names, liked, strict=False))
    i = rng.randrange(len(names))
    if rng.random() < 0.5:
        return text, f"What does {names[i]} like?", liked[i], [a for a in liked if a != liked[i]]
    return text, f"Who likes {liked[i]}?", names[i], [n for n in names if n != names[i]]


def recall(rng: random.Random, *, n_min: int = 2, n_max: int = 6) -> Item:
    """One fact per person or thing, then a question about one of them; all choices stand in the text."""
    names = rng.sample(NAMES, rng.randint(n_min, n_max))
    text, ask, answer, wrong = rng.choice([_holding, _holding, _located, _liking])(rng, names)
    rng.shuffle(wrong)
    mention = {c: c.rsplit("the ", 1)[-1] for c in [answer, *wrong]}
    last = max(mention, key=lambda c: text.rfind(mention[c]))
    first = min(mention, key=lambda c: text.find(mention[c]))
    return Item("recall", f"{text} {ask}", answer, wrong, text + ask, {"last mention": last, "first mention": first})


def small_facts(rng: random.Random) -> Item:
    """Opposites, colours, sizes, sounds, homes, kinds, calendar, letters."""
    choice = rng.choice
    kind = rng.randrange(11)
    if kind == 0:
        a, b = choice(OPPOSITES)
        return Item("fact", f"What is the opposite of {a}?", b, [], "fact")
    if kind == 1:
        thing = choice(list(COLOR_OF))
        return Item("fact", f"What color is {thing}?", COLOR_OF[thing], [], "fact")
    if kind == 2:
        i, j = rng.sample(range(len(SIZES)), 2)
        bigger = rng.random() < 0.5
        best = max(i, j) if bigger else min(i, j)
        question = (
            f"Which is {'bigger' if bigger else 'smaller'}, {with_article(SIZES[i])} or {with_article(SIZES[j])}?"
        )
        return Item("fact", question, with_article(SIZES[best]), [], "fact")
    if kind == 3:
        thing = choice(list(SOUND_OF))
        return Item("fact", f"What sound does {with_article(thing)} make?", SOUND_OF[thing], [], "fact")
    if kind == 4:
        thing = choice(list(LEGS_OF))
        return Item("fact", f"How many legs does {with_article(thing)} have?", str(LEGS_OF[thing]), [], "fact")
    if kind == 5:
        thing = choice(list(HOME_OF))
        home = "in the water" if thing == "fish" else f"in {with_article(HOME_OF[thing])}"
        return Item("fact", f"Where does {with_article(thing)} live?", home, [], "fact")
    if kind == 6:
        thing = choice(list(KIND_OF))
        bare = thing[0].isupper() or KIND_OF[thing] in ("color", "number")
        question = f"What kind of thing is {thing if bare else with_article(thing)}?"
        return Item("fact", question, with_article(KIND_OF[thing]), [], "fact")
    if kind in (7, 8):
        names, unit = (DAYS, "day") if kind == 7 else (MONTHS, "month")
        i, after = rng.randrange(len(names)), rng.random() < 0.5
        question = f"What {unit} comes {'after' if after else 'before'} {names[i]}?"
        return Item("fact", question, names[(i + (1 if after else -1)) % len(names)], [], "fact")
    if kind == 9:
        i = rng.randrange(25)
        a, b = chr(97 + i), chr(98 + i)
        after = rng.random() < 0.5
        return Item(
            "fact", f"What letter comes {'after ' + a if after else 'before ' + b}?", b if after else a, [], "fact"
        )
    word = choice(OBJECTS + ANIMALS)
    return Item("fact", f"Spell the word {word}.", "-".join(word), [], "fact")


def counting(rng: random.Random) -> Item:
    """Sequences, neighbours, comparisons, word counts, number words."""
    kind = rng.randrange(5)
    if kind == 0:
        start, step, n = rng.randint(0, 60), rng.choice([1, 1, 1, 2, 5, 10]), rng.randint(4, 7)
        numbers = [start + i * step for i in range(n + 1)]
        return Item("count", f"What comes next? {', '.join(map(str, numbers[:-1]))}", str(numbers[-1]), [], "count")
    if kind == 1:
        a, after = rng.randint(0, 98), rng.random() < 0.5
        question = f"What number comes {'after' if after else 'before'} {a if after else a + 1}?"
        return Item("count", question, str(a + 1 if after else a), [], "count")
    if kind == 2:
        a, b = rng.sample(range(100), 2)
        bigger = rng.random() < 0.5
        question = f"Which is {'bigger' if bigger else 'smaller'}, {a} or {b}?"
        return Item("count", question, str(max(a, b) if bigger else min(a, b)), [], "count")
    if kind == 3:
        words = rng.sample(OBJECTS + ANIMALS, rng.randint(2, 7))
        return Item("count", f"How many words are here: {', '.join(words)}?", str(len(words)), [], "count")
    i, as_number = rng.randrange(21), rng.random() < 0.5
    if as_number:
        return Item("count", f"Write {NUMBER_WORDS[i]} as a number.", str(i), [], "count")
    return Item("count", f"Write {i} as a word.", NUMBER_WORDS[i], [], "count")


def copying(rng: random.Random) -> Item:
    """Repeat, reverse, pick from a list."""
    words = rng.sample(OBJECTS + ANIMALS + COLORS, rng.randint(2, 6))
    text = " ".join(words)
    kind = rng.randrange(5)
    if kind == 0:
        return Item("copy", f"Repeat: {text}.", text, [], "copy")
    if kind == 1:
        return Item("copy", f"Say the words backwards: {text}.", " ".join(words[::-1]), [], "copy")
    if kind == 2:
        return Item("copy", f"What is the first word of: {text}?", words[0], [], "copy")
    if kind == 3:
        return Item("copy", f"What is the last word of: {text}?", words[-1], [], "copy")
    i = rng.randrange(len(words) - 1)
    return Item("copy", f'In the list "{text}", what word comes after {words[i]}?', words[i + 1], [], "copy")


def ordering(rng: random.Random) -> Item:
    """A chain of comparisons in shuffled order; who is at one end of it."""
    names = rng.sample(NAMES, rng.randint(3, 4))
    more, most, least = rng.choice(
        [
            ("taller", "tallest", "shortest"),
            ("older", "oldest", "youngest"),
            ("faster", "fastest", "slowest"),
        ]
    )
    pairs = [f"{a} is {more} than {b}." for a, b in itertools.pairwise(names)]
    rng.shuffle(pairs)
    top = rng.random() < 0.5
    answer = names[0] if top else names[-1]
    question = f"{' '.join(pairs)} Who is the {most if top else least}?"
    return Item("order", question, answer, [n for n in names if n != answer], question)


def pronoun(rng: random.Random) -> Item:
    """Resolve "she" or "he" between two people."""
    girl, boy = rng.choice(GIRLS), rng.choice(BOYS)
    first, second = rng.sample([girl, boy], 2)
    who = rng.choice([girl, boy])
    verb = rng.choice(["sings", "dances", "reads", "paints", "swims", "runs", "sleeps", "cooks", "jumps", "draws"])
    question = (
        f"{first} and {second} are {inside(rng.choice(PLACES))}. {'She' if who == girl else 'He'} {verb}. Who {verb}?"
    )
    return Item("pronoun", question, who, [boy if who == girl else girl], question)


GENERATORS: list[Callable[[random.Random], Item]] = [
    arithmetic,
    arithmetic,
    arithmetic,
    multiplication,
    recall,
    recall,
    recall,
    small_facts,
    small_facts,
    counting,
    copying,
    ordering,
    pronoun,
]
