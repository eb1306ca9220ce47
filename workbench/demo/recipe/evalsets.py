"""Build the local evaluation suite: multiple choice, every item with its chance and trivial guesses."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from workbench.demo.recipe import people, states, tasks
from workbench.demo.recipe.ngram import WordModel
from workbench.demo.recipe.overlap import words
from workbench.demo.recipe.wordlists import NAMES

N_ITEMS = 500
_SENTENCE = re.compile(r'(?<=[.!?"])\s+')


def _choice_item(
    rng: random.Random, prompt: str, answer: str, wrong: list[str], source: str, guesses: dict[str, str]
) -> dict:
    """Shuffle the choices; `guesses` maps a baseline to the choice it takes."""
    choices = [answer, *wrong]
    rng.shuffle(choices)
    return {
        "prompt": prompt,
        "choices": [" " + c for c in choices],
        "gold": choices.index(answer),
        "source": source,
        "baselines": {name: choices.index(guess) for name, guess in guesses.items() if guess in choices},
    }


def question_items(
    name: str, source: Callable[[random.Random], tasks.Item], *, n: int = N_ITEMS, only_held_out: bool = False
) -> list[dict]:
    """Draw distinct four-choice questions ("Q: … A:")."""
    rng = random.Random(f"evaluation {name}")
    seen: set[str] = set()
    items: list[dict] = []
    while len(items) < n:
        item = source(rng)
        if item.question in seen or len(set(item.wrong)) < 3:
            continue
        if only_held_out and not tasks.held_out(item):
            continue
        seen.add(item.question)
        wrong = item.wrong[:3]
        for guess in item.baselines.values():
            if guess in item.wrong and guess not in wrong:
                wrong[-1] = guess
        items.append(_choice_item(rng, f"Q: {item.question} A:", item.answer, wrong, item.task, item.baselines))
    return items


def question_sets() -> dict[str, list[dict]]:
    """Return the sets that need no teacher text."""
    return {
        "arith_unseen": question_items("arith", tasks.arithmetic, only_held_out=True),
        "recall": question_items("recall", lambda rng: tasks.recall(rng, n_min=4)),
        "state": question_items("state", lambda rng: states.state(rng, keep_easy=0.3)),
        "person": question_items("person", people.person_fact, only_held_out=True),
    }


def _hero(text: str) -> str | None:
    found = [w for w in re.findall(r"[A-Z][a-z]+", text) if w in NAMES]
    return max(set(found), key=lambda n: (found.count(n), n)) if found else None


def _shared(context: str, choice: str) -> float:
    """Return the share of a choice's words that stand in the context: the word-overlap baseline."""
    known, own = set(words(context)), words(choice)
    return sum(w in known for w in own) / max(1, len(own))


def _parted(stories: Iterable[str]) -> list[tuple[str, str]]:
    """Split stories into all but the last two sentences, and those two."""
    parted = []
    for text in stories:
        sentences = _SENTENCE.split(text.replace("\n", " "))
        ending = " ".join(sentences[-2:])
        if len(sentences) >= 7 and 40 < len(ending) < 320 and len(text) < 1500:
            parted.append((" ".join(sentences[:-2]), ending))
    return parted


def ending_items(stories: Iterable[str], *, hard: bool, n: int = N_ITEMS) -> list[dict]:
    """Ask for a story's last two sentences among those of three others of similar length.

    With `hard` every wrong ending gets this story's main name, and of 80 the three that share most words with the
    story are taken, so that neither names nor topic words give the answer away.
    """
    rng = random.Random(f"evaluation ending {hard}")
    parted = _parted(stories)
    items: list[dict] = []
    for beginning, ending in parted:
        if len(items) == n:
            break
        hero = _hero(beginning) if hard else None
        wrong: list[str] = []
        for _, other in rng.sample(parted, min(80, len(parted))):
            if hero:
                other = re.sub(r"[A-Z][a-z]+", lambda m: hero if m[0] in NAMES else m[0], other)  # noqa: B023
            if other != ending and 0.6 < len(other) / len(ending) < 1.7 and other not in wrong:
                wrong.append(other)
        if hard:
            wrong.sort(key=lambda other: -_shared(beginning, other))
        if len(wrong) >= 3:
            wrong = wrong[:3]
            options = [ending, *wrong]
            guesses = {
                "word overlap": max(options, key=lambda o: _shared(beginning, o)),
                "shortest": min(options, key=len),
            }
            items.append(_choice_item(rng, beginning, ending, wrong, "ending", guesses))
    return items


def cloze_items(stories: Iterable[str], model: WordModel, *, n: int = N_ITEMS) -> list[dict]:
    """Ask for the last word of a sentence late in a story; the wrong words end other sentences or stand in this story.

    `ngram_word` is what the n-gram model would write without choices: the baseline of the open form.
    """
    rng = random.Random("evaluation cloze")
    found = []
    for text in stories:
        flat = re.sub(r"\s+", " ", text)
        ends = [m for m in re.finditer(r" ([a-z]{4,})[.!?]", flat) if len(flat[: m.start()].split()) > 40]
        if ends:
            end = rng.choice(ends)
            found.append((flat[: end.start()], end[1]))
    endings = [word for _, word in found]
    items = []
    for beginning, word in found[:n]:
        near = sorted(set(re.findall(r"\b[a-z]{4,}\b", beginning)) & set(endings) - {word})
        wrong = rng.sample(near, min(2, len(near)))
        while len(wrong) < 3:
            other = rng.choice(endings)
            if other != word and other not in wrong:
                wrong.append(other)
        options = [word, *wrong]
        context = words(beginning)
        guess = max(options, key=lambda w: model.score(context, w))
        item = _choice_item(rng, beginning, word, wrong, "cloze", {"4-gram": guess})
        item["ngram_word"] = model.best(context)
        items.append(item)
    return items


def save(folder: Path, name: str, items: list[dict]) -> None:
    """Write one set as JSON Lines with ids."""
    with open(folder / f"{name}.jsonl", "w") as file:
        for number, item in enumerate(items):
            file.write(json.dumps({"id": f"{name}-{number}", **item}) + "\n")
