"""Clean teacher answers and lay documents out as training text."""

from __future__ import annotations

import itertools
import random
import re

END_OF_TEXT = "<|endoftext|>"
_REPLACE = str.maketrans(
    {
        "\u2019": "'",
        "\u2018": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2014": " - ",
        "\u2013": "-",
        "\u2026": "...",
        "\u00a0": " ",
        "\u00e9": "e",
        "\u2028": "\n",
        "\u2212": "-",
        "\u00b0": " degrees",
    }
)
_UNWANTED = re.compile(
    r"http|www\.|SmolLM|language model|Instagram|Facebook|Twitter|\bAI\b|<\||[\[\]{}#\\@]|\bkill|\bmurder|\bsex|\bdrug"
    r"|\bsuicid|\bgun\b|\bnaked|\brape|\bwhore|\bslave|\bnigg|\bterror",
    re.IGNORECASE,
)
_CHAT_SHARE = {"story": 0.45, "talk": 0.6, "fact": 0.75, "howto": 0.9, "desc": 0.75}


def _distinct(items: list) -> float:
    return len(set(items)) / max(1, len(items))


def clean_answer(text: str, kind: str, *, finished: bool) -> str | None:
    """Return the answer in plain ASCII, cut at its last sentence, or None if it is repetitive or unsuitable."""
    text = text.translate(_REPLACE)
    text = re.sub(r"\*+", "", text)
    text = re.sub(r"[ \t]+\n", "\n", text).strip()
    text = re.sub(r"\n{3,}", "\n\n", text)
    text = re.sub(r"[ \t]{2,}", " ", text)
    if not text.isascii() or _UNWANTED.search(text):
        return None
    if not finished:
        ends = (". ", "! ", "? ", '." ', '!" ', ".\n", '."\n', '!"\n', '?" ')
        cut = max(text.rfind(end) for end in ends)
        if cut < len(text) * 0.5:
            return None
        text = text[: cut + 2].rstrip()
        if text.count('"') % 2 and text[-1] in ".!?":
            text += '"'
    tokens = text.lower().split()
    story = kind == "story"
    if len(tokens) < (45 if story else 14):
        return None
    if _distinct(list(zip(tokens, tokens[1:], tokens[2:], strict=False))) < (0.86 if story else 0.80):
        return None
    if _distinct(list(itertools.pairwise(tokens))) < 0.66 or _distinct(tokens) < 0.30:
        return None
    sentences = [s.strip().lower() for s in re.split(r"[.!?\n]+", text) if len(s.split()) > 2]
    if len(sentences) - len(set(sentences)) > 1:
        return None
    if sum(c.isdigit() for c in text) > 0.02 * len(text) + 4:
        return None
    return text


def chat_turn(request: str, answer: str) -> str:
    """Return one exchange in the chat format of the model."""
    return f"<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def document(rng: random.Random, request: str, text: str, kind: str) -> str:
    """Return a training document: the answer alone, or as a reply in the chat format."""
    body = chat_turn(request, text) if rng.random() < _CHAT_SHARE[kind] else text
    return body + END_OF_TEXT
