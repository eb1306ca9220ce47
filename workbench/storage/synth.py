"""Synthetic MoE models (qwen3moe) of any shape: `synthesize(path, SynthShape(...))`.

They speak no language; they cost what a real model of their shape costs, byte for byte and multiplication for
multiplication, and they route: a token's embedding dominates the stream and every layer adds to it, so different tokens
visit different experts, all about equally often. The next layer's experts can be guessed from this layer's input about
as well as in real models (top-k recall 0.67-0.79 at the default `residual_std`), but neighbouring tokens share experts
only by chance, so caches do worse than on text. Each file says what it is: `general.name` starts with "synthetic" and
`les.synthetic` is true.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from workbench.errors import ToggleError
from workbench.storage.atomic import atomic_file, check_target, one_sentence
from workbench.storage.blocks import DRAWABLE, TYPE_IDS, draw
from workbench.storage.gguf_header import (
    BLOCKS,
    BOOL,
    DEFAULT_ALIGNMENT_BYTES,
    FLOAT32,
    STRING,
    UINT32,
    encode_array,
    encode_field,
    encode_header,
    lay_out,
    tensor_bytes,
)
from workbench.storage.transfer import write_at

_CHUNK_ELEMENTS = 1 << 23


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class SynthShape:
    """Shape, types and seed of a synthetic model. The default is 2.8 GB of 24 layers of 128 experts, top-8, Q4_K.

    Raises
    ------
    ToggleError
        On construction, for a shape that no model can have.
    """

    n_layer: int = _option(24, "blocks")
    n_embd: int = _option(1024, "embedding width")
    n_ff: int = _option(512, "width inside an expert")
    n_expert: int = _option(128, "experts per layer")
    n_expert_used: int = _option(8, "experts a token selects")
    n_vocab: int = _option(8192, "tokens: every byte, filler words, an end token")
    n_head: int = _option(16, "attention heads")
    n_head_kv: int = _option(4, "key-value heads")
    head_dim: int = _option(64, "width of a head")
    n_ctx: int = _option(4096, "context length, tokens")
    expert_type: str = _option("q4_k", f"type of the experts: {', '.join(DRAWABLE)}")
    dense_type: str = _option("q4_k", "type of the other matrices")
    residual_std: float = _option(0.35, "what a layer adds to the stream; an embedding is 1")
    seed: int = _option(0, "the same shape and seed give the same bytes")

    def __post_init__(self) -> None:
        for name in (
            "n_layer",
            "n_embd",
            "n_ff",
            "n_expert",
            "n_expert_used",
            "n_head",
            "n_head_kv",
            "head_dim",
            "n_ctx",
        ):
            if getattr(self, name) < 1:
                raise ToggleError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("expert_type", "dense_type"):
            if getattr(self, name) not in DRAWABLE:
                raise ToggleError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(DRAWABLE)}")
        if self.n_expert_used > self.n_expert:
            raise ToggleError(f"n_expert_used={self.n_expert_used}: only {self.n_expert} experts")
        if self.n_expert > 1024:
            raise ToggleError(f"n_expert={self.n_expert}: llama.cpp allows at most 1024")
        if self.n_vocab < 257:
            raise ToggleError(f"n_vocab={self.n_vocab}: at least 257 (every byte, and an end token)")
        if not self.residual_std > 0:
            raise ToggleError(f"residual_std={self.residual_std}: must be above 0")
        if self.head_dim % 2 or self.n_head % self.n_head_kv:
            raise ToggleError("head_dim must be even and n_head a multiple of n_head_kv")
        for type_name, widths in (
            (self.expert_type, {"n_embd": self.n_embd, "n_ff": self.n_ff}),
            (self.dense_type, {"n_embd": self.n_embd, "n_head * head_dim": self.n_head * self.head_dim}),
        ):
            block = BLOCKS[TYPE_IDS[type_name]][0]
            for name, width in widths.items():
                if width % block:
                    raise ToggleError(f"{name}={width}: must be a multiple of {block} for {type_name}")

    @property
    def label(self) -> str:
        """The model's name, which says that it is synthetic."""
        return (
            f"synthetic qwen3moe {self.n_layer}x{self.n_expert} top-{self.n_expert_used} "
            f"{self.n_embd}/{self.n_ff} {self.expert_type}, seed {self.seed}"
        )


