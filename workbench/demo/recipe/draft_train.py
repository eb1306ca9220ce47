"""Train a DSpark drafter on text that its target writes.

python -m workbench.demo.recipe.draft_train LEVELS tokenizer.json heldout.json OUT --seconds 150
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from workbench.demo.recipe.draft_data import prompt_tokens, write_on
from workbench.demo.recipe.draft_model import Drafter, DraftShape
from workbench.demo.recipe.model import DemoModel
from workbench.demo.recipe.optim import make_optimizers
from workbench.demo.recipe.weights import load_into, load_levels, save_levels

SEED = 5
CE_WEIGHT, L1_WEIGHT, CONFIDENCE_WEIGHT = 0.1, 0.9, 1.0
PROMPT_LENGTHS = (8, 16, 24, 40, 64)


def drafter_loss(drafter: Drafter, target: DemoModel, ids: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the DSpark loss and the teacher-forced top-1 agreement per slot.

    Cross-entropy, L1 distance of the distributions and confidence against 1 - L1 / 2, slots weighted exp(-slot / 4)
    (arXiv 2607.05147).
    """
    block = drafter.shape.block
    with torch.no_grad():
        final, _, inputs = target.body(ids)
        features = torch.cat([inputs[tap] for tap in drafter.shape.taps], -1)
        slots = anchors[:, None] + torch.arange(block, device=ids.device)
        p_target = target.head(final[:, slots]).float().softmax(-1)
        previous, goal = ids[:, slots], ids[:, slots + 1]
    hidden = drafter.hidden(features, ids[:, anchors], anchors, target.embedding)
    logits = F.linear(hidden, target.embedding.to(hidden.dtype)).float() + drafter.bias(previous)
    log_p = logits.log_softmax(-1)
    distance = (log_p.exp() - p_target).abs().sum(-1)
    cross_entropy = -log_p.gather(-1, goal[..., None])[..., 0]
    confidence = F.binary_cross_entropy_with_logits(
        drafter.confidence(hidden, previous), 1 - distance.detach() / 2, reduction="none"
    )
    weight = torch.exp(-torch.arange(block, device=ids.device) / 4)
    loss = CE_WEIGHT * cross_entropy + L1_WEIGHT * distance + CONFIDENCE_WEIGHT * confidence
    agreement = (logits.argmax(-1) == p_target.argmax(-1)).float().mean((0, 1))
    return (loss * weight).sum(-1).mean() / weight.sum(), agreement


@torch.no_grad()
def accepted_lengths(drafter: Drafter, target: DemoModel, ids: Tensor, n_prompt: int) -> dict:
    """Replay greedy speculative decoding over greedy text ids [B, T]; return tau and acceptance per slot."""
    t = ids.shape[1]
    block = drafter.shape.block
    anchors = torch.arange(n_prompt, t - block - 1, device=ids.device)
    _, _, inputs = target.body(ids)
    features = torch.cat([inputs[tap] for tap in drafter.shape.taps], -1)
    pieces = []
    for part in anchors.split(32):
        hidden = drafter.hidden(features, ids[:, part], part, target.embedding)
        draft = drafter.propose(hidden, ids[:, part], target.embedding)
        goal = ids[:, part[:, None] + 1 + torch.arange(block, device=ids.device)]
        pieces.append((draft == goal).long().cumprod(-1).sum(-1))
    accepted = torch.cat(pieces, 1).cpu()
    rounds = emitted = 0
    reached, kept = [0] * block, [0] * block
    for row in accepted.tolist():
        at = 0
        while at < len(row):
            n = row[at]
            rounds, emitted = rounds + 1, emitted + n + 1
            for slot in range(min(n + 1, block)):
                reached[slot] += 1
                kept[slot] += slot < n
            at += n + 1
    return {
        "tau": emitted / rounds,
        "rounds": rounds,
        "acceptance_given_reached": [k / max(1, r) for k, r in zip(kept, reached, strict=False)],
        "acceptance": [k / rounds for k in kept],
    }


@torch.no_grad()
def held_out_tau(
    drafter: Drafter,
    target: DemoModel,
    tokenizer: Tokenizer,
    heldout: Path,
    device: str,
    n: int,
    length: int,
    n_prompt: int = 32,
) -> dict:
    """Return tau by kind on the greedy continuation of held-out documents."""
    documents = json.loads(heldout.read_text())
    results = {}
    for kind in ("story", "talk", "fact", "howto", "desc"):
        encoded = [e.ids for e in tokenizer.encode_batch([d["document"] for d in documents if d["kind"] == kind][:n])]
        rows = [[0, *ids[: n_prompt - 1]] for ids in encoded if len(ids) >= n_prompt]
        if rows:
            prompts = torch.tensor(rows, device=device)
            text = write_on(target, prompts, length, torch.zeros(len(rows), device=device))
            results[kind] = {"n": len(rows), **accepted_lengths(drafter, target, text, n_prompt)}
    return results


def main() -> None:
    """Write `draft.csv`, `draft.json` and the level parts of the drafter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("levels", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("heldout", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--texts", type=int, default=12, help="batches of self-written text")
    parser.add_argument("--rows", type=int, default=4096, help="sequences per batch of text")
    parser.add_argument("--length", type=int, default=320)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--anchors", type=int, default=32)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--held", type=int, default=200, help="held-out documents per kind")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    target = DemoModel(dtype=torch.bfloat16 if cuda else torch.float32, grouped=cuda)
    load_into(target, load_levels(args.levels))
    target = target.to(device).requires_grad_(False)
    began = time.time()
    heat = torch.zeros(args.rows, device=device)
    heat[args.rows // 2 :] = 0.7
    texts = torch.cat(
        [
            write_on(
                target,
                prompt_tokens(tokenizer, rng, args.rows, PROMPT_LENGTHS[i % len(PROMPT_LENGTHS)]).to(device),
                args.length,
                heat,
            )
            for i in range(args.texts)
        ]
    )
    print(f"self-written {texts.numel()} tokens {time.time() - began:.0f} s", flush=True)
    drafter = Drafter(DraftShape(), target.shape).to(device)
    muon, adam = make_optimizers(drafter, muon_lr=args.muon_lr, adam_lr=2e-3, weight_decay=0.0)
    base = [group["lr"] for group in adam.param_groups]
    began, step = time.time(), 0
    with open(args.out / "draft.csv", "w", newline="") as file:
        log = csv.writer(file)
        log.writerow(["step", "seconds", "loss", *[f"agreement_{i}" for i in range(drafter.shape.block)]])
        while (progress := (time.time() - began) / args.seconds) < 1:
            rows = torch.randint(0, len(texts), (args.batch,), device=device)
            limit = args.length - drafter.shape.block - 1
            anchors = torch.randperm(limit - 4, device=device)[: args.anchors] + 4
            loss, agreement = drafter_loss(drafter, target, texts[rows], anchors)
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
    result = {
        "steps": step,
        "seconds": round(time.time() - began, 1),
        "self_written_tokens": texts.numel(),
        "torch": torch.__version__,
        "seed": SEED,
        "parameters": sum(p.numel() for p in drafter.parameters()),
    }
    (args.out / "draft.json").write_text(json.dumps(result, indent=1))
    print(f"DRAFTER {result}", flush=True)
    result["held_out"] = held_out_tau(drafter, target, tokenizer, args.heldout, device, args.held, 256 if cuda else 64)
    (args.out / "draft.json").write_text(json.dumps(result, indent=1))
    print(f"HELD OUT {result['held_out']}", flush=True)


if __name__ == "__main__":
    main()
