"""Write the trained weights as a GGUF file that llama.cpp runs as `qwen3moe`.

python -m workbench.demo.recipe.export LEVELS tokenizer.json demo-q8_0.gguf --type q8_0
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
import numpy as np

from workbench.demo.recipe.model import DEMO_SHAPE, Shape
from workbench.demo.recipe.weights import load_levels

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
END_OF_TEXT, _, END_OF_TURN, MASK = range(4)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TYPES = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}


def add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """Add the byte-level BPE with single digits; a document starts after `<|endoftext|>`, which is also BOS."""
    model = json.loads(path.read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    if tokens[: len(SPECIAL)] != SPECIAL:
        raise ValueError(f"{path}: expected the special tokens {SPECIAL} first")
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([control if i < len(SPECIAL) else normal for i in range(len(tokens))])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(END_OF_TEXT)
    writer.add_eos_token_id(END_OF_TEXT)
    writer.add_eot_token_id(END_OF_TURN)
    writer.add_pad_token_id(END_OF_TEXT)
    writer.add_mask_token_id(MASK)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)


def add_tensor(writer: gguf.GGUFWriter, name: str, data: np.ndarray, kind: gguf.GGMLQuantizationType) -> None:
    """Add one tensor; vectors and routers stay F32."""
    if data.ndim < 2 or "ffn_gate_inp" in name or "conf_proj" in name:
        kind = gguf.GGMLQuantizationType.F32
    writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(data, np.float32), kind), raw_dtype=kind)


def write_model(
    weights: dict[str, np.ndarray], tokenizer: Path, out: Path, kind: str, shape: Shape = DEMO_SHAPE
) -> None:
    """Write the whole model file."""
    tensor_type, file_type = TYPES[kind]
    writer = gguf.GGUFWriter(out, "qwen3moe")
    writer.add_name("LES Workbench demo MoE 53M-A13M")
    writer.add_description(
        "A small mixture-of-experts language model of simple English, trained from scratch on "
        "synthetic text (stories by SmolLM2-135M-Instruct, and generated questions)"
    )
    writer.add_license("apache-2.0")
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff * shape.n_expert_used)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    writer.add_expert_count(shape.n_expert)
    writer.add_expert_used_count(shape.n_expert_used)
    writer.add_expert_feed_forward_length(shape.n_ff)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_file_type(int(file_type))
    add_tokenizer(writer, tokenizer)
    add_tensor(writer, "token_embd.weight", weights["embedding"], tensor_type)
    add_tensor(writer, "output_norm.weight", weights["output_norm"], tensor_type)
    names = {
        "attn_norm": "attn_norm",
        "attn_q": "wq",
        "attn_k": "wk",
        "attn_v": "wv",
        "attn_output": "wo",
        "attn_q_norm": "q_norm",
        "attn_k_norm": "k_norm",
        "ffn_norm": "ffn_norm",
        "ffn_gate_inp": "router",
        "ffn_down_exps": "down",
    }
    for layer in range(shape.n_layer):
        for target, source in names.items():
            add_tensor(writer, f"blk.{layer}.{target}.weight", weights[f"layers.{layer}.{source}"], tensor_type)
        gate_up = weights[f"layers.{layer}.gate_up"]
        add_tensor(writer, f"blk.{layer}.ffn_gate_exps.weight", gate_up[:, : shape.n_ff], tensor_type)
        add_tensor(writer, f"blk.{layer}.ffn_up_exps.weight", gate_up[:, shape.n_ff :], tensor_type)
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
    write_model(load_levels(args.levels), args.tokenizer, args.out, args.type)
    print(f"{args.out} {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