@dataclass(frozen=True)
class _Plan:
    """One tensor to draw: standard deviation of its weights, or None for a norm's ones."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    std: float | None


def synthesize(
    target: str | Path, shape: SynthShape | None = None, *, progress: bool = True, overwrite: bool = False
) -> Path:
    """Write a synthetic model; the same shape and seed give the same bytes.

    Raises
    ------
    ModelFileError
        When the target exists.
    DiskSpaceError
        When the target's disk has too little room.
    """
    shape = shape or SynthShape()
    target = Path(target)
    plans = list(_plans(shape))
    tensors, data_bytes = lay_out(((p.name, p.shape, TYPE_IDS[p.type_name]) for p in plans), DEFAULT_ALIGNMENT_BYTES)
    head = encode_header(_records(shape), tensors, DEFAULT_ALIGNMENT_BYTES)
    with one_sentence(f"writing {target}"):
        check_target(target, overwrite=overwrite)
        with (
            atomic_file(target, len(head) + data_bytes) as out,
            tqdm(total=data_bytes, unit="B", unit_scale=True, desc="synth", disable=not progress) as bar,
        ):
            write_at(out.fileno(), head, 0)
            for index, (plan, tensor) in enumerate(zip(plans, tensors, strict=True)):
                at = len(head) + tensor.offset
                for data in _draw_tensor(plan, np.random.Generator(np.random.SFC64([shape.seed, index]))):
                    write_at(out.fileno(), data, at)
                    at += len(data)
                    bar.update(len(data))
    return target


def model_bytes(shape: SynthShape) -> int:
    """Bytes of the weights of a model of this shape."""
    return sum(tensor_bytes(p.shape, TYPE_IDS[p.type_name]) for p in _plans(shape))


def _plans(shape: SynthShape) -> Iterator[_Plan]:
    """All tensors in the order quantizers write them: dense parts of a layer between its expert tensors."""
    e, ff, heads = shape.n_embd, shape.n_ff, shape.n_head * shape.head_dim
    kv = shape.n_head_kv * shape.head_dim

    def dense(name: str, *dims: int, std: float) -> _Plan:
        return _Plan(f"{name}.weight", dims, shape.dense_type, std)

    def experts(name: str, *dims: int, std: float) -> _Plan:
        return _Plan(f"{name}_exps.weight", (*dims, shape.n_expert), shape.expert_type, std)

    def norm(name: str, n: int) -> _Plan:
        return _Plan(f"{name}.weight", (n,), "f32", None)

    yield dense("output", e, shape.n_vocab, std=2 * e**-0.5)
    yield norm("output_norm", e)
    yield dense("token_embd", e, shape.n_vocab, std=1.0)
    for layer in range(shape.n_layer):
        b = f"blk.{layer}."
        yield dense(f"{b}attn_k", e, kv, std=e**-0.5)
        yield norm(f"{b}attn_k_norm", shape.head_dim)
        yield norm(f"{b}attn_norm", e)
        yield dense(f"{b}attn_output", heads, e, std=shape.residual_std * heads**-0.5)
        yield dense(f"{b}attn_q", e, heads, std=e**-0.5)
        yield norm(f"{b}attn_q_norm", shape.head_dim)
        yield dense(f"{b}attn_v", e, kv, std=e**-0.5)
        yield experts(f"{b}ffn_down", ff, e, std=_down_std(shape))
        yield experts(f"{b}ffn_gate", e, ff, std=e**-0.5)
        yield _Plan(f"{b}ffn_gate_inp.weight", (e, shape.n_expert), "f32", e**-0.5)
        yield norm(f"{b}ffn_norm", e)
        yield experts(f"{b}ffn_up", e, ff, std=e**-0.5)


def _down_std(shape: SynthShape) -> float:
    """Makes a layer's experts add `residual_std` to the stream.

    silu(g) * u of standard normal g, u has root mean square 0.596; k experts of about equal weight average to k^-0.5.
    """
    return shape.residual_std * math.sqrt(shape.n_expert_used / shape.n_ff) / 0.596


def _draw_tensor(plan: _Plan, rng: np.random.Generator) -> Iterator[bytes]:
    n_elements = int(np.prod(plan.shape, dtype=object))
    for start in range(0, n_elements, _CHUNK_ELEMENTS):
        n = min(_CHUNK_ELEMENTS, n_elements - start)
        if plan.std is None:
            yield np.ones(n, np.float32).tobytes()
        else:
            yield draw(rng, plan.type_name, n, plan.std)


def _records(shape: SynthShape) -> list[bytes]:
    arch = "qwen3moe"
    numbers = {
        "block_count": shape.n_layer,
        "context_length": shape.n_ctx,
        "embedding_length": shape.n_embd,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "expert_count": shape.n_expert,
        "expert_used_count": shape.n_expert_used,
        "expert_feed_forward_length": shape.n_ff,
    }
    return [
        encode_field("general.architecture", STRING, arch),
        encode_field("general.name", STRING, shape.label),
        encode_field("les.synthetic", BOOL, True),
        *(encode_field(f"{arch}.{key}", UINT32, value) for key, value in numbers.items()),
        encode_field(f"{arch}.attention.layer_norm_rms_epsilon", FLOAT32, 1e-6),
        encode_field(f"{arch}.rope.freq_base", FLOAT32, 1e6),
        *byte_tokenizer_records(shape.n_vocab),
    ]


def byte_tokenizer_records(n_vocab: int) -> list[bytes]:
    """A byte-level tokenizer: text becomes one token per byte; the other tokens print as words, the last ends."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    symbol = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(rest)}
    tokens = [symbol[byte] for byte in range(256)]
    tokens += [f"{symbol[32]}w{i}" for i in range(256, n_vocab - 1)] + ["<|end|>"]
    return [
        encode_field("tokenizer.ggml.model", STRING, "gpt2"),
        encode_field("tokenizer.ggml.pre", STRING, "gpt-2"),
        encode_array("tokenizer.ggml.tokens", STRING, tokens),
        encode_array("tokenizer.ggml.token_type", 5, [1] * (n_vocab - 1) + [3]),
        encode_array("tokenizer.ggml.merges", STRING, []),
        encode_field("tokenizer.ggml.eos_token_id", UINT32, n_vocab - 1),
        encode_field("tokenizer.ggml.add_bos_token", BOOL, False),
    ]
