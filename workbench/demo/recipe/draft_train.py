"""Train a DSpark drafter on text that its target writes.

python -m workbench.demo.recipe.draft_train OUT --target MODEL.gguf --seconds 150
python -m workbench.demo.recipe.draft_train OUT --target LEVELS --tokenizer tokenizer.json --heldout heldout.json
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from workbench.demo.recipe.draft_data import SelfWritten, prompt_tokens, write_on
from workbench.demo.recipe.draft_model import DEMO_DRAFT, Drafter, draft_shape
from workbench.demo.recipe.model import DemoModel
from workbench.demo.recipe.optim import make_optimizers
from workbench.demo.recipe.weights import load_into, load_levels, save_levels
from workbench.storage.gguf_file import open_gguf

SEED = 5
CE_WEIGHT, L1_WEIGHT, CONFIDENCE_WEIGHT = 0.1, 0.9, 1.0
PROMPT_LENGTHS = (8, 16, 24, 40, 64)


class Texts(Protocol):
    """Text of a target to train from: `SelfWritten` or `Recording`."""

    embedding: Tensor

    def head(self, hidden: Tensor) -> Tensor:
        """Return the target's logits of normalised hidden states."""

    def look(self, rows: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Return tokens, features, the tokens whose probabilities are known (None: all), and these probabilities."""


def drafter_loss(drafter: Drafter, texts: Texts, rows: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the DSpark loss and the teacher-forced top-1 agreement per slot.

    Cross-entropy, L1 distance of the distributions and confidence against 1 - L1 / 2, slots weighted exp(-slot / 4)
    (arXiv 2607.05147). Tokens beyond the known ones count as one.
    """
    slots = anchors[:, None] + torch.arange(drafter.shape.block, device=anchors.device)
    ids, features, kept, p_target = texts.look(rows, slots)
    previous, goal = ids[:, slots], ids[:, slots + 1]
    hidden = drafter.hidden(features, ids[:, anchors], anchors, texts.embedding)
    logits = texts.head(hidden).float() + drafter.bias(previous)
    log_p = logits.log_softmax(-1)
    if kept is None:
        distance, best = (log_p.exp() - p_target).abs().sum(-1), p_target.argmax(-1)
    else:
        p = log_p.gather(-1, kept).exp()
        distance, best = (p - p_target).abs().sum(-1) + (p.sum(-1) - p_target.sum(-1)).abs(), kept[..., 0]
    cross_entropy = -log_p.gather(-1, goal[..., None])[..., 0]
    confidence = F.binary_cross_entropy_with_logits(
        drafter.confidence(hidden, previous), 1 - distance.detach() / 2, reduction="none"
    )
    weight = torch.exp(-torch.arange(drafter.shape.block, device=anchors.device) / 4)
    loss = CE_WEIGHT * cross_entropy + L1_WEIGHT * distance + CONFIDENCE_WEIGHT * confidence
    agreement = (logits.argmax(-1) == best).float().mean((0, 1))
    return (loss * weight).sum(-1).mean() / weight.sum(), agreement


@torch.no_grad()
def accepted_lengths(
    drafter: Drafter, texts: Texts, ids: Tensor, features: Tensor, spans: Sequence[tuple[int, int]]
) -> dict:
    """Replay greedy speculative decoding over greedy text ids [B, T]; return tau and acceptance per slot.

    `spans` says for each row where the target's own text begins and ends.
    """
    block = drafter.shape.block
    first = min(start for start, _ in spans)
    anchors = torch.arange(first, ids.shape[1] - block - 1, device=ids.device)
    pieces = []
    for part in anchors.split(32):
        hidden = drafter.hidden(features, ids[:, part], part, texts.embedding)
        draft = drafter.propose(texts.head(hidden), ids[:, part])
        goal = ids[:, part[:, None] + 1 + torch.arange(block, device=ids.device)]
        pieces.append((draft == goal).long().cumprod(-1).sum(-1))
    accepted = torch.cat(pieces, 1).cpu()
    rounds = emitted = 0
    reached, kept = [0] * block, [0] * block
    for row, (start, stop) in zip(accepted.tolist(), spans, strict=True):
        at = start - first
        while at < min(len(row), stop - first):
            n = row[at]
            rounds, emitted = rounds + 1, emitted + n + 1
            for slot in range(min(n + 1, block)):
                reached[slot] += 1
                kept[slot] += slot < n
            at += n + 1
    return {
        "tau": emitted / max(1, rounds),
        "rounds": rounds,
        "acceptance_given_reached": [k / max(1, r) for k, r in zip(kept, reached, strict=True)],
        "acceptance": [k / max(1, rounds) for k in kept],
    }


@torch.no_grad()
def held_out_tau(
    drafter: Drafter, texts: SelfWritten, tokenizer: Tokenizer, heldout: Path, n: int, length: int, n_prompt: int = 32
) -> dict:
    """Return tau by kind on the greedy continuation of held-out documents."""
    documents = json.loads(heldout.read_text())
    results = {}
    for kind in ("story", "talk", "fact", "howto", "desc"):
        encoded = [e.ids for e in tokenizer.encode_batch([d["document"] for d in documents if d["kind"] == kind][:n])]
        rows = [[0, *ids[: n_prompt - 1]] for ids in encoded if len(ids) >= n_prompt]
        if rows:
            prompts = torch.tensor(rows, device=texts.ids.device)
            ids = write_on(texts.target, prompts, length, torch.zeros(len(rows), device=prompts.device))
            spans = [(n_prompt, length)] * len(rows)
            results[kind] = {"n": len(rows), **accepted_lengths(drafter, texts, ids, texts.read(ids)[1], spans)}
    return results


def demo_texts(args: argparse.Namespace, tokenizer: Tokenizer, device: str) -> SelfWritten:
    """Let the PyTorch target write: half of every batch greedily, half at temperature 0.7."""
    cuda = device == "cuda"
    rng = random.Random(SEED)
    target = DemoModel(dtype=torch.bfloat16 if cuda else torch.float32, grouped=cuda)
    load_into(target, load_levels(args.target))
    target = target.to(device).requires_grad_(False)
    rows = args.rows or 4096
    heat = torch.zeros(rows, device=device)
    heat[rows // 2 :] = 0.7
    ids = []
    for i in range(args.texts or 12):
        prompts = prompt_tokens(tokenizer, rng, rows, PROMPT_LENGTHS[i % len(PROMPT_LENGTHS)])
        ids.append(write_on(target, prompts.to(device), args.length, heat))
    return SelfWritten(target, torch.cat(ids), DEMO_DRAFT.taps)


def train(drafter: Drafter, texts: Texts, n_texts: int, args: argparse.Namespace, device: str) -> dict:
    """Train until the seconds or the steps are used up, whichever comes first; log to `draft.csv`."""
    muon, adam = make_optimizers(drafter, muon_lr=args.muon_lr, adam_lr=2e-3, weight_decay=0.0)
    base = [group["lr"] for group in adam.param_groups]
    began, step = time.time(), 0
    with open(args.out / "draft.csv", "w", newline="") as file:
        log = csv.writer(file)
        log.writerow(["step", "seconds", "loss", *[f"agreement_{i}" for i in range(drafter.shape.block)]])
        while step < args.steps and (passed := (time.time() - began) / args.seconds) < 1:
            progress = max(passed, step / args.steps)
            rows = torch.randint(0, n_texts, (args.batch,), device=device)
            limit = args.length - drafter.shape.block - 1
            anchors = torch.randperm(limit - 4, device=device)[: args.anchors] + 4
            loss, agreement = drafter_loss(drafter, texts, rows, anchors)
            loss.backward()
            factor = min(1.0, (step + 1) / 50) * min(1.0, max(0.01, (1 - progress) / 0.6))
            torch.nn.utils.clip_grad_norm_([p for g in adam.param_groups for p in g["params"]], 1.0)
            for group, lr in zip(adam.param_groups, base, strict=False):
                group["lr"] = lr * factor
            if muon:
                muon.step(factor)
            adam.step()
            drafter.zero_grad(set_to_none=True)
            step += 1
            if step % 25 == 0:
                row = [
                    step,
                    round(time.time() - began, 1),
                    round(loss.item(), 4),
                    *[round(a, 4) for a in agreement.tolist()],
                ]
                log.writerow(row)
                file.flush()
                if step % 250 == 0:
                    print(row, flush=True)
    save_levels(drafter, args.out / "levels")
    return {
        "steps": step,
        "seconds": round(time.time() - began, 1),
        "self_written_tokens": n_texts * args.length,
        "torch": torch.__version__,
        "seed": SEED,
        "parameters": sum(p.numel() for p in drafter.parameters()),
        "shape": dataclasses.asdict(drafter.shape),
    }


def train_for_demo(args: argparse.Namespace, device: str) -> None:
    """Train for the demo model in PyTorch, and replay held-out documents."""
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    began = time.time()
    texts = demo_texts(args, tokenizer, device)
    print(f"self-written {texts.ids.numel()} tokens {time.time() - began:.0f} s", flush=True)
    drafter = Drafter(DEMO_DRAFT, texts.target.shape).to(device)
    result = train(drafter, texts, len(texts.ids), args, device)
    (args.out / "draft.json").write_text(json.dumps(result, indent=1))
    print(f"DRAFTER {result}", flush=True)
    length = 256 if device == "cuda" else 64
    result["held_out"] = held_out_tau(drafter, texts, tokenizer, args.heldout, args.held, length)
    (args.out / "draft.json").write_text(json.dumps(result, indent=1))
    print(f"HELD OUT {result['held_out']}", flush=True)


def train_for_gguf(args: argparse.Namespace, device: str) -> None:
    """Record a GGUF target through llama.cpp, train from the recording, and replay its last greedy texts."""
    from workbench.demo.recipe import draft_target

    file = open_gguf(args.target)
    target_shape = draft_target.target_shape(file)
    chosen = {"n_layer": args.layers, "n_rank": args.rank, "block": args.block, "taps": args.taps}
    shape = draft_shape(target_shape, draft_target.mask_token(file), **{k: v for k, v in chosen.items() if v})
    rows, batches, began = args.rows or 16, args.texts or 64, time.time()
    sizes = {"batches": batches, "rows": rows, "length": args.length, "keep": args.keep, "seed": SEED}
    toggles = {"experts": args.experts, "cache_slots": args.cache_slots, "threads": args.threads}
    folder = args.out / "recording"
    draft_target.record(args.target, shape.taps, folder, prompts=args.prompts, **sizes, **toggles)
    n = batches * rows
    print(f"recorded {n * args.length} tokens {time.time() - began:.0f} s", flush=True)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    texts = draft_target.Recording(folder, args.target, device, dtype)
    held = np.arange(n - max(2, min(args.held, n // 10)), n)
    greedy = held[held % 2 == 0]
    replay = (*texts.whole(greedy), texts.spans[greedy].tolist())
    drafter = Drafter(shape, target_shape).to(device)
    untrained = accepted_lengths(drafter, texts, *replay)
    result = train(drafter, texts, int(held[0]), args, device)
    result["held_out"] = {"untrained": untrained, "trained": accepted_lengths(drafter, texts, *replay)}
    (args.out / "draft.json").write_text(json.dumps(result, indent=1))
    print(f"DRAFTER {result}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Write `draft.csv`, `draft.json` and the level parts of the drafter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", type=Path, required=True, help="a GGUF file, or the demo model's level parts")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--steps", type=int, default=10**9, help="most steps; 0 leaves the drafter untrained")
    parser.add_argument("--texts", type=int, help="batches of self-written text (12; of a GGUF 64)")
    parser.add_argument("--rows", type=int, help="sequences per batch of text (4096; of a GGUF 16)")
    parser.add_argument("--length", type=int, default=320)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--anchors", type=int, default=32)
    parser.add_argument("--muon-lr", type=float, help="0: AdamW alone (default: 0.02 on a GPU, 0 on a CPU)")
    parser.add_argument("--held", type=int, default=200, help="held-out documents per kind, or texts of a GGUF")
    demo = parser.add_argument_group("with level parts")
    demo.add_argument("--tokenizer", type=Path)
    demo.add_argument("--heldout", type=Path)
    any_gguf = parser.add_argument_group("with a GGUF file")
    any_gguf.add_argument("--prompts", type=Path, help="text, one prompt per line (default: the recipe's requests)")
    any_gguf.add_argument("--keep", type=int, default=256, help="likeliest tokens kept of every distribution")
    any_gguf.add_argument("--layers", type=int)
    any_gguf.add_argument("--rank", type=int)
    any_gguf.add_argument("--block", type=int)
    any_gguf.add_argument("--taps", type=int, nargs="+", help="layers whose input is read (default: three)")
    any_gguf.add_argument("--experts", choices=["resident", "flash"], default="resident")
    any_gguf.add_argument("--cache-slots", type=int, default=0)
    any_gguf.add_argument("--threads", type=int, default=0, help="of llama.cpp; 0: automatic")
    args = parser.parse_args(argv)
    is_file = args.target.is_file()
    if not is_file and not (args.tokenizer and args.heldout):
        parser.error("level parts need --tokenizer and --heldout")
    cuda = torch.cuda.is_available()
    if args.muon_lr is None:
        args.muon_lr = 0.02 if cuda else 0.0
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    (train_for_gguf if is_file else train_for_demo)(args, "cuda" if cuda else "cpu")


if __name__ == "__main__":
    main()
