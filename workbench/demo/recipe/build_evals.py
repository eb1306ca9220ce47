"""Build the evaluation sets that need held-out stories, with an n-gram model of the training text beside them.

python -m workbench.demo.recipe.build_evals CORPUS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from workbench.demo.recipe import evalsets
from workbench.demo.recipe.ngram import WordModel

N_NGRAM_DOCUMENTS = 40_000
N_STORY_TEXTS = 600


def training_texts(corpus: Path, n: int) -> list[str]:
    """Return the first `n` training documents as text."""
    tokens = np.fromfile(corpus / "train_teacher.bin", np.uint16)
    ends = np.flatnonzero(tokens == 0)[:n]
    pieces = np.split(tokens[: ends[-1] + 1], ends[:-1] + 1)
    return Tokenizer.from_file(str(corpus / "tokenizer.json")).decode_batch([p.tolist() for p in pieces])


def main() -> None:
    """Write `ending`, `ending_hard`, `cloze` and `story_text` beside the question sets."""
    corpus = Path(sys.argv[1])
    held = json.loads((corpus / "heldout.json").read_text())
    stories = [d["text"] for d in held if d["kind"] == "story"]
    third = len(stories) // 3
    sets = {
        "ending": evalsets.ending_items(stories[:third], hard=False),
        "ending_hard": evalsets.ending_items(stories[:third], hard=True),
        "cloze": evalsets.cloze_items(stories[third : 2 * third], WordModel(training_texts(corpus, N_NGRAM_DOCUMENTS))),
        "story_text": [{"text": text, "source": "story"} for text in stories[2 * third :]][:N_STORY_TEXTS],
    }
    for name, items in sets.items():
        evalsets.save(corpus / "evals", name, items)
        print(name, len(items))


if __name__ == "__main__":
    main()
