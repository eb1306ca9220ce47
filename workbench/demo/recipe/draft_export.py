"""Write the drafter as a GGUF file of architecture `dflash` for llama.cpp's draft-dspark.

python -m workbench.demo.recipe.draft_export DRAFT draft-q8_0.gguf --target MODEL.gguf --type q8_0
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from workbench.demo.recipe.draft_model import DEMO_DRAFT, DraftShape
from workbench.demo.recipe.draft_target import target_shape
from workbench.demo.recipe.export import TYPES
from workbench.demo.recipe.model import Shape
from workbench.demo.recipe.weights import load_levels
from workbench.storage.gguf_file import GgufFile, open_gguf
from workbench.storage.gguf_header import (
    BOOL,
    FLOAT32,
    STRING,
    UINT32,
    encode_array,
    encode_field,
    encode_header,
    lay_out,
)

INT32 = 5
ALIGNMENT = 32
MASK_KEY = "tokenizer.ggml.mask_token_id"
NAMES = {
    "attn_norm": "attn_norm",
    "attn_q": "wq",
    "attn_k": "wk",
    "attn_v": "wv",
    "attn_output": "wo",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "ffn_norm": "ffn_norm",
    "ffn_down": "down",
}


def key_records(file: GgufFile, shape: DraftShape, target: Shape, kind: str) -> list[bytes]:
    """Return the header's records; the whole tokenizer is the target's."""
    sizes: dict[str, Any] = {
        "context_length": target.n_ctx,
        "embedding_length": target.n_embd,
        "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": target.head_dim,
        "attention.value_length": target.head_dim,
        "attention.layer_norm_rms_epsilon": target.rms_eps,
        "rope.freq_base": target.rope_base,
        "vocab_size": target.n_vocab,
        "block_size": shape.block,
        "sample_from_anchor": True,
        "has_confidence_head": True,
    }
    types = {bool: BOOL, int: UINT32, float: FLOAT32}
    fields = file.shards[0].header.fields
    return [
        encode_field("general.architecture", STRING, "dflash"),
        encode_field("general.name", STRING, f"DSpark drafter for {file.get('general.name', file.path.stem)}"),
        encode_field("general.license", STRING, file.get("general.license", "apache-2.0")),
        encode_field("general.file_type", UINT32, int(TYPES[kind][1])),
        *(encode_field(f"dflash.{key}", types[type(value)], value) for key, value in sizes.items()),
        encode_array("dflash.target_layers", INT32, shape.taps),
        *(field.record for key, field in fields.items() if key.startswith("tokenizer.") and key != MASK_KEY),
        encode_field(MASK_KEY, UINT32, shape.mask),
    ]


def named(weights: dict[str, np.ndarray], shape: DraftShape) -> Iterator[tuple[str, np.ndarray]]:
    """Yield llama.cpp's name and the values of every tensor."""
    yield "fc.weight", weights["fc"]
    yield "enc.output_norm.weight", weights["enc_norm"]
    yield "output_norm.weight", weights["output_norm"]
    yield "markov_w1.weight", weights["markov_1"]
    yield "markov_w2.weight", weights["markov_2"]
    yield "conf_proj.weight", weights["conf_weight"]
    yield "conf_proj.bias", weights["conf_bias"]
    for layer in range(shape.n_layer):
        for name, source in NAMES.items():
            yield f"blk.{layer}.{name}.weight", weights[f"layers.{layer}.{source}"]
        gate, up = np.split(weights[f"layers.{layer}.gate_up"], 2)
        yield f"blk.{layer}.ffn_gate.weight", gate
        yield f"blk.{layer}.ffn_up.weight", up


def tensor_type(name: str, data: np.ndarray, kind: str) -> gguf.GGMLQuantizationType:
    """Return the type a tensor is stored in: vectors and the confidence head stay F32, q8_0 keeps Markov in F16."""
    if data.ndim < 2 or "conf_proj" in name:
        return gguf.GGMLQuantizationType.F32
    if kind == "q8_0" and ("markov" in name or data.shape[-1] % 32):
        return gguf.GGMLQuantizationType.F16
    return TYPES[kind][0]


def write_drafter(weights: dict[str, np.ndarray], target: Path, out: Path, kind: str, shape: DraftShape) -> None:
    """Write the whole draft file for the target's GGUF; embedding and head stay the target's."""
    file = open_gguf(target)
    entries, data = [], []
    for name, values in named(weights, shape):
        stored = tensor_type(name, values, kind)
        entries.append((name, values.shape[::-1], int(stored)))
        data.append(gguf.quants.quantize(np.ascontiguousarray(values, np.float32), stored).tobytes())
    tensors, _ = lay_out(iter(entries), ALIGNMENT)
    with out.open("wb") as stream:
        stream.write(encode_header(key_records(file, shape, target_shape(file), kind), tensors, ALIGNMENT))
        start = stream.tell()
        for tensor, raw in zip(tensors, data, strict=True):
            stream.write(bytes(start + tensor.offset - stream.tell()) + raw)
        stream.write(bytes(-stream.tell() % ALIGNMENT))


def main(argv: list[str] | None = None) -> None:
    """Read what `draft_train` wrote and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("draft", type=Path, help="the folder draft_train wrote")
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", type=Path, required=True, help="the target's GGUF")
    parser.add_argument("--type", choices=list(TYPES), default="q8_0")
    args = parser.parse_args(argv)
    sizes = json.loads((args.draft / "draft.json").read_text()).get("shape")
    shape = DraftShape(**{**sizes, "taps": tuple(sizes["taps"])}) if sizes else DEMO_DRAFT
    write_drafter(load_levels(args.draft / "levels"), args.target, args.out, args.type, shape)
    print(f"{args.out} {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
