"""The demo model in plain PyTorch, equal to llama.cpp's `qwen3moe` graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; every row length is a multiple of 256, so every K-quant applies."""

    n_vocab: int = 8192
    n_layer: int = 10
    n_embd: int = 256
    n_head: int = 8
    n_head_kv: int = 2
    head_dim: int = 64
    n_expert: int = 24
    n_expert_used: int = 4
    n_ff: int = 256
    n_ctx: int = 512
    rope_base: float = 10000.0
    rms_eps: float = 1e-6


DEMO_SHAPE = Shape()


class _Dispatch(torch.autograd.Function):
    """Gather each token's row once per chosen expert, with a gather as the backward pass too."""

    @staticmethod
    def forward(ctx, x, order, inverse, k):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inverse)
        ctx.k = k
        return x[order // k]

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (inverse,) = ctx.saved_tensors
        return grad[inverse].view(-1, ctx.k, grad.shape[-1]).sum(1), None, None, None


class _Combine(torch.autograd.Function):
    """Undo the sorting by expert."""

    @staticmethod
    def forward(ctx, y, order, inverse):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(order)
        return y[inverse]

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (order,) = ctx.saved_tensors
        return grad[order], None, None


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS-normalised x, computed in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate halves (NeoX order); the angles broadcast against x's last-but-one axis."""
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def rope_tables(shape: Shape, n_positions: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [n_positions, head_dim / 2]."""
    frequency = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angle = torch.arange(n_positions).float()[:, None] * frequency
    return angle.cos(), angle.sin()


class Layer(nn.Module):
    """Weights of one block; the matrices keep llama.cpp's [out, in] order."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        std = 0.5 / math.sqrt(shape.n_embd)
        residual = 1 / math.sqrt(2 * shape.n_layer)
        q_dim, kv_dim = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim

        def matrix(*size: int, scale: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(*size) * scale)

        self.attn_norm = nn.Parameter(torch.ones(shape.n_embd))
        self.ffn_norm = nn.Parameter(torch.ones(shape.n_embd))
        self.q_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.k_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.wq = matrix(q_dim, shape.n_embd, scale=std)
        self.wk = matrix(kv_dim, shape.n_embd, scale=std)
        self.wv = matrix(kv_dim, shape.n_embd, scale=std)
        self.wo = matrix(shape.n_embd, q_dim, scale=std * residual)
        self.router = matrix(shape.n_expert, shape.n_embd, scale=0.02)
        self.gate_up = matrix(shape.n_expert, 2 * shape.n_ff, shape.n_embd, scale=std)
        self.down = matrix(shape.n_expert, shape.n_embd, shape.n_ff, scale=0.5 / math.sqrt(shape.n_ff) * residual)


@dataclass
class Routing:
    """Router outcome of one layer: chosen experts [T, k], load [E], balance loss, z loss, router input [T, D]."""

    chosen: Tensor
    count: Tensor
    balance: Tensor
    z: Tensor
    router_input: Tensor


class DemoModel(nn.Module):
    """A mixture-of-experts decoder with tied embeddings.

    `dtype` is the compute type; weights stay float32. `grouped` picks the grouped GEMM (needs bf16 on a GPU);
    otherwise all experts are computed and masked.
    """

    def __init__(self, shape: Shape = DEMO_SHAPE, *, dtype: torch.dtype = torch.bfloat16, grouped: bool = True) -> None:
        super().__init__()
        self.shape, self.dtype, self.grouped = shape, dtype, grouped
        self.embedding = nn.Parameter(torch.randn(shape.n_vocab, shape.n_embd) * 0.02)
        self.output_norm = nn.Parameter(torch.ones(shape.n_embd))
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.n_layer)])
        cos, sin = rope_tables(shape, 2 * shape.n_ctx)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _experts(self, layer: Layer, x: Tensor, weight: Tensor, chosen: Tensor, count: Tensor) -> Tensor:
        shape = self.shape
        gate_up, down = layer.gate_up.to(x.dtype), layer.down.to(x.dtype)
        if not self.grouped:
            mask = torch.zeros(x.shape[0], shape.n_expert, dtype=weight.dtype, device=x.device)
            mask = mask.scatter(1, chosen, weight)
            gate, up = torch.einsum("td,efd->tef", x, gate_up).chunk(2, -1)
            return torch.einsum("tef,edf->td", F.silu(gate) * up * mask.to(x.dtype)[..., None], down)
        order = chosen.reshape(-1).argsort()
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=x.device)
        ends = count.cumsum(0).to(torch.int32)
        rows = _Dispatch.apply(x, order, inverse, shape.n_expert_used)
        gate, up = torch._grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
        y = torch._grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
        y = _Combine.apply(y, order, inverse).view(-1, shape.n_expert_used, shape.n_embd)
        return (y * weight.to(x.dtype)[..., None]).sum(1)

    def feed_forward(self, layer: Layer, x: Tensor) -> tuple[Tensor, Routing]:
        """Route and compute the experts for x [T, D]."""
        shape = self.shape
        logits = F.linear(x.float(), layer.router)
        p = logits.softmax(-1)
        weight, chosen = p.topk(shape.n_expert_used, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        count = F.one_hot(chosen, shape.n_expert).sum((0, 1))
        load = count.float() / (x.shape[0] * shape.n_expert_used)
        balance = shape.n_expert * (load * p.mean(0)).sum()
        z = logits.logsumexp(-1).pow(2).mean()
        return self._experts(layer, x, weight, chosen, count), Routing(chosen, count, balance, z, x)

    def project(self, layer: Layer, h: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated q [B, H, T, hd], k and v [B, Hkv, T, hd] of h [B, T, D]."""
        shape, (b, t, _) = self.shape, h.shape

        def heads(weight: Tensor, n: int) -> Tensor:
            return F.linear(h, weight.to(h.dtype)).view(b, t, n, shape.head_dim).transpose(1, 2)

        q = rope(rms(heads(layer.wq, shape.n_head), layer.q_norm, shape.rms_eps), cos, sin)
        k = rope(rms(heads(layer.wk, shape.n_head_kv), layer.k_norm, shape.rms_eps), cos, sin)
        return q, k, heads(layer.wv, shape.n_head_kv)

    def attend(self, layer: Layer, h: Tensor) -> Tensor:
        """Causal self-attention over whole sequences."""
        shape, (b, t, _) = self.shape, h.shape
        q, k, v = self.project(layer, h, self.cos[:t], self.sin[:t])
        repeat = shape.n_head // shape.n_head_kv
        a = F.scaled_dot_product_attention(
            q, k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1), is_causal=True
        )
        return F.linear(a.transpose(1, 2).reshape(b, t, -1), layer.wo.to(h.dtype))

    def body(self, ids: Tensor) -> tuple[Tensor, list[Routing], list[Tensor]]:
        """Return the normalised last hidden states, the routing of every layer and the input of every layer."""
        b, t = ids.shape
        x = F.embedding(ids, self.embedding).to(self.dtype)
        routing, inputs = [], []
        for layer in self.layers:
            inputs.append(x)
            x = x + self.attend(layer, rms(x, layer.attn_norm, self.shape.rms_eps))
            y, route = self.feed_forward(layer, rms(x, layer.ffn_norm, self.shape.rms_eps).view(b * t, -1))
            x = x + y.view(b, t, -1)
            routing.append(route)
        return rms(x, self.output_norm, self.shape.rms_eps), routing, inputs

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits of normalised hidden states."""
        return F.linear(hidden, self.embedding.to(self.dtype))

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return mean cross-entropy in nats, balance loss, z loss and expert loads [layer, expert]."""
        hidden, routing, _ = self.body(ids)
        loss = F.cross_entropy(self.head(hidden).view(-1, self.shape.n_vocab).float(), targets.reshape(-1))
        balance = torch.stack([r.balance for r in routing]).mean()
        z = torch.stack([r.z for r in routing]).mean()
        return loss, balance, z, torch.stack([r.count for r in routing])
