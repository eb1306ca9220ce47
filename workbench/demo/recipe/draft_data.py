"""Text written by the target model itself: cached decoding of many sequences at once."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from workbench.demo.recipe.clean import chat_turn
from workbench.demo.recipe.model import DemoModel, rms
from workbench.demo.recipe.overlap import hash_set
from workbench.demo.recipe.prompts import teacher_prompt
from workbench.demo.recipe.synthetic import synthetic_document

END_OF_TEXT = 0
FRESH_TOKENS = 8


@torch.no_grad()
def write_on(model: DemoModel, prompts: Tensor, length: int, temperature: Tensor) -> Tensor:
    """Continue prompts [B, n] to `length` tokens.

    `temperature` [B] is per sequence; 0 is greedy. The first tokens after an end of text are sampled at 1, so that
    greedy sequences do not fall into one and the same next document.
    """
    shape, (b, n) = model.shape, prompts.shape
    device = prompts.device
    size = (b, shape.n_head_kv, length, shape.head_dim)
    cache = [tuple(torch.zeros(size, device=device, dtype=model.dtype) for _ in "kv") for _ in model.layers]
    out = torch.zeros(b, length, dtype=torch.long, device=device)
    out[:, :n] = prompts
    since_end = torch.full((b,), FRESH_TOKENS, device=device)
    ids, start = prompts, 0
    for end in range(n, length):
        t = ids.shape[1]
        x = F.embedding(ids, model.embedding).to(model.dtype)
        cos, sin = model.cos[start:end], model.sin[start:end]
        for layer, (k_cache, v_cache) in zip(model.layers, cache, strict=False):
            q, k, v = model.project(layer, rms(x, layer.attn_norm, shape.rms_eps), cos, sin)
            k_cache[:, :, start:end], v_cache[:, :, start:end] = k, v
            group = shape.n_head // shape.n_head_kv
            if t == 1:
                a = F.scaled_dot_product_attention(
                    q.view(b, shape.n_head_kv, group, shape.head_dim), k_cache[:, :, :end], v_cache[:, :, :end]
                ).reshape(b, 1, -1)
            else:
                a = (
                    F.scaled_dot_product_attention(
                        q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), is_causal=True
                    )
                    .transpose(1, 2)
                    .reshape(b, t, -1)
                )
            x = x + F.linear(a, layer.wo.to(x.dtype))
            y, _ = model.feed_forward(layer, rms(x, layer.ffn_norm, shape.rms_eps).view(b * t, -1))
            x = x + y.view(b, t, -1)
        logits = model.head(rms(x[:, -1], model.output_norm, shape.rms_eps)).float()
        heat = torch.where(since_end < FRESH_TOKENS, torch.ones_like(temperature), temperature)
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_min(1e-20)) + 1e-20)
        token = (logits + heat[:, None] * noise).argmax(-1)
        since_end = torch.where(token == END_OF_TEXT, 0, since_end + 1)
        out[:, end] = token
        ids, start = token[:, None], end
    return out


class SelfWritten:
    """Text ids [N, T] of the PyTorch target, which is run again wherever a drafter is shown it."""

    def __init__(self, target: DemoModel, ids: Tensor, taps: tuple[int, ...]) -> None:
        self.target, self.ids, self.taps = target, ids, taps
        self.embedding, self.head = target.embedding, target.head

    @torch.no_grad()
    def read(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last hidden states and the concatenated taps of every position."""
        final, _, inputs = self.target.body(ids)
        return final, torch.cat([inputs[tap] for tap in self.taps], -1)

    @torch.no_grad()
    def look(self, rows: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, None, Tensor]:
        """Return tokens, features and, at positions `slots` [A, block], the probabilities of all tokens."""
        ids = self.ids[rows]
        final, features = self.read(ids)
        return ids, features, None, self.head(final[:, slots]).float().softmax(-1)


def prompt_tokens(tokenizer: Tokenizer, rng: random.Random, count: int, length: int) -> Tensor:
    """Return `count` document beginnings of exactly `length` tokens: requests, stories, questions."""
    rows: list[list[int]] = []
    while len(rows) < count:
        texts = []
        for _ in range(2000):
            draw = rng.random()
            prompt = teacher_prompt(rng)
            if draw < 0.35:
                texts.append(chat_turn(prompt.request, prompt.start).rsplit("<|im_end|>", 1)[0])
            elif draw < 0.65:
                texts.append(prompt.start)
            else:
                texts.append(synthetic_document(rng, hash_set([])))
        for encoding in tokenizer.encode_batch(texts):
            if len(encoding.ids) >= length - 1:
                rows.append([END_OF_TEXT, *encoding.ids[: length - 1]])
    return torch.tensor(rows[:count])
