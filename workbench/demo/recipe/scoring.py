"""Log-likelihoods and greedy text from a GGUF through llama.cpp's C API (no sampling chain, no chat wrapper)."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np


class GgufModel:
    """One loaded model with a single-sequence context; logits of every position.

    `exact` keeps the KV cache in float32 and flash attention off, to compare with another implementation.
    """

    def __init__(self, path: Path, *, n_ctx: int = 512, n_threads: int = 1, exact: bool = False) -> None:
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        parameters.use_extra_bufts = False
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.model:
            raise OSError(f"{path}: llama.cpp could not load the model")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = n_ctx
        options.n_threads = options.n_threads_batch = n_threads
        if exact:
            options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
            options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.n_ctx = n_ctx

    def tokenize(self, text: str, *, bos: bool, special: bool = False) -> list[int]:
        """Return the token ids of a text."""
        data = text.encode()
        buffer = (llama_cpp.llama_token * (len(data) + 8))()
        n = llama_cpp.llama_tokenize(self.vocab, data, len(data), buffer, len(buffer), bos, special)
        if n < 0:
            raise ValueError(f"cannot tokenize {text[:40]!r}")
        return list(buffer[:n])

    def text(self, tokens: list[int]) -> str:
        """Return the text of token ids, control tokens left out."""
        out = b""
        for token in tokens:
            buffer = ctypes.create_string_buffer(256)
            n = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, 256, 0, False)
            out += buffer.raw[: max(0, n)]
        return out.decode(errors="replace")

    def forget(self, position: int = 0) -> None:
        """Drop everything from a position on."""
        llama_cpp.llama_memory_seq_rm(self.memory, 0, position, -1)

    def logits(self, tokens: list[int], start: int = 0, *, last_only: bool = False) -> np.ndarray:
        """Decode tokens at positions from `start`; return float32 logits [n, n_vocab]."""
        n = len(tokens)
        batch = llama_cpp.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + i, 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i == n - 1 or not last_only
        if llama_cpp.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        rows = [n - 1] if last_only else range(n)
        out = np.stack(
            [
                np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, i), (self.n_vocab,)).copy()
                for i in rows
            ]
        )
        llama_cpp.llama_batch_free(batch)
        return out

    def token_losses(self, tokens: list[int]) -> np.ndarray:
        """Return nats of tokens[1:] given what precedes each."""
        self.forget()
        return -log_softmax(self.logits(tokens[:-1]))[np.arange(len(tokens) - 1), tokens[1:]]

    def choice_scores(self, prompt: str, choices: list[str]) -> list[tuple[float, int]]:
        """Return (log-likelihood, number of tokens) of each choice after the prompt."""
        longest = max(len(self.tokenize(prompt + c, bos=True)) for c in choices)
        context = self.tokenize(prompt, bos=True)
        if longest > self.n_ctx:
            context = context[:1] + context[1 + longest - self.n_ctx :]
        self.forget()
        first = log_softmax(self.logits(context, last_only=True))[0]
        out = []
        for choice in choices:
            tokens = self.tokenize(choice, bos=False)
            total = float(first[tokens[0]])
            if len(tokens) > 1:
                rows = log_softmax(self.logits(tokens[:-1], len(context)))
                total += float(rows[np.arange(len(tokens) - 1), tokens[1:]].sum())
                self.forget(len(context))
            out.append((total, len(tokens)))
        return out

    def generate(
        self,
        prompt: list[int],
        n: int,
        *,
        stop: set[int],
        temperature: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> list[int]:
        """Return up to n tokens: greedy, or sampled at a temperature."""
        self.forget()
        row, at = self.logits(prompt, last_only=True)[0], len(prompt)
        out: list[int] = []
        while len(out) < n:
            if rng is None or temperature == 0:
                token = int(row.argmax())
            else:
                p = np.exp(log_softmax(row[None] / temperature)[0].astype(np.float64))
                token = int(rng.choice(len(p), p=p / p.sum()))
            if token in stop or at >= self.n_ctx:
                break
            out.append(token)
            row = self.logits([token], at)[0]
            at += 1
        return out


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return row-wise log-probabilities in float32."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
