"""The article's model beside one's own: the file sizes a recipe would give a model of the 35B-A3B shape.

The article reports 19.7 and 14.44 GB and no more. The shape assumed here is that of the 35B-A3B models whose experts
have the article's size: 40 layers of 256 experts of 3 × 2048 × 512 weights, top-8, and a shared expert; full attention
in every fourth layer, gated delta net in the others; separate embedding and output matrices of 248,320 tokens. A header
of that shape is written to a file without data, and llama.cpp's quantizer is asked for its types.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from workbench.quantize.library import quantize_types
from workbench.quantize.recipes import Recipe, load_recipe
from workbench.storage.gguf_header import (
    FLOAT32,
    STRING,
    UINT32,
    encode_array,
    encode_field,
    encode_header,
    lay_out,
    tensor_bytes,
)

REPORTED_GB = {"q4_k_m": 19.7, "les-mixed": 14.44}
"""Recipe → file of the article's model, as it reports it; its unit fits GiB (2^30 bytes)."""

N_LAYER, N_EXPERT, N_USED, N_EMBD, N_FF, N_VOCAB = 40, 256, 8, 2048, 512, 248320
FULL_ATTENTION_EVERY = 4
_ALIGNMENT_BYTES = 32
_F32, _F16 = 0, 1


def shape() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors of the assumed model: name and shape, ggml's order."""
    yield from (("token_embd.weight", (N_EMBD, N_VOCAB)), ("output.weight", (N_EMBD, N_VOCAB)))
    yield "output_norm.weight", (N_EMBD,)
    for layer in range(N_LAYER):
        parts: list[tuple[str, tuple[int, ...]]] = [("attn_norm", (N_EMBD,)), ("post_attention_norm", (N_EMBD,))]
        if (layer + 1) % FULL_ATTENTION_EVERY == 0:
            parts += [("attn_q", (N_EMBD, 8192)), ("attn_k", (N_EMBD, 512)), ("attn_v", (N_EMBD, 512))]
            parts += [("attn_output", (4096, N_EMBD)), ("attn_q_norm", (256,)), ("attn_k_norm", (256,))]
        else:
            parts += [("attn_qkv", (N_EMBD, 8192)), ("attn_gate", (N_EMBD, 4096)), ("ssm_out", (4096, N_EMBD))]
            parts += [("ssm_alpha", (N_EMBD, 32)), ("ssm_beta", (N_EMBD, 32)), ("ssm_conv1d", (4, 8192))]
            parts += [("ssm_norm", (128,))]
        parts += [("ffn_gate_inp", (N_EMBD, N_EXPERT)), ("ffn_gate_inp_shexp", (N_EMBD,))]
        for kind, matrix in (("gate", (N_EMBD, N_FF)), ("up", (N_EMBD, N_FF)), ("down", (N_FF, N_EMBD))):
            parts += [(f"ffn_{kind}_exps", (*matrix, N_EXPERT)), (f"ffn_{kind}_shexp", matrix)]
        yield from ((f"blk.{layer}.{name}.weight", dims) for name, dims in parts)


def _header() -> tuple[bytes, int, dict[str, tuple[int, ...]]]:
    keys = {
        "block_count": N_LAYER,
        "context_length": 4096,
        "embedding_length": N_EMBD,
        "expert_count": N_EXPERT,
        "expert_used_count": N_USED,
        "expert_feed_forward_length": N_FF,
        "expert_shared_feed_forward_length": N_FF,
        "attention.head_count": 16,
        "attention.head_count_kv": 2,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 4096,
        "ssm.state_size": 128,
        "ssm.time_step_rank": 32,
        "ssm.group_count": 16,
        "full_attention_interval": FULL_ATTENTION_EVERY,
        "rope.dimension_count": 64,
    }
    records = [encode_field("general.architecture", STRING, "qwen35moe")]
    records += [encode_field(f"qwen35moe.{key}", UINT32, value) for key, value in keys.items()]
    records += [
        encode_field("qwen35moe.attention.layer_norm_rms_epsilon", FLOAT32, 1e-6),
        encode_array("qwen35moe.rope.dimension_sections", UINT32, [11, 11, 10, 0]),
    ]
    dims = dict(shape())
    specs = [(name, d, _F16 if len(d) > 1 and "conv" not in name and "inp" not in name else _F32)
             for name, d in dims.items()]  # fmt: skip
    tensors, data_bytes = lay_out(specs, _ALIGNMENT_BYTES)
    return encode_header(records, tensors, _ALIGNMENT_BYTES), data_bytes, dims


@functools.cache
def _sizes(recipe_key: tuple[int, tuple[tuple[str, int], ...], bool]) -> tuple[int, int]:
    file_type, rules, imatrix = recipe_key
    head, data_bytes, dims = _header()
    with tempfile.TemporaryDirectory(prefix="les-shape-") as folder:
        path = Path(folder) / "shape.gguf"
        with path.open("wb") as file:
            file.write(head)
            file.truncate(len(head) + data_bytes)  # sparse: takes no room
        types, _ = quantize_types(str(path), file_type=file_type, rules=list(rules), imatrix=imatrix)
    sizes = {name: tensor_bytes(d, types[name]) for name, d in dims.items()}
    expert_bytes = sum(n for name, n in sizes.items() if "_exps." in name) // (N_LAYER * N_EXPERT)
    return len(head) + sum(sizes.values()), expert_bytes


def sizes(recipe: Recipe) -> tuple[int, int]:
    """Bytes of the file, and of one expert on average, that a recipe gives a model of the assumed shape."""
    return _sizes((recipe.file_type, tuple(recipe.rules), recipe.imatrix))


def article_lines(recipe: Recipe) -> list[str]:
    """The article's figures and those of the same shape, for people; empty where the shape cannot be computed."""
    try:
        before, after = sizes(load_recipe("q4_k_m")), sizes(recipe)
    except OSError:
        return []
    gib, mib = 1 << 30, 1 << 20
    reported = f"{REPORTED_GB['q4_k_m']} → {REPORTED_GB['les-mixed']} GB"
    return [
        f"the article's 35B-A3B model: {reported} by mixed precision (reported)",
        f"a model of that shape, by llama.cpp's choice of types (computed; assumed: 40 layers × 256 experts of "
        f"3 × 2048 × 512 weights): q4_k_m {before[0] / gib:.2f} → {recipe.name} {after[0] / gib:.2f} GiB; "
        f"an expert {before[1] / mib:.2f} → {after[1] / mib:.2f} MiB (reported for Q3_K: ~1.29)",
    ]
