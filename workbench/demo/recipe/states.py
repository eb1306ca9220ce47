"""State tracking: short worlds in which the answer is moved about before it is asked for.

Three families. *carry*: people walk, take, drop and hand over things; where is the thing? *swap*: people
exchange things; what does one of them have? *nested*: a thing lies in a container, and the container moves.
The trivial guesses (the last or the most often mentioned candidate, and the last one that shares a sentence
with the asked thing) are recorded with every item.
"""

from __future__ import annotations

import random
from collections import Counter

from workbench.demo.recipe.tasks import Item
from workbench.demo.recipe.wordlists import NAMES, OBJECTS, PLACES, inside, with_article


def _guesses(events: list[str], candidates: dict[str, str], asked: str) -> dict[str, str]:
    """Return the baselines' answers; `candidates` maps a mention (a place, a name) to its answer text."""
    text = " ".join(events)
    last = max(candidates, key=lambda c: text.rfind(c))
    counts = Counter({c: text.count(c) for c in candidates})
    most = max(candidates, key=lambda c: (counts[c], text.rfind(c)))
    beside = last
    for event in events:
        if asked in event:
            for mention in candidates:
                if mention in event and mention != asked:
                    beside = mention
    return {"last mention": candidates[last], "most frequent": candidates[most], "beside the asked": candidates[beside]}


def carry(rng: random.Random) -> Item:
    """People walk, take, drop and hand over things; where is one of the things at the end?"""
    people, things = rng.sample(NAMES, rng.randint(2, 3)), rng.sample(OBJECTS, 2)
    places = rng.sample(PLACES, 4)
    at = {p: rng.choice(places) for p in people}
    lies = {t: rng.choice(places) for t in things}
    held: dict[str, str] = {}
    events = [f"{p} is {inside(at[p])}." for p in people] + [f"The {t} is {inside(lies[t])}." for t in things]
    rng.shuffle(events)
    for _ in range(rng.randint(4, 8)):
        person = rng.choice(people)
        here = [t for t in things if t not in held and lies[t] == at[person]]
        own = [t for t in things if held.get(t) == person]
        beside = [p for p in people if p != person and at[p] == at[person]]
        act = rng.random()
        if here and act < 0.6:
            thing = rng.choice(here)
            held[thing] = person
            events.append(f"{person} {rng.choice(['takes', 'picks up', 'gets'])} the {thing}.")
        elif own and act < 0.25:
            thing = rng.choice(own)
            del held[thing]
            lies[thing] = at[person]
            events.append(f"{person} {rng.choice(['drops', 'puts down', 'leaves'])} the {thing}.")
        elif own and beside and act < 0.5:
            thing, other = rng.choice(own), rng.choice(beside)
            held[thing] = other
            events.append(f"{person} gives the {thing} to {other}.")
        else:
            target = rng.choice([p for p in places if p != at[person]])
            if not own and rng.random() < 0.5:
                free = [lies[t] for t in things if t not in held and lies[t] != at[person]]
                target = rng.choice(free) if free else target
            at[person] = target
            events.append(f"{person} {rng.choice(['goes', 'walks', 'runs'])} to the {target}.")
    moved = [t for t in things if t in held]
    thing = rng.choice(moved or things)
    where = at[held[thing]] if thing in held else lies[thing]
    answers = {p: inside(p) for p in places}
    question = f"{' '.join(events)} Where is the {thing}?"
    return Item(
        "carry",
        question,
        inside(where),
        [inside(p) for p in places if p != where],
        question,
        _guesses(events, answers, thing),
    )


def swap(rng: random.Random) -> Item:
    """Each person has one thing; pairs exchange; what does one of them have, or who has a thing?"""
    people = rng.sample(NAMES, 4)
    things = rng.sample(OBJECTS, 4)
    has = dict(zip(people, things, strict=False))
    events = [f"{p} has {with_article(t)}." for p, t in has.items()]
    for _ in range(rng.randint(1, 3)):
        a, b = rng.sample(people, 2)
        has[a], has[b] = has[b], has[a]
        events.append(rng.choice([f"{a} and {b} swap.", f"{a} swaps with {b}."]))
    person = rng.choice(people)
    if rng.random() < 0.5:
        question = f"{' '.join(events)} What does {person} have now?"
        answers = {t: with_article(t) for t in things}
        return Item(
            "swap",
            question,
            with_article(has[person]),
            [with_article(t) for t in things if t != has[person]],
            question,
            _guesses(events, answers, person),
        )
    question = f"{' '.join(events)} Who has the {has[person]} now?"
    return Item(
        "swap",
        question,
        person,
        [p for p in people if p != person],
        question,
        _guesses(events, {p: p for p in people}, has[person]),
    )


def nested(rng: random.Random) -> Item:
    """A thing lies in a container; containers move; where is the thing?"""
    boxes = rng.sample(["box", "bag", "basket", "bucket"], 2)
    things = rng.sample([o for o in OBJECTS if o not in ("box", "bag", "basket", "bucket")], 2)
    places = rng.sample(PLACES, 4)
    inside_of = dict(zip(things, boxes, strict=False))
    at = dict(zip(boxes, places, strict=False))
    events = [f"The {b} is {inside(at[b])}." for b in boxes] + [f"The {t} is in the {b}." for t, b in inside_of.items()]
    rng.shuffle(events)
    for _ in range(rng.randint(2, 4)):
        person = rng.choice(NAMES)
        if rng.random() < 0.25:
            thing, box = rng.choice(things), rng.choice(boxes)
            inside_of[thing] = box
            events.append(f"{person} puts the {thing} in the {box}.")
        else:
            box = rng.choice(boxes)
            target = rng.choice([p for p in places if p != at[box]])
            at[box] = target
            events.append(f"{person} {rng.choice(['moves', 'takes', 'carries'])} the {box} to the {target}.")
    thing = rng.choice(things)
    where = at[inside_of[thing]]
    question = f"{' '.join(events)} Where is the {thing}?"
    return Item(
        "nested",
        question,
        inside(where),
        [inside(p) for p in places if p != where],
        question,
        _guesses(events, {p: inside(p) for p in places}, thing),
    )


def state(rng: random.Random, *, keep_easy: float = 0.5) -> Item:
    """Draw one world; those that a trivial guess solves are kept with probability `keep_easy`."""
    while True:
        item = rng.choice([carry, carry, swap, nested])(rng)
        if item.answer not in item.baselines.values() or rng.random() < keep_easy:
            return item
