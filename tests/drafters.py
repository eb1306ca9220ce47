"""Random DSpark drafters for tiny targets: right in shape, so nothing they draft is worth much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiny

from workbench.storage.gguf_header import STRING, UINT32, encode_array, encode_field

INT32 = 5
N_EMBD, N_VOCAB, HEADS, HEADS_KV, HEAD = 256, 512, 4, 2, 64


def random_drafter(
    path: Path,
    *,
    n_embd: int = N_EMBD,
    n_vocab: int = N_VOCAB,
    block_size: int = 4,
    target_layers: tuple[int, ...] = (1, 3),
    rank: int = 32,
    confidence: bool = True,
    markov: bool = True,
    mask: bool = True,
    n_layer: int = 2,
) -> Path:
    """Write a drafter (F32) whose embedding and head are the target's."""
    keys: dict[str, Any] = {
        "context_length": 256,
        "embedding_length": n_embd,
        "block_count": n_layer,
        "feed_forward_length": 256,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS_KV,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
        "block_size": block_size,
        "sample_from_anchor": True,
        "has_confidence_head": confidence,
    }
    records = [
        encode_field("general.architecture", STRING, "dflash"),
        encode_field("general.name", STRING, "random drafter"),
        *(tiny._record(f"dflash.{key}", value) for key, value in keys.items()),
        encode_array("dflash.target_layers", INT32, target_layers),
        *tiny.byte_tokenizer_records(n_vocab),
    ]
    if mask:
        records.append(encode_field("tokenizer.ggml.mask_token_id", UINT32, n_vocab - 2))
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (len(target_layers) * n_embd, n_embd),
        "enc.output_norm.weight": (n_embd,),
        "output_norm.weight": (n_embd,),
    }
    if markov:
        shapes |= {"markov_w1.weight": (rank, n_vocab), "markov_w2.weight": (rank, n_vocab)}
    if confidence:
        shapes |= {"conf_proj.weight": (n_embd + rank, 1), "conf_proj.bias": (1,)}
    for i in range(n_layer):
        shapes |= {
            f"blk.{i}.{name}.weight": shape
            for name, shape in {
                "attn_norm": (n_embd,),
                "attn_q": (n_embd, HEADS * HEAD),
                "attn_k": (n_embd, HEADS_KV * HEAD),
                "attn_v": (n_embd, HEADS_KV * HEAD),
                "attn_output": (HEADS * HEAD, n_embd),
                "attn_q_norm": (HEAD,),
                "attn_k_norm": (HEAD,),
                "ffn_norm": (n_embd,),
                "ffn_gate": (n_embd, 256),
                "ffn_up": (n_embd, 256),
                "ffn_down": (256, n_embd),
            }.items()
        }
    tiny._write(path, records, [tiny.Spec(name, shape, "f32") for name, shape in shapes.items()], seed=1)
    return path
