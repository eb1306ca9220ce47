"""Keep full-precision logits of a few prompts, and compare llama.cpp with PyTorch and with the tokenizer.

python -m workbench.demo.recipe.reference LEVELS tokenizer.json evals MODEL-f32.gguf MODEL-q8_0.gguf OUT.npz
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from workbench.demo.recipe.model import DemoModel
from workbench.demo.recipe.scoring import GgufModel, log_softmax
from workbench.demo.recipe.weights import load_into, load_levels

PROMPTS = [
    "Once upon a time, there was a little girl named Lily. She liked to play",
    "Q: What is 27 + 15? A:",
    "Q: Tom has a red ball. Mia has a blue cup. What does Mia have? A:",
    "The rain fell on the roof, and the cat",
]


def _pieces(evals: Path) -> list[str]:
    texts = [json.loads(line)["text"] for line in (evals / "story_text.jsonl").read_text().splitlines()[:300]]
    for name in ("arith_unseen", "state", "cloze"):
        texts += [json.loads(line)["prompt"] for line in (evals / f"{name}.jsonl").read_text().splitlines()[:150]]
    return [*texts, "naïve café — 12,345.67 €\n\n\tx == y;", "  two  spaces", "日本語 and ١٢٣", "1e-5 2026-01-31", ""]


def main() -> None:
    """Write the npz; print parity as one JSON line."""
    levels, tokenizer_path, evals, f32_path, q8_path, out = map(Path, sys.argv[1:7])
    model = DemoModel(dtype=torch.float32, grouped=False)
    load_into(model, load_levels(levels))
    f32, q8 = GgufModel(f32_path, exact=True), GgufModel(q8_path)
    arrays: dict[str, np.ndarray] = {"prompts": np.array(PROMPTS)}
    worst, kl, agree, count = 0.0, 0.0, 0, 0
    for number, prompt in enumerate(PROMPTS):
        tokens = f32.tokenize(prompt, bos=True)
        with torch.no_grad():
            logits = model.head(model.body(torch.tensor([tokens]))[0])[0].numpy()
        f32.forget()
        q8.forget()
        worst = max(worst, float(np.abs(f32.logits(tokens) - logits).max()))
        p, q = log_softmax(logits), log_softmax(q8.logits(tokens))
        kl += float((np.exp(p) * (p - q)).sum())
        agree += int((p.argmax(-1) == q.argmax(-1)).sum())
        count += len(tokens)
        arrays[f"tokens_{number}"] = np.array(tokens, np.int32)
        arrays[f"logits_{number}"] = logits.astype(np.float32)
    np.savez_compressed(out, allow_pickle=False, **arrays)
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    texts = _pieces(evals)
    mismatches = sum(f32.tokenize(text, bos=False) != tokenizer.encode(text).ids for text in texts)
    print(
        json.dumps(
            {
                "f32_max_abs_difference": worst,
                "q8_0_mean_kl": kl / count,
                "q8_0_top1_agreement": agree / count,
                "positions": count,
                "tokenizer_texts": len(texts),
                "tokenizer_mismatches": mismatches,
            }
        )
    )


if __name__ == "__main__":
    main()
