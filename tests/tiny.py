"""Tiny random GGUFs of many MoE architectures: `tiny_model(path, arch)`.

llama.cpp itself says which tensors an architecture has: its public `llama_model_init_from_user` creates a model from
keys alone and calls back for every tensor. The names and shapes it gives are then filled with random weights and
written here, so that optional tensors, fused and separate experts, and types are the caller's choice.
"""

from __future__ import annotations

import ctypes
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import workbench  # noqa: F401  (makes llama_cpp use our libraries)

# isort: split
import llama_cpp
from stock import GgmlTensor, quiet

from workbench.storage.blocks import DRAWABLE, TYPE_IDS, draw
from workbench.storage.gguf_header import (
    BLOCKS,
    BOOL,
    FLOAT32,
    STRING,
    UINT32,
    encode_array,
    encode_field,
    encode_header,
    lay_out,
)
from workbench.storage.synth import byte_tokenizer_records

SOFTMAX, SIGMOID = 1, 2
GROUPED = {"expert_group_count": 4, "expert_group_used_count": 2}
SIGMOID_SCALED = {"expert_gating_func": SIGMOID, "expert_weights_norm": True, "expert_weights_scale": 2.5}
SHARED = {"expert_shared_count": 1, "leading_dense_block_count": 1}
GATED_DELTA_NET = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 256,
    "ssm.state_size": 128,
    "ssm.time_step_rank": 2,
    "ssm.group_count": 2,
    "full_attention_interval": 2,
    "rope.dimension_count": 32,
}
MLA = {
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": 256,
    "attention.kv_lora_rank": 512,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "rope.dimension_count": 64,
}
GRANITE = {"logit_scale": 4.0, "residual_scale": 0.5, "embedding_scale": 2.0, "attention.scale": 0.125}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3moe": {},
    "olmoe": {"attention.head_count_kv": 4},
    "gpt-oss": {"attention.sliding_window": 16},
    "qwen35moe": GATED_DELTA_NET | {"rope.dimension_sections": [8, 8, 0, 0], "expert_shared_feed_forward_length": 256},
    "qwen3next": GATED_DELTA_NET | {"expert_shared_feed_forward_length": 256},
    "qwen2moe": {"expert_shared_feed_forward_length": 256},
    "llama": {},
    "glm4moe": SHARED | SIGMOID_SCALED | GROUPED,
    "bailingmoe2": SHARED | SIGMOID_SCALED | GROUPED,
    "deepseek2": SHARED | SIGMOID_SCALED | GROUPED | MLA,
    "dots1": SHARED | SIGMOID_SCALED | {"attention.head_count_kv": 4},
    "granitemoe": GRANITE,
    "hunyuan-moe": {"expert_shared_count": 1, "expert_shared_feed_forward_length": 256},
    "minimax-m2": {"expert_gating_func": SIGMOID},
    "lfm2moe": {
        "leading_dense_block_count": 1,
        "expert_gating_func": SIGMOID,
        "shortconv.l_cache": 3,
        "attention.head_count_kv": [0, 2, 0, 2, 2],
    },
    "ernie4_5-moe": SHARED | {"interleave_moe_layer_step": 1, "expert_shared_feed_forward_length": 256},
}
"""Architecture → the keys it needs beyond those every model has (without the `{arch}.` in front)."""


@dataclass(frozen=True)
class Spec:
    """A tensor to write."""

    name: str
    shape: tuple[int, ...]
    type_name: str


def tiny_model(
    path: str | Path,
    arch: str,
    *,
    n_layer: int = 5,
    n_embd: int | None = None,
    n_ff: int | None = None,
    n_expert: int = 16,
    n_expert_used: int = 4,
    n_vocab: int = 512,
    n_ctx: int = 256,
    dtype: str = "f32",
    seed: int = 0,
    fused: bool | None = None,
    scales: bool = False,
    **extra: Any,
) -> Path:
    """Write a random model that llama.cpp loads.

    Parameters
    ----------
    arch
        A key of `ARCHITECTURES`, or another architecture whose required keys are in `extra`.
    n_layer
        Blocks; architectures with a dense first block have one MoE layer less.
    n_embd, n_ff
        Widths. 256 by default; 288 for gpt-oss in MXFP4, whose expert bytes are then no multiple of 512, as in the
        real model.
    dtype
        Type of the matrices whose rows it fits, such as f32, f16, q8_0, q4_k, q3_k. mxfp4 is for experts, beside q8_0.
        Routers, norms and convolutions are always f32.
    fused
        Experts' gate and up in one tensor: True, False, or None for the architecture's own way.
    scales
        Keep the optional per-expert `.scale` tensors.
    extra
        Further keys, dots written as `__`: `expert_group_count=4`, `attention__sliding_window=8`. They win over those
        of `ARCHITECTURES`.
    """
    path = Path(path)
    width = 288 if (arch, dtype) == ("gpt-oss", "mxfp4") else 256
    n_embd, n_ff = n_embd or width, n_ff or width
    keys: dict[str, Any] = {
        "context_length": n_ctx,
        "block_count": n_layer,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "expert_count": n_expert,
        "expert_used_count": n_expert_used,
        "expert_feed_forward_length": n_ff,
        **ARCHITECTURES.get(arch, {}),
        **{key.replace("__", "."): value for key, value in extra.items()},
    }
    records = [
        encode_field("general.architecture", STRING, arch),
        encode_field("general.name", STRING, f"tiny random {arch}, seed {seed}"),
        *(_record(f"{arch}.{key}", value) for key, value in keys.items()),
        *byte_tokenizer_records(n_vocab),
    ]
    specs = [
        Spec(name, shape, _type(name, shape, dtype))
        for name, shape in _separate_or_fused(_tensors_of(records, arch), fused)
        if scales or not name.endswith(("_exps.scale", ".input_scale", "shexp.scale"))
    ]
    _write(path, records, specs, seed)
    return path


