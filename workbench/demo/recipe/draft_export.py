"""Write the drafter as a GGUF file of architecture `dflash` for llama.cpp's draft-dspark.

python -m workbench.demo.recipe.draft_export LEVELS tokenizer.json draft-q8_0.gguf --type q8_0
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np

from workbench.demo.recipe.draft_model import DEMO_DRAFT, DraftShape
from workbench.demo.recipe.export import TYPES, add_tensor, add_tokenizer
from workbench.demo.recipe.model import DEMO_SHAPE, Shape
from workbench.demo.recipe.weights import load_levels


def write_drafter(
    weights: dict[str, np.ndarray],
    tokenizer: Path,
    out: Path,
    kind: str,
    shape: DraftShape = DEMO_DRAFT,
    target: Shape = DEMO_SHAPE,
) -> None:
    """Write the whole draft file; embedding and head stay the target's."""
    tensor_type, file_type = TYPES[kind]
    writer = gguf.GGUFWriter(out, "dflash")
    writer.add_name("LES Workbench demo drafter (DSpark)")
    writer.add_license("apache-2.0")
    writer.add_context_length(target.n_ctx)
    writer.add_embedding_length(target.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(target.head_dim)
    writer.add_value_length(target.head_dim)
    writer.add_layer_norm_rms_eps(target.rms_eps)
    writer.add_rope_freq_base(target.rope_base)
    writer.add_vocab_size(target.n_vocab)
    writer.add_file_type(int(file_type))
    writer.add_array("dflash.target_layers", list(shape.taps))
    writer.add_uint32("dflash.block_size", shape.block)
    writer.add_bool("dflash.sample_from_anchor", True)
    writer.add_bool("dflash.has_confidence_head", True)
    add_tokenizer(writer, tokenizer)
    for name, source in [
        ("fc.weight", "fc"),
        ("enc.output_norm.weight", "enc_norm"),
        ("output_norm.weight", "output_norm"),
    ]:
        add_tensor(writer, name, weights[source], tensor_type)
    f16 = gguf.GGMLQuantizationType.F16 if kind == "q8_0" else tensor_type
    add_tensor(writer, "markov_w1.weight", weights["markov_1"], f16)
    add_tensor(writer, "markov_w2.weight", weights["markov_2"], f16)
    add_tensor(writer, "conf_proj.weight", weights["conf_weight"], tensor_type)
    add_tensor(writer, "conf_proj.bias", weights["conf_bias"], tensor_type)
    names = {
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
    for layer in range(shape.n_layer):
        for name, source in names.items():
            add_tensor(writer, f"blk.{layer}.{name}.weight", weights[f"layers.{layer}.{source}"], tensor_type)
        gate, up = np.split(weights[f"layers.{layer}.gate_up"], 2)
        add_tensor(writer, f"blk.{layer}.ffn_gate.weight", gate, tensor_type)
        add_tensor(writer, f"blk.{layer}.ffn_up.weight", up, tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Read the level parts and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("levels", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=list(TYPES), default="q8_0")
    args = parser.parse_args()
    write_drafter(load_levels(args.levels), args.tokenizer, args.out, args.type)
    print(f"{args.out} {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
