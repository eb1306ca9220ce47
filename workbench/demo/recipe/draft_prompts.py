"""Write held-out prompts as token ids for draft_check.

python -m workbench.demo.recipe.draft_prompts tokenizer.json heldout.json evals OUT.txt --count 40
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer

END_OF_TEXT = 0
N_PROMPT = 32


def main() -> None:
    """Take the first tokens of held-out documents of each kind, and whole questions of the suite."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("heldout", type=Path)
    parser.add_argument("evals", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=40)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    documents = json.loads(args.heldout.read_text())
    lines = []
    for kind in ("story", "talk", "fact", "howto", "desc"):
        texts = [d["document"] for d in documents if d["kind"] == kind]
        rows = [tokenizer.encode(text).ids[: N_PROMPT - 1] for text in texts[-3 * args.count :]]
        lines += [(kind, row) for row in rows if len(row) == N_PROMPT - 1][: args.count]
    for name in ("state", "recall"):
        items = (args.evals / f"{name}.jsonl").read_text().splitlines()[: args.count // 2]
        lines += [("questions", tokenizer.encode(json.loads(item)["prompt"]).ids) for item in items]
    args.out.write_text("".join(f"{kind} {END_OF_TEXT} {' '.join(map(str, row))}\n" for kind, row in lines))


if __name__ == "__main__":
    main()