def _record(key: str, value: Any) -> bytes:
    if isinstance(value, list):
        return encode_array(key, FLOAT32 if isinstance(value[0], float) else UINT32, value)
    if isinstance(value, bool):
        return encode_field(key, BOOL, value)
    return encode_field(key, FLOAT32 if isinstance(value, float) else UINT32, value)


class _GgufInitParams(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


def _tensors_of(records: list[bytes], arch: str) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor llama.cpp creates for these keys, optional ones included."""
    found: dict[str, tuple[int, ...]] = {}

    @llama_cpp.llama_model_set_tensor_data_t
    def note(address: int, _: int) -> None:
        tensor = GgmlTensor.from_address(address)
        shape = list(tensor.ne)
        while len(shape) > 1 and shape[-1] == 1:
            shape.pop()
        found[tensor.name.decode()] = tuple(shape)

    lib = llama_cpp.llama_cpp._lib
    lib.gguf_init_from_buffer.restype = ctypes.c_void_p
    lib.gguf_init_from_buffer.argtypes = [ctypes.c_char_p, ctypes.c_size_t, _GgufInitParams]
    lib.gguf_free.argtypes = [ctypes.c_void_p]
    head = encode_header(records, [], 32)
    context = lib.gguf_init_from_buffer(head, len(head), _GgufInitParams(True, None))
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    with quiet() as log:
        model = llama_cpp.llama_model_init_from_user(context, note, None, params)
    lib.gguf_free(context)
    if not model:
        raise ValueError(f"llama.cpp does not make a {arch} model of these keys:\n{''.join(log[-3:])}")
    llama_cpp.llama_model_free(model)
    return list(found.items())


def _separate_or_fused(
    tensors: list[tuple[str, tuple[int, ...]]], fused: bool | None
) -> Iterator[tuple[str, tuple[int, ...]]]:
    is_fused = any("ffn_gate_up_exps" in name for name, _ in tensors)
    if fused and not is_fused:
        raise ValueError("this architecture has no fused experts")
    for name, shape in tensors:
        if fused is False and "ffn_gate_up_exps.weight" in name:
            n_in, n_out, n_expert = shape
            for kind in ("gate", "up"):
                yield name.replace("gate_up", kind), (n_in, n_out // 2, n_expert)
        else:
            yield name, shape


_ALWAYS_F32 = re.compile(r"norm|ffn_gate_inp|conv|rope_f|\.bias$|\.scale$|\.input_scale$")


def _type(name: str, shape: tuple[int, ...], dtype: str) -> str:
    if len(shape) < 2 or not name.endswith(".weight") or _ALWAYS_F32.search(name):
        return "f32"
    if dtype == "mxfp4" and "_exps" not in name:
        dtype = "q8_0"
    for type_name in (dtype, "q8_0"):
        if shape[0] % BLOCKS[TYPE_IDS[type_name]][0] == 0:
            return type_name
    return "f32"


def _fill(spec: Spec, seed: int) -> bytes:
    """Weights that keep activations near 1, so that no part of the model vanishes."""
    rng = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
    mean, std = _mean_and_std(spec)
    n_elements = int(np.prod(spec.shape))
    if spec.type_name in DRAWABLE and spec.type_name != "f32":
        return draw(rng, spec.type_name, n_elements, std)
    values = mean + np.float32(std) * rng.standard_normal(spec.shape[::-1], dtype=np.float32)
    return quantize(-np.abs(values) if "ssm_a" in spec.name else values, spec.type_name)


def _mean_and_std(spec: Spec) -> tuple[float, float]:
    name, width = spec.name, spec.shape[0]
    if "rope_f" in name:
        return 1.0, 0.0
    if "scale" in name or ("norm" in name and name.endswith(".weight")):
        return 1.0, 0.1
    if "token_embd" in name or "ssm_a" in name:
        return 0.0, 1.0
    if "conv" in name:
        return 0.0, 0.5
    if len(spec.shape) == 1 or name.endswith(".bias") or "exp_probs_b" in name:
        return 0.0, 0.1
    return 0.0, (3.0 if "ffn_down_exps" in name else 1.0) * width**-0.5


def quantize(values: np.ndarray, type_name: str) -> bytes:
    """ggml's own quantization of rows of float32."""
    if type_name == "f32":
        return values.tobytes()
    lib = llama_cpp.llama_cpp._lib
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = (
        [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    )
    values = np.ascontiguousarray(values, np.float32)
    rows, width = values.size // values.shape[-1], values.shape[-1]
    type_id = TYPE_IDS[type_name]
    block, block_bytes = BLOCKS[type_id]
    out = ctypes.create_string_buffer(values.size // block * block_bytes)
    written = lib.ggml_quantize_chunk(type_id, values.ctypes.data, out, 0, rows, width, None)
    assert written == len(out)
    return out.raw


def _write(path: Path, records: list[bytes], specs: list[Spec], seed: int) -> None:
    tensors, _ = lay_out(((s.name, s.shape, TYPE_IDS[s.type_name]) for s in specs), 32)
    with path.open("wb") as file:
        file.write(encode_header(records, tensors, 32))
        start = file.tell()
        for spec, tensor in zip(specs, tensors, strict=True):
            file.write(bytes(start + tensor.offset - file.tell()))
            file.write(_fill(spec, seed))
        file.write(bytes(-file.tell() % 32))
