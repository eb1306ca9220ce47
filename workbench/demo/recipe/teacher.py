"""SmolLM2-135M-Instruct (Apache-2.0) in plain PyTorch: weights from GGUF parts, batched sampling."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

N_LAYER, N_EMBD, N_HEAD, N_HEAD_KV, HEAD_DIM, N_VOCAB = 30, 576, 9, 3, 64, 49152
GROUP = N_HEAD // N_HEAD_KV
RMS_EPS, ROPE_BASE, EOS = 1e-5, 100000.0, 2

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


def chat(request: str, start: str) -> str:
    """Return the instruct prompt with the first words of the answer."""
    return f"<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n{start}"


def _dequantize(raw: Tensor, ggml_type: int) -> Tensor:
    """Expand F32 (0), Q4_0 (2), Q4_1 (3) or Q8_0 (8) bytes to float32."""

    def half(block: Tensor) -> Tensor:
        return block.contiguous().view(torch.float16).float()

    if ggml_type == 0:
        return raw.view(torch.float32)
    if ggml_type == 8:
        block = raw.view(-1, 34)
        return block[:, 2:].contiguous().view(torch.int8).float() * half(block[:, :2])
    if ggml_type == 3:
        block = raw.view(-1, 20)
        nibbles = torch.cat([block[:, 4:] & 15, block[:, 4:] >> 4], 1).float()
        return nibbles * half(block[:, 0:2]) + half(block[:, 2:4])
    if ggml_type == 2:
        block = raw.view(-1, 18)
        return (torch.cat([block[:, 2:] & 15, block[:, 2:] >> 4], 1).float() - 8) * half(block[:, 0:2])
    raise ValueError(f"teacher tensor of unsupported ggml type {ggml_type}")


class Teacher:
    """The weights, one tuple per layer: attn_norm, qkv, out, ffn_norm, gate_up, down."""

    def __init__(self, folder: Path, device: str, dtype: torch.dtype) -> None:
        parts = sorted(folder.glob("**/teacher_part_*.bin"))
        data = torch.from_numpy(np.concatenate([np.fromfile(part, dtype=np.uint8) for part in parts]))
        index = json.loads(next(folder.glob("**/teacher_index.json")).read_text())
        weights = {}
        for entry in index:
            raw = data[entry["offset"] : entry["offset"] + entry["n_bytes"]].clone().to(device)
            weights[entry["name"]] = _dequantize(raw, entry["type"]).reshape(entry["shape"][::-1]).to(dtype)
        self.embedding = weights["token_embd.weight"]
        self.output_norm = weights["output_norm.weight"]
        self.layers = []
        for layer in range(N_LAYER):

            def get(*names: str, layer: int = layer) -> Tensor:
                return torch.cat([weights[f"blk.{layer}.{name}.weight"] for name in names], 0)

            self.layers.append(
                (
                    get("attn_norm"),
                    get("attn_q", "attn_k", "attn_v"),
                    get("attn_output"),
                    get("ffn_norm"),
                    get("ffn_gate", "ffn_up"),
                    get("ffn_down"),
                )
            )


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + RMS_EPS)).to(x.dtype) * weight


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.float()
    even, odd = wide[..., 0::2], wide[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def _project(x: Tensor, norm: Tensor, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = F.linear(_rms(x, norm), qkv)
    q, k, v = y.split([N_HEAD * HEAD_DIM, N_HEAD_KV * HEAD_DIM, N_HEAD_KV * HEAD_DIM], -1)
    q = _rope(q.view(-1, N_HEAD, HEAD_DIM), cos, sin).to(x.dtype)
    k = _rope(k.view(-1, N_HEAD_KV, HEAD_DIM), cos, sin).to(x.dtype)
    return q, k, v.view(-1, N_HEAD_KV, HEAD_DIM)


def _finish(x: Tensor, attended: Tensor, out: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    x = x + F.linear(attended, out)
    gate, up = F.linear(_rms(x, norm), gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down)


def _sample(
    x: Tensor, norm: Tensor, embedding: Tensor, seen: Tensor, temperature: Tensor, min_p: float, presence: float
) -> Tensor:
    logits = (F.linear(_rms(x, norm), embedding).float() - presence * seen.float()) / temperature
    p = torch.exp(logits - logits.max(-1, keepdim=True).values)
    noise = -torch.log(torch.rand_like(p).clamp_min(1e-20)) + 1e-20
    return (torch.where(p < min_p, 0.0, p) / noise).argmax(-1)


if triton is not None:

    @triton.jit
    def _decode_kernel(  # type: ignore[no-untyped-def]
        q_ptr,
        k_ptr,
        v_ptr,
        out_ptr,
        length,
        capacity,
        scale,
        GROUP_SIZE: tl.constexpr,
        DIM: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        pid = tl.program_id(0).to(tl.int64)
        rows, cols, steps = tl.arange(0, 16), tl.arange(0, DIM), tl.arange(0, BLOCK)
        at = (pid * GROUP_SIZE + rows[:, None]) * DIM + cols[None, :]
        q = tl.load(q_ptr + at, mask=rows[:, None] < GROUP_SIZE, other=0.0)
        top = tl.full([16], -1e30, tl.float32)
        total = tl.zeros([16], tl.float32)
        acc = tl.zeros([16, DIM], tl.float32)
        base = pid * capacity * DIM
        for start in range(0, length, BLOCK):
            inside = (start + steps) < length
            cell = base + (start + steps)[:, None] * DIM + cols[None, :]
            k = tl.load(k_ptr + cell, mask=inside[:, None], other=0.0)
            v = tl.load(v_ptr + cell, mask=inside[:, None], other=0.0)
            score = tl.where(inside[None, :], tl.dot(q, tl.trans(k)) * scale, -1e30)
            new_top = tl.maximum(top, tl.max(score, 1))
            p = tl.exp(score - new_top[:, None])
            shrink = tl.exp(top - new_top)
            total = total * shrink + tl.sum(p, 1)
            acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v)
            top = new_top
        tl.store(out_ptr + at, (acc / total[:, None]).to(q.dtype), mask=rows[:, None] < GROUP_SIZE)


def _attend(q: Tensor, k: Tensor, v: Tensor, length: int) -> Tensor:
    """One query per sequence against the first `length` cached keys."""
    batch = q.shape[0]
    if triton is not None and q.is_cuda:
        out = torch.empty_like(q)
        _decode_kernel[(batch * N_HEAD_KV,)](
            q,
            k,
            v,
            out,
            length,
            k.shape[2],
            HEAD_DIM**-0.5,
            GROUP_SIZE=GROUP,
            DIM=HEAD_DIM,
            BLOCK=64,
            num_warps=2,
            num_stages=3,
        )
    else:
        out = F.scaled_dot_product_attention(
            q.view(batch, N_HEAD_KV, GROUP, HEAD_DIM), k[:, :, :length], v[:, :, :length]
        )
    return out.reshape(batch, N_HEAD * HEAD_DIM)


class Sampler:
    """Generates for many equal-length prompts at once; the batch shrinks as answers end."""

    def __init__(self, teacher: Teacher, device: str, *, compiled: bool) -> None:
        self.teacher, self.device = teacher, device
        wrap: Callable = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.project, self.finish, self.sample = wrap(_project), wrap(_finish), wrap(_sample)
        self.frequency = ROPE_BASE ** (-torch.arange(0, HEAD_DIM, 2, device=device).float() / HEAD_DIM)
        self.cache: tuple[list[Tensor], list[Tensor]] | None = None

    def _cache(self, batch: int, capacity: int) -> tuple[list[Tensor], list[Tensor]]:
        if self.cache is None or self.cache[0][0].shape[0] < batch or self.cache[0][0].shape[2] != capacity:
            self.cache = None
            shape, dtype = (batch, N_HEAD_KV, capacity, HEAD_DIM), self.teacher.embedding.dtype
            k, v = ([torch.zeros(shape, device=self.device, dtype=dtype) for _ in range(N_LAYER)] for _ in "kv")
            self.cache = (k, v)
        return [k[:batch] for k in self.cache[0]], [v[:batch] for v in self.cache[1]]

    def _prefill(self, prompts: Tensor, k_cache: list[Tensor], v_cache: list[Tensor], chunk: int = 512) -> Tensor:
        n = prompts.shape[1]
        angle = torch.arange(n, device=self.device).float()[:, None] * self.frequency
        last = []
        for at in range(0, len(prompts), chunk):
            ids = prompts[at : at + chunk]
            b = len(ids)
            x = self.teacher.embedding[ids].view(b * n, N_EMBD)
            cos, sin = angle.cos().repeat(b, 1)[:, None], angle.sin().repeat(b, 1)[:, None]
            for layer, (attn_norm, qkv, out, ffn_norm, gate_up, down) in enumerate(self.teacher.layers):
                q, k, v = _project(x, attn_norm, qkv, cos, sin)
                k = k.view(b, n, N_HEAD_KV, HEAD_DIM).transpose(1, 2)
                v = v.view(b, n, N_HEAD_KV, HEAD_DIM).transpose(1, 2)
                k_cache[layer][at : at + b, :, :n] = k
                v_cache[layer][at : at + b, :, :n] = v
                a = F.scaled_dot_product_attention(
                    q.view(b, n, N_HEAD, HEAD_DIM).transpose(1, 2),
                    k.repeat_interleave(GROUP, 1),
                    v.repeat_interleave(GROUP, 1),
                    is_causal=True,
                )
                a = a.transpose(1, 2).reshape(b * n, N_HEAD * HEAD_DIM)
                x = _finish(x, a, out, ffn_norm, gate_up, down)
            last.append(x.view(b, n, N_EMBD)[:, -1])
        return torch.cat(last)

    @torch.no_grad()
    def run(
        self,
        prompts: Tensor,
        n_new: int,
        *,
        temperature: float,
        min_p: float,
        presence: float,
        capacity: int,
        shrink_to: list[int],
    ) -> np.ndarray:
        """Return int32 [batch, n_new]; after its end an answer is filled with EOS.

        `shrink_to` lists batch sizes to fall to once that few answers are unfinished.
        """
        batch, n = prompts.shape
        k_cache, v_cache = self._cache(batch, capacity)
        x = self._prefill(prompts.to(self.device), k_cache, v_cache)
        heat = torch.tensor(float(temperature), device=self.device)
        seen = torch.zeros(batch, N_VOCAB, dtype=torch.bool, device=self.device)
        out = torch.full((batch, n_new), EOS, dtype=torch.int32, device=self.device)
        rows = torch.arange(batch, device=self.device)
        done = torch.zeros(batch, dtype=torch.bool, device=self.device)
        sizes = list(shrink_to)
        for step in range(n_new):
            token = self.sample(x, self.teacher.output_norm, self.teacher.embedding, seen, heat, min_p, presence)
            token = torch.where(done, EOS, token)
            out[rows, step] = token.int()
            done = done | (token == EOS)
            seen[torch.arange(len(token), device=self.device), token] = True
            if step == n_new - 1:
                break
            if step % 16 == 15 and step > 40:
                alive = int((~done).sum())
                if alive == 0:
                    break
                if sizes and alive <= sizes[0]:
                    keep = torch.cat([(~done).nonzero()[:, 0], done.nonzero()[:, 0]])[: sizes.pop(0)]
                    k_cache, v_cache = [k[keep] for k in k_cache], [v[keep] for v in v_cache]
                    rows, done, seen, token = rows[keep], done[keep], seen[keep], token[keep]
            angle = ((n + step) * self.frequency)[None, None]
            cos, sin = angle.cos(), angle.sin()
            x = self.teacher.embedding[token]
            for layer, (attn_norm, qkv, wo, ffn_norm, gate_up, down) in enumerate(self.teacher.layers):
                q, k, v = self.project(x, attn_norm, qkv, cos, sin)
                k_cache[layer][:, :, n + step] = k
                v_cache[layer][:, :, n + step] = v
                a = _attend(q.contiguous(), k_cache[layer], v_cache[layer], n + step + 1)
                x = self.finish(x, a, wo, ffn_norm, gate_up, down)
        return out.cpu().numpy()
