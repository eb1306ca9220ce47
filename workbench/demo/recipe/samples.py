"""Print twenty samples, unpicked: the first twenty prompts of one seed, sampled at temperature 0.7.

python -m workbench.demo.recipe.samples MODEL.gguf --out samples.md
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np

from workbench.demo.recipe.prompts import teacher_prompt
from workbench.demo.recipe.scoring import GgufModel
from workbench.demo.recipe.teacher import chat

N_SAMPLES, N_TOKENS, TEMPERATURE = 20, 160, 0.7


def main() -> None:
    """Alternate bare story beginnings and requests in the chat format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model = GgufModel(args.model)
    rng, noise = random.Random("samples"), np.random.default_rng(0)
    parts = []
    for number in range(N_SAMPLES):
        prompt = teacher_prompt(rng)
        while number % 2 == 0 and prompt.kind != "story":
            prompt = teacher_prompt(rng)
        text = chat(prompt.request, "") if number % 2 else prompt.start
        tokens = model.generate(
            model.tokenize(text, bos=True, special=True), N_TOKENS, stop={0, 2}, temperature=TEMPERATURE, rng=noise
        )
        shown = prompt.request if number % 2 else prompt.start
        answer = model.text(tokens).strip().replace("\n", " ")
        parts.append(f"{number + 1}. **{shown}** {answer}\n")
    args.out.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
