"""Train the demo model for a given time on a mix of token streams.

python -m workbench.demo.recipe.train CORPUS OUT --minutes 10
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from workbench.demo.recipe.model import DemoModel, Shape
from workbench.demo.recipe.optim import make_optimizers
from workbench.demo.recipe.weights import save_levels

SEED = 0
BALANCE_WEIGHT, Z_WEIGHT = 0.01, 1e-4
WARMUP_STEPS = 100
CONSTANT_SHARE = 0.35
VALIDATION = ("story", "talk", "fact", "howto", "desc", "synthetic")


class Mixture:
    """Draws windows of n_ctx + 1 tokens without replacement from each stream, in fixed shares."""

    def __init__(self, streams: dict[str, Tensor], counts: dict[str, int], n_ctx: int) -> None:
        self.streams, self.counts, self.n_ctx = streams, counts, n_ctx
        self.order: dict[str, Tensor] = {}
        self.used = dict.fromkeys(streams, 0)
        self.epochs = dict.fromkeys(streams, 0)
        self.span = torch.arange(n_ctx + 1, device=next(iter(streams.values())).device)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return inputs and targets [batch, n_ctx]."""
        rows = []
        for name, count in self.counts.items():
            data = self.streams[name]
            if name not in self.order or self.used[name] + count > len(self.order[name]):
                offset = int(torch.randint(0, self.n_ctx, (1,)))
                n_windows = (len(data) - offset - 1) // self.n_ctx
                self.order[name] = (torch.randperm(n_windows) * self.n_ctx + offset).to(data.device)
                self.epochs[name] += 1
                self.used[name] = 0
            start = self.order[name][self.used[name] : self.used[name] + count]
            self.used[name] += count
            rows.append(data[start[:, None] + self.span])
        windows = torch.cat(rows).long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def progress(self) -> dict[str, float]:
        """Return how many epochs of each stream were used."""
        return {n: round(self.epochs[n] - 1 + self.used[n] / len(self.order[n]), 2) for n in self.order}


def schedule(step: int, progress: float) -> float:
    """Return the learning-rate factor: warm-up, constant, then linear decay to 1 %."""
    decay = 1.0 if progress < CONSTANT_SHARE else max(0.01, (1 - progress) / (1 - CONSTANT_SHARE))
    return min(1.0, (step + 1) / WARMUP_STEPS) * decay


@torch.no_grad()
def validate(model: DemoModel, corpus: Path, *, n_windows: int = 400) -> dict[str, float]:
    """Return mean nats per token of each held-out stream."""
    losses, n_ctx = {}, model.shape.n_ctx
    for kind in VALIDATION:
        data = np.fromfile(corpus / f"val_{kind}.bin", np.uint16).astype(np.int64)
        n = min(n_windows, (len(data) - 1) // n_ctx)
        if n <= 0:
            continue
        windows = torch.from_numpy(np.stack([data[i * n_ctx : i * n_ctx + n_ctx + 1] for i in range(n)]))
        windows = windows.to(model.embedding.device)
        total = sum(model(w[:, :-1], w[:, 1:])[0].item() * len(w) for w in windows.split(32))
        losses[kind] = round(total / n, 4)
    return losses


def main() -> None:
    """Train; write `train.csv`, `validation.jsonl`, `final.pt`, the level parts and `train.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--batch", type=int, default=256, help="sequences per step")
    parser.add_argument("--synthetic-share", type=float, default=0.30)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=2e-3)
    parser.add_argument("--tiny", action="store_true", help="two layers of four experts: a smoke test on a CPU")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")
    shape = Shape(n_layer=2, n_expert=4, n_expert_used=2, n_ctx=64) if args.tiny else Shape()
    model = DemoModel(shape, dtype=torch.bfloat16 if cuda else torch.float32, grouped=cuda).to(device)
    muon, adam = make_optimizers(model, muon_lr=args.muon_lr, adam_lr=args.adam_lr)
    base = [group["lr"] for group in adam.param_groups]
    forward = torch.compile(model, dynamic=False) if cuda else model
    streams = {
        n: torch.from_numpy(np.fromfile(args.corpus / f"train_{n}.bin", np.uint16).astype(np.int16)).to(device)
        for n in ("teacher", "synthetic")
    }
    n_synthetic = round(args.batch * args.synthetic_share)
    mixture = Mixture(streams, {"teacher": args.batch - n_synthetic, "synthetic": n_synthetic}, shape.n_ctx)
    budget = args.minutes * 60
    began, step, next_validation = None, 0, 0.25
    losses = torch.zeros(50, device=device)
    with open(args.out / "train.csv", "w", newline="") as file, open(args.out / "validation.jsonl", "w") as val_file:
        log = csv.writer(file)
        log.writerow(["step", "seconds", "tokens", "loss", "balance", "z", "max_load", "min_load", "lr_factor"])
        while True:
            progress = 0.0 if began is None else (time.time() - began) / budget
            if progress >= 1:
                break
            factor = schedule(step, progress)
            ids, targets = mixture.batch()
            loss, balance, z, count = forward(ids, targets)
            (loss + BALANCE_WEIGHT * balance + Z_WEIGHT * z).backward()
            torch.nn.utils.clip_grad_norm_([p for g in adam.param_groups for p in g["params"]], 1.0)
            for group, lr in zip(adam.param_groups, base, strict=False):
                group["lr"] = lr * factor
            if muon:
                muon.step(factor)
            adam.step()
            model.zero_grad(set_to_none=True)
            losses[step % 50] = loss.detach()
            step += 1
            if step == 3:
                loss.item()
                began = time.time()
            if step % 50 == 0 and began is not None:
                mean = losses.mean().item()
                if not math.isfinite(mean):
                    raise FloatingPointError(f"loss is {mean} at step {step}")
                share = count.float() / count.float().sum(1, keepdim=True) * shape.n_expert
                spent = time.time() - began
                row = [
                    step,
                    round(spent, 1),
                    step * ids.numel(),
                    round(mean, 4),
                    round(balance.item(), 4),
                    round(z.item(), 2),
                    round(share.max().item(), 2),
                    round(share.min().item(), 2),
                    round(factor, 4),
                ]
                log.writerow(row)
                file.flush()
                if step % 250 == 0:
                    print(row, mixture.progress(), f"{(step - 3) * ids.numel() / spent:.0f} tok/s", flush=True)
            if progress > next_validation:
                next_validation += 0.25
                val_file.write(json.dumps({"step": step, **validate(model, args.corpus, n_windows=100)}) + "\n")
                val_file.flush()
                torch.save(model.state_dict(), args.out / "middle.pt")
    seconds = time.time() - began if began else 0.0
    result = {
        "steps": step,
        "tokens": step * args.batch * shape.n_ctx,
        "seconds": round(seconds, 1),
        "epochs": mixture.progress(),
        "muon_lr": args.muon_lr,
        "adam_lr": args.adam_lr,
        "batch": args.batch,
        "synthetic_share": args.synthetic_share,
        "torch": torch.__version__,
        "seed": SEED,
        "validation": validate(model, args.corpus),
    }
    torch.save(model.state_dict(), args.out / "final.pt")
    save_levels(model, args.out / "levels")
    (args.out / "train.json").write_text(json.dumps(result, indent=1))
    print(f"TRAINED {result}", flush=True)


if __name__ == "__main__":
    main()
