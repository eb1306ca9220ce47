"""A tiny model and questions that this very model answers: it beats chance by construction, so faults show."""

from __future__ import annotations

import json
import string
from pathlib import Path

import numpy as np

from workbench import Session

SHAPE = {"n_layer": 2, "n_expert": 8, "n_expert_used": 2, "n_vocab": 257, "n_ctx": 512, "dtype": "f32"}
LETTERS = np.frombuffer(string.ascii_lowercase.encode(), np.uint8).astype(int)
SIZES = {"n_ctx": 1024, "n_batch": 256, "n_ubatch": 256, "n_seq_max": 32, "threads": 1}
WORDS = ("river", "lamp", "quiet", "seven", "basket", "of", "the", "under", "moon", "runs", "to", "green", "and", "a")


def questions(model: Path, folder: Path, *, n: int = 160, name: str = "next") -> Path:
    """Write `n` four-choice items: two letters, the first shared, the second the model's own (or another).

    The prompt's likeliest letter, then the likeliest letter after that, is right by the model's own account.
    """
    rng = np.random.default_rng(7)
    prompts = [" ".join(rng.choice(WORDS, 5)) for _ in range(n)]
    items = []
    with Session(model, experts="resident", telemetry="off", logits_hash=False, **SIZES) as session:

        def best(text: str) -> tuple[str, list[str]]:
            session.clear()
            tokens = session.tokenize(text, add_bos=False)
            row = session.evaluate(tokens, range(len(tokens)), [0] * len(tokens), [False] * (len(tokens) - 1) + [True])
            order = LETTERS[np.argsort(-row[0][LETTERS])]
            return chr(order[0]), [chr(x) for x in order[1:]]

        for number, prompt in enumerate(prompts):
            first, _ = best(prompt)
            second, others = best(prompt + first)
            choices = [first + second, *(first + o for o in rng.choice(others[:12], 3, replace=False))]
            order = rng.permutation(4)
            items.append(
                {
                    "id": f"{name}-{number}",
                    "prompt": prompt,
                    "choices": [choices[i] for i in order],
                    "gold": int(np.flatnonzero(order == 0)[0]),
                    "source": "the model itself",
                    "baselines": {"first": 0},
                }
            )
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return folder


def texts(folder: Path, *, n: int = 6, name: str = "texts") -> Path:
    """Write plain texts."""
    rng = np.random.default_rng(8)
    rows = [{"id": f"{name}-{i}", "text": " ".join(rng.choice(WORDS, 60 + 20 * i))} for i in range(n)]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
