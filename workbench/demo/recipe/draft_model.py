"""The DSpark drafter in plain PyTorch, equal to llama.cpp's `dflash` graph with Markov and confidence heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workbench.demo.recipe.model import Shape, rms, rope, rope_tables


@dataclass(frozen=True)
class DraftShape:
    """Sizes of the drafter. `taps` are layer ids whose *input* is read (as in the GGUF); none may equal n_layer.

    `mask` is the token that fills a block after its anchor.
    """

    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 768
    n_rank: int = 64
    block: int = 6
    taps: tuple[int, ...] = (3, 6, 9)
    mask: int = 3


DEMO_DRAFT = DraftShape()
MAX_POSITIONS = 16384


def draft_shape(target: Shape, mask: int, n_taps: int = 3, **chosen: Any) -> DraftShape:
    """Return sizes in proportion to the target (for the demo model: `DEMO_DRAFT`), except those chosen."""
    heads = max(4, target.n_embd // target.head_dim // 4 * 4)
    taps = tuple(round((i + 1) * (target.n_layer - 1) / n_taps) for i in range(n_taps))
    sizes = {"n_head": heads, "n_head_kv": heads // 2, "n_ff": 3 * target.n_embd, "taps": taps, "mask": mask}
    return DraftShape(**{**sizes, **chosen})


class DraftLayer(nn.Module):
    """Weights of one dense block."""

    def __init__(self, shape: DraftShape, target: Shape) -> None:
        super().__init__()
        std, residual = 0.5 / math.sqrt(target.n_embd), 1 / math.sqrt(2 * shape.n_layer)
        q_dim, kv_dim = shape.n_head * target.head_dim, shape.n_head_kv * target.head_dim

        def matrix(*size: int, scale: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(*size) * scale)

        self.attn_norm = nn.Parameter(torch.ones(target.n_embd))
        self.ffn_norm = nn.Parameter(torch.ones(target.n_embd))
        self.q_norm = nn.Parameter(torch.ones(target.head_dim))
        self.k_norm = nn.Parameter(torch.ones(target.head_dim))
        self.wq = matrix(q_dim, target.n_embd, scale=std)
        self.wk = matrix(kv_dim, target.n_embd, scale=std)
        self.wv = matrix(kv_dim, target.n_embd, scale=std)
        self.wo = matrix(target.n_embd, q_dim, scale=std * residual)
        self.gate_up = matrix(2 * shape.n_ff, target.n_embd, scale=std)
        self.down = matrix(target.n_embd, shape.n_ff, scale=0.5 / math.sqrt(shape.n_ff) * residual)


class Drafter(nn.Module):
    """Reads target features of positions < a and the token at a; proposes tokens a+1 … a+block."""

    def __init__(self, shape: DraftShape, target: Shape) -> None:
        super().__init__()
        self.shape, self.target = shape, target
        n_in = len(shape.taps) * target.n_embd
        self.fc = nn.Parameter(torch.randn(target.n_embd, n_in) * (0.5 / math.sqrt(n_in)))
        self.enc_norm = nn.Parameter(torch.ones(target.n_embd))
        self.output_norm = nn.Parameter(torch.ones(target.n_embd))
        self.layers = nn.ModuleList([DraftLayer(shape, target) for _ in range(shape.n_layer)])
        self.markov_1 = nn.Parameter(torch.randn(target.n_vocab, shape.n_rank) * 0.02)
        self.markov_2 = nn.Parameter(torch.zeros(target.n_vocab, shape.n_rank))
        self.conf_weight = nn.Parameter(torch.zeros(1, target.n_embd + shape.n_rank))
        self.conf_bias = nn.Parameter(torch.zeros(1))
        cos, sin = rope_tables(target, min(2 * target.n_ctx, MAX_POSITIONS))
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _heads(self, x: Tensor, weight: Tensor, n: int) -> Tensor:
        return F.linear(x, weight.to(x.dtype)).view(*x.shape[:-1], n, self.target.head_dim).transpose(1, 2)

    def hidden(self, features: Tensor, tokens: Tensor, anchors: Tensor, embedding: Tensor) -> Tensor:
        """Return normalised hidden states [B, A, block, D].

        Parameters
        ----------
        features
            Concatenated taps of every position, [B, T, m * D].
        tokens
            Token at each anchor, [B, A].
        anchors
            Positions, shared by the batch, [A].
        embedding
            The target's token embedding; the mask token's row fills the block.
        """
        shape, target = self.shape, self.target
        b, t, _ = features.shape
        n_anchor, dtype, eps = len(anchors), features.dtype, target.rms_eps
        context = rms(F.linear(features, self.fc.to(dtype)), self.enc_norm, eps)
        block = torch.full((b, n_anchor, shape.block), shape.mask, device=tokens.device)
        block[..., 0] = tokens
        x = F.embedding(block.view(b, -1), embedding).to(dtype)
        position = (anchors[:, None] + torch.arange(shape.block, device=anchors.device)).view(-1)
        cos, sin = self.cos[position], self.sin[position]
        owner = torch.arange(n_anchor, device=anchors.device).repeat_interleave(shape.block)
        mask = torch.cat(
            [torch.arange(t, device=anchors.device)[None] < anchors[owner][:, None], owner[:, None] == owner[None]], 1
        )
        repeat = shape.n_head // shape.n_head_kv
        for layer in self.layers:
            h = rms(x, layer.attn_norm, eps)
            q = rope(rms(self._heads(h, layer.wq, shape.n_head), layer.q_norm, eps), cos, sin)
            k_own = rope(rms(self._heads(h, layer.wk, shape.n_head_kv), layer.k_norm, eps), cos, sin)
            k_context = rope(
                rms(self._heads(context, layer.wk, shape.n_head_kv), layer.k_norm, eps), self.cos[:t], self.sin[:t]
            )
            k = torch.cat([k_context, k_own], 2).repeat_interleave(repeat, 1)
            v = torch.cat(
                [self._heads(context, layer.wv, shape.n_head_kv), self._heads(h, layer.wv, shape.n_head_kv)], 2
            ).repeat_interleave(repeat, 1)
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + F.linear(a.transpose(1, 2).reshape(b, n_anchor * shape.block, -1), layer.wo.to(dtype))
            gate, up = F.linear(rms(x, layer.ffn_norm, eps), layer.gate_up.to(dtype)).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.down.to(dtype))
        return rms(x, self.output_norm, eps).view(b, n_anchor, shape.block, -1)

    def bias(self, previous: Tensor) -> Tensor:
        """Return the Markov head's addition to the logits after each previous token."""
        return F.linear(F.embedding(previous, self.markov_1), self.markov_2)

    def confidence(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Return the logit of the estimated acceptance."""
        joined = torch.cat([hidden.float(), F.embedding(previous, self.markov_1)], -1)
        return F.linear(joined, self.conf_weight, self.conf_bias)[..., 0]

    @torch.no_grad()
    def propose(self, base: Tensor, tokens: Tensor) -> Tensor:
        """Return the greedy draft [B, A, block] of the head's logits, each slot biased by the token drafted before."""
        base = base.float()
        previous, drafted = tokens, []
        for slot in range(self.shape.block):
            previous = (base[:, :, slot] + self.bias(previous)).argmax(-1)
            drafted.append(previous)
        return torch.stack(drafted, -1)
