"""Muon for the matrices (all of one shape in a single batch), AdamW for the rest."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

MATRICES = ("wq", "wk", "wv", "wo", "gate_up", "down")


def orthogonalize(g: Tensor, steps: int = 5) -> Tensor:
    """Return the nearest (semi-)orthogonal matrices of a batch by Newton-Schulz iteration in bfloat16."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.transpose(-1, -2) if tall else x


class Muon:
    """Momentum, orthogonalised; fused gate and up projections are treated as two matrices."""

    def __init__(
        self, named: list[tuple[str, nn.Parameter]], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = defaultdict(list)
        for name, p in named:
            rows = p.shape[-2] // (2 if name.endswith("gate_up") else 1)
            self.groups[rows, p.shape[-1]].append(p)
        self.buffers = {id(p): torch.zeros_like(p) for _, p in named}

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Update with `factor` times the learning rate."""
        for (rows, cols), parameters in self.groups.items():
            updates = []
            for p in parameters:
                buffer = self.buffers[id(p)]
                buffer.lerp_(p.grad, 1 - self.momentum)
                updates.append(p.grad.lerp(buffer, self.momentum).view(-1, rows, cols).bfloat16())
            whole = orthogonalize(torch.cat(updates))
            scale = self.lr * factor * max(1.0, rows / cols) ** 0.5
            at = 0
            for p, update in zip(parameters, updates, strict=False):
                piece = whole[at : at + len(update)]
                at += len(update)
                p.mul_(1 - self.lr * factor * self.weight_decay).add_(piece.reshape(p.shape), alpha=-scale)


def make_optimizers(
    model: nn.Module,
    *,
    muon_lr: float,
    adam_lr: float,
    weight_decay: float = 0.01,
) -> tuple[Muon | None, torch.optim.AdamW]:
    """Return Muon and AdamW; with `muon_lr` 0 AdamW alone takes everything."""
    named = list(model.named_parameters())
    matrices = [(n, p) for n, p in named if n.rsplit(".", 1)[-1] in MATRICES] if muon_lr > 0 else []
    taken = {id(p) for _, p in matrices}
    rest = [p for _, p in named if id(p) not in taken]
    groups = [
        {"params": [p for p in rest if p.dim() > 1], "weight_decay": weight_decay if muon_lr > 0 else 0.1},
        {"params": [p for p in rest if p.dim() == 1], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, lr=adam_lr, betas=(0.9, 0.95), eps=1e-10, fused=rest[0].is_cuda)
    return (Muon(matrices, lr=muon_lr) if matrices else None), adam
