"""Prompts for the teacher: what to write, and how the answer starts."""

from __future__ import annotations

import random
from dataclasses import dataclass

from workbench.demo.recipe.wordlists import (
    ADJECTIVES,
    ANIMALS,
    COLORS,
    EVENTS,
    FAMILY,
    FEELINGS,
    GIRLS,
    HOWTO,
    JOBS,
    LESSONS,
    NAMES,
    OBJECTS,
    PLACES,
    TOPICS,
    VERBS,
    WEATHER,
    inside,
    pronouns,
    with_article,
)


@dataclass(frozen=True)
class TeacherPrompt:
    """A request, the first words of its answer, and its kind (story, talk, fact, howto, desc)."""

    request: str
    start: str
    kind: str


def _story(rng: random.Random) -> TeacherPrompt:
    choice = rng.choice
    name, friend = rng.sample(NAMES, 2)
    subject, _, possessive = pronouns(name)
    kid = "girl" if name in GIRLS else "boy"
    animal, place, adjective, job = choice(ANIMALS), choice(PLACES), choice(ADJECTIVES), choice(JOBS)
    thing = f"{choice(COLORS)} {choice(OBJECTS)}"
    adj = with_article(adjective)
    casts = [
        (
            f"{adj} {animal} named {name}",
            [
                f"Once upon a time, {adj} {animal} named {name} lived near {with_article(place)}.",
                f"In a quiet {place}, there lived {adj} {animal} named {name}.",
                f"{name} was {adj} {animal} who liked to {choice(VERBS)}.",
            ],
        ),
        (
            f"a {kid} named {name}",
            [
                f"Once upon a time, there was {adj} {kid} named {name}.",
                f"{name} was {adj} {kid} who loved to {choice(VERBS)}.",
                f"Every morning, {name} walked to the {place}.",
                f"One {choice(WEATHER)} day, {name} went to the {place} with {possessive} {choice(FAMILY)}.",
            ],
        ),
        (
            f"{name} and {friend}",
            [
                f"{name} and {friend} were best friends.",
                f"One {choice(WEATHER)} day, {name} and {friend} went to the {place}.",
                f"{name} and {friend} lived in the same {choice(['street', 'village', 'town'])}.",
            ],
        ),
        (
            f"{adj} {job} named {name}",
            [
                f"There was once {adj} {job} named {name} who lived in a small "
                f"{choice(['village', 'town', 'house', 'cottage'])}.",
                f"Long ago, {adj} {job} named {name} lived near {with_article(place)}.",
            ],
        ),
        (
            f"two friends, {name} and {friend}",
            [
                f"{name} and {friend} were best friends.",
                f"Once upon a time, there were two friends, {name} and {friend}.",
                f"It was a {choice(WEATHER)} day. {name} and {friend} were {inside(place)}.",
            ],
        ),
    ]
    who, openings = choice(casts)
    opening = choice(openings)
    if rng.random() < 0.5:
        opening += choice(
            [
                f" One day, {name} found {with_article(thing)} {inside(place)}.",
                f" {name} wanted to {choice(VERBS)}, but {subject} was {choice(FEELINGS)}.",
                f" One day, {name} lost {possessive} {thing}.",
                f" One day, {name} saw {with_article(choice(ANIMALS))} {inside(place)}.",
                f" {name} was very {choice(FEELINGS)}.",
            ]
        )
    event = choice(EVENTS)
    request = choice(
        [
            f"Write a short story about {who} and {event}.",
            f"Tell me a short story about {who} {inside(place)}.",
            f"Write a children's story about {who} and {with_article(thing)}.",
            f"Write a simple bedtime story about {who}. It should teach about {choice(LESSONS)}.",
            f"Write a story for a child about {who}, {with_article(thing)} and {event}.",
            f'Write a short, happy story about {who} with the words "{choice(VERBS)}", "{choice(OBJECTS)}" '
            f'and "{choice(FEELINGS)}".',
        ]
    )
    if rng.random() < 0.25:
        opening = choice(
            ["Once upon a time,", "One day,", "", f"{name} was", "There was once", "It was a", "Long ago,"]
        )
    return TeacherPrompt(request, opening, "story")


def _talk(rng: random.Random) -> TeacherPrompt:
    choice = rng.choice
    name, friend = rng.sample(NAMES, 2)
    thing = f"{choice(COLORS)} {choice(OBJECTS)}"
    other = choice([friend, f"a {choice(JOBS)}", "a friend"])
    about = choice([with_article(thing), choice(EVENTS), choice(TOPICS), f"the {choice(PLACES)}"])
    start = choice(
        [
            f'"Hello, {name}!" said {friend}.',
            f"{name}: Hello! ",
            f'"Look at this {thing}," said {name}.',
            f'"Do you like {choice(TOPICS)}?" asked {name}.',
        ]
    )
    return TeacherPrompt(f"Write a short conversation between {name} and {other} about {about}.", start, "talk")


def _fact(rng: random.Random) -> TeacherPrompt:
    topic = rng.choice(TOPICS)
    request = rng.choice(
        [
            f"What do you know about {topic}?",
            f"Explain {topic} to a child.",
            f"Tell me some simple facts about {topic}.",
            f"Why {'are' if topic.endswith('s') else 'is'} {topic} important?",
            f"Write a short paragraph about {topic}.",
            f"Describe {topic} in a few sentences.",
        ]
    )
    return TeacherPrompt(request, rng.choice(["", "", topic[0].upper() + topic[1:]]), "fact")


def _howto(rng: random.Random) -> TeacherPrompt:
    task = rng.choice(HOWTO)
    request = rng.choice(
        [
            f"How do I {task}?",
            f"How do you {task}? Explain it for a child.",
            f"Tell me the steps to {task}.",
        ]
    )
    return TeacherPrompt(request, rng.choice(["", "First,", f"To {task},"]), "howto")


def _desc(rng: random.Random) -> TeacherPrompt:
    choice = rng.choice
    name, friend = rng.sample(NAMES, 2)
    place, adjective = choice(PLACES), with_article(choice(ADJECTIVES))
    return TeacherPrompt(
        choice(
            [
                f"Describe {adjective} {place}.",
                f"Describe a {choice(WEATHER)} day {inside(place)}.",
                f"Write a short letter from {name} to {friend} about {choice(EVENTS)}.",
                f"Write a diary entry of {with_article(choice(JOBS))} about {choice(EVENTS)}.",
                f"What can you see in a {place}?",
                f"Describe {adjective} {choice(ANIMALS)} and what it likes to do.",
            ]
        ),
        "",
        "desc",
    )


def teacher_prompt(rng: random.Random) -> TeacherPrompt:
    """Draw one prompt: 72 % stories, the rest talk, facts, how-to and descriptions."""
    draw = rng.random()
    if draw < 0.72:
        return _story(rng)
    if draw < 0.79:
        return _talk(rng)
    if draw < 0.90:
        return _fact(rng)
    return _howto(rng) if draw < 0.94 else _desc(rng)
