"""Let the teacher write the corpus until the time is up.

python -m workbench.demo.recipe.generate TEACHER OUT --seconds 360
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from dataclasses import astuple
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from workbench.demo.recipe.prompts import teacher_prompt
from workbench.demo.recipe.teacher import EOS, Sampler, Teacher, chat

N_PROMPT_MAX = 70
SEED = 11


def main() -> None:
    """Write `prompts.json` and one `raw_*.npz` (prompt indices, token ids) per batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=360)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--new", type=int, default=240)
    parser.add_argument("--pool", type=int, default=900_000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    tokenizer = Tokenizer.from_file(str(next(args.teacher.glob("**/teacher_tokenizer.json"))))
    prompts = [teacher_prompt(rng) for _ in range(args.pool)]
    ids: list[list[int]] = []
    by_length: dict[int, list[int]] = defaultdict(list)
    for start in range(0, args.pool, 50_000):
        texts = [chat(p.request, p.start) for p in prompts[start : start + 50_000]]
        for offset, encoding in enumerate(tokenizer.encode_batch(texts)):
            by_length[len(encoding.ids)].append(start + offset)
            ids.append(encoding.ids)
    batches = [
        group[i : i + args.batch]
        for length, group in by_length.items()
        if length <= N_PROMPT_MAX
        for i in range(0, len(group) - args.batch + 1, args.batch)
    ]
    rng.shuffle(batches)
    (args.out / "prompts.json").write_text(json.dumps([astuple(p) for p in prompts]))
    print(f"prompts {len(prompts)} batches {len(batches)}", flush=True)
    torch._dynamo.config.cache_size_limit = 64
    sampler = Sampler(
        Teacher(args.teacher, device, torch.bfloat16 if device == "cuda" else torch.float32),
        device,
        compiled=device == "cuda",
    )
    began, n_tokens = time.time(), 0
    for number, rows in enumerate(batches):
        if time.time() - began > args.seconds:
            break
        tokens = sampler.run(
            torch.tensor([ids[i] for i in rows]),
            args.new,
            temperature=rng.choice([0.5, 0.6, 0.7, 0.8]),
            min_p=0.1,
            presence=0.35,
            capacity=N_PROMPT_MAX + args.new,
            shrink_to=[args.batch // 2, args.batch // 4],
        )
        np.savez(args.out / f"raw_{number}.npz", prompt=np.array(rows, np.int32), tokens=tokens.astype(np.uint16))
        ended = tokens == EOS
        n_tokens += int(np.where(ended.any(1), ended.argmax(1), args.new).sum())
        if number < 3 or number % 10 == 0:
            spent = time.time() - began
            print(f"batch {number} tokens {n_tokens} rate {n_tokens / spent:.0f}/s {spent:.0f} s", flush=True)
    print(f"GENERATED {n_tokens} tokens in {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
