"""Clean, hold out, de-duplicate, train the tokenizer, write token streams and the question sets.

python -m workbench.demo.recipe.corpus TEACHER RAW OUT
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from workbench.demo.recipe import evalsets
from workbench.demo.recipe.clean import END_OF_TEXT, clean_answer, document
from workbench.demo.recipe.overlap import hash_set, hits
from workbench.demo.recipe.synthetic import synthetic_document
from workbench.demo.recipe.teacher import EOS

N_VOCAB = 8192
SPECIAL = [END_OF_TEXT, "<|im_start|>", "<|im_end|>", "<|mask|>"]
SHARED: dict = {}


def clean_batch(path: str) -> tuple[list[tuple[str, str, str]], int]:
    """Return the kept (document, text, kind) of one batch of teacher answers, and how many there were."""
    tokenizer = Tokenizer.from_file(SHARED["teacher_tokenizer"])
    rng = random.Random(Path(path).name)
    data = np.load(path)
    tokens = data["tokens"]
    ended = (tokens == EOS) | (tokens == 0)
    finished = ended.any(1)
    lengths = np.where(finished, ended.argmax(1), tokens.shape[1])
    kept = []
    texts = tokenizer.decode_batch([row[:n].tolist() for row, n in zip(tokens, lengths, strict=False)])
    for number, text, done in zip(data["prompt"], texts, finished, strict=False):
        request, start, kind = SHARED["prompts"][number]
        start = start.strip()
        if start and text and (start[-1].isalnum() or start[-1] in '.,!?":') and text[0].isalnum():
            start += " "
        answer = clean_answer(start + text, kind, finished=bool(done))
        if answer:
            kept.append((document(rng, request, answer, kind), answer, kind))
    return kept, len(tokens)


def synthetic_batch(arguments: tuple[int, int]) -> list[str]:
    """Return `count` synthetic documents for one seed."""
    seed, count = arguments
    rng = random.Random(f"synthetic {seed}")
    return [synthetic_document(rng, SHARED["evaluated"]) for _ in range(count)]


def touched(texts: list[str]) -> np.ndarray:
    """Return the held-out n-grams that occur in these training texts."""
    found = [hits(text, SHARED["candidates"]) for text in texts]
    return np.unique(np.concatenate(found)) if found else np.zeros(0, np.uint64)


def encode(documents: list[str]) -> np.ndarray:
    """Return the tokens of the documents, one after the other."""
    tokenizer = Tokenizer.from_file(SHARED["tokenizer"])
    return np.concatenate([np.array(e.ids, np.uint16) for e in tokenizer.encode_batch(documents)])


def train_tokenizer(documents: list[str], path: Path) -> None:
    """Train a byte-level BPE with single digits (llama.cpp's pre-tokenizer `smollm`)."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        documents,
        trainers.BpeTrainer(
            vocab_size=N_VOCAB,
            special_tokens=SPECIAL,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer.save(str(path))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def hold_out(
    pool: multiprocessing.pool.Pool,
    kept: list[tuple[str, str, str]],
    n_candidates: int,
    n_held: int,
) -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]], dict]:
    """Split teacher documents into training and held-out ones that share no 13-gram with training."""
    candidates, training = kept[:n_candidates], kept[n_candidates:]
    known = {text for _, text, _ in candidates}
    training = [entry for entry in training if entry[1] not in known]
    with np.errstate(over="ignore"):
        dirty = np.unique(
            np.concatenate(
                pool.map(touched, [[t for _, t, _ in training[i : i + 4000]] for i in range(0, len(training), 4000)])
            )
        )
    clean = [entry for entry in candidates if len(hits(entry[1], dirty)) == 0]
    held = clean[:n_held]
    report = {"candidates": len(candidates), "sharing_a_13_gram": len(candidates) - len(clean), "held_out": len(held)}
    return training, held, report


def main() -> None:
    """Write `train_*.bin`, `val_*.bin`, `tokenizer.json`, `heldout.json`, `corpus.json` and `evals/`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("raw", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--synthetic", type=int, default=500_000, help="number of synthetic documents")
    parser.add_argument("--candidates", type=int, default=16_000)
    parser.add_argument("--held", type=int, default=4000)
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    began = time.time()
    (args.out / "evals").mkdir(parents=True, exist_ok=True)
    tokenizer_path = args.out / "tokenizer.json"
    question_sets = evalsets.question_sets()
    SHARED["teacher_tokenizer"] = str(next(args.teacher.glob("**/teacher_tokenizer.json")))
    SHARED["prompts"] = json.loads((args.raw / "prompts.json").read_text())
    SHARED["evaluated"] = hash_set(i["prompt"][3:-3] for items in question_sets.values() for i in items)
    SHARED["tokenizer"] = str(tokenizer_path)
    kept: list[tuple[str, str, str]] = []
    n_raw = 0
    with multiprocessing.Pool(args.processes) as pool:
        share = max(1, args.synthetic // 128)
        made = pool.map_async(synthetic_batch, [(seed, share) for seed in range(args.synthetic // share)])
        for entries, count in pool.imap(clean_batch, sorted(map(str, args.raw.glob("raw_*.npz")))):
            kept += entries
            n_raw += count
        synthetic = [text for batch in made.get() for text in batch]
    random.Random("teacher").shuffle(kept)
    random.Random("synthetic").shuffle(synthetic)
    print(f"raw {n_raw} kept {len(kept)} synthetic {len(synthetic)} {time.time() - began:.0f} s", flush=True)
    SHARED["candidates"] = hash_set(text for _, text, _ in kept[: args.candidates])
    with multiprocessing.Pool(args.processes) as pool:
        training, held, report = hold_out(pool, kept, args.candidates, args.held)
    print(f"held out {report} {time.time() - began:.0f} s", flush=True)
    n_val = max(1, min(2000, len(synthetic) // 50))
    synthetic_val, synthetic = synthetic[:n_val], synthetic[n_val:]
    seen = set(synthetic)
    synthetic_val = [text for text in synthetic_val if text not in seen]
    train_tokenizer([d for d, _, _ in training[:90_000]] + synthetic[:40_000], tokenizer_path)
    print(f"tokenizer {time.time() - began:.0f} s", flush=True)
    streams = {
        "train_teacher": [d for d, _, _ in training],
        "train_synthetic": synthetic,
        "val_synthetic": synthetic_val,
    }
    for kind in ("story", "talk", "fact", "howto", "desc"):
        streams[f"val_{kind}"] = [d for d, _, k in held if k == kind]
    sizes = {}
    with multiprocessing.Pool(args.processes) as pool:
        for name, documents in streams.items():
            parts = pool.map(encode, [documents[i : i + 4000] for i in range(0, len(documents), 4000)])
            tokens = np.concatenate(parts) if parts else np.zeros(0, np.uint16)
            tokens.tofile(args.out / f"{name}.bin")
            sizes[name] = {"documents": len(documents), "tokens": len(tokens), "bytes": sum(map(len, documents))}
    print(f"streams {sizes} {time.time() - began:.0f} s", flush=True)
    (args.out / "heldout.json").write_text(json.dumps([{"text": t, "kind": k, "document": d} for d, t, k in held]))
    for name, items in question_sets.items():
        evalsets.save(args.out / "evals", name, items)
    summary = {
        "raw": n_raw,
        "kept": Counter(k for _, _, k in kept),
        "hold_out": report,
        "streams": sizes,
        "seconds": round(time.time() - began),
    }
    (args.out / "corpus.json").write_text(json.dumps(summary, indent=1))
    print(f"CORPUS {summary}", flush=True)


if __name__ == "__main__":
    main()
