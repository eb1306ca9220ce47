"""A GGUF's weights in transformers, so that lm-eval's `hf` backend can score the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
}


def twin(path: Path) -> Any:
    """The weights of a qwen3moe GGUF as a transformers model, in float32.

    Raises
    ------
    WorkbenchError
        When torch or transformers is missing, or the architecture is another one.
    """
    import gguf
    import numpy as np

    try:
        import torch
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    except ImportError as error:
        raise WorkbenchError(f"{error.name} is missing: `uv sync --group evals-test`") from error

    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    if arch != "qwen3moe":
        raise WorkbenchError(f"{path}: {arch}: only qwen3moe has a twin here")
    tensors = {
        t.name: torch.from_numpy(np.array(gguf.quants.dequantize(t.data, t.tensor_type))) for t in reader.tensors
    }

    def key(name: str, default: Any = None) -> Any:
        field = reader.fields.get(f"qwen3moe.{name}")
        return default if field is None else field.contents()

    config = Qwen3MoeConfig(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=key("embedding_length"),
        intermediate_size=key("feed_forward_length"),
        moe_intermediate_size=key("expert_feed_forward_length"),
        num_hidden_layers=key("block_count"),
        num_attention_heads=key("attention.head_count"),
        num_key_value_heads=key("attention.head_count_kv"),
        head_dim=key("attention.key_length"),
        num_experts=key("expert_count"),
        num_experts_per_tok=key("expert_used_count"),
        norm_topk_prob=True,
        rms_norm_eps=key("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=key("context_length"),
        tie_word_embeddings="output.weight" not in tensors,
        decoder_sparse_step=1,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": key("rope.freq_base", 10000.0)},
    )
    model = Qwen3MoeForCausalLM(config).eval()
    state = model.state_dict()
    fused = any(name.endswith("experts.gate_up_proj") for name in state)
    for name, value in state.items():
        if name.endswith("o_proj.bias"):
            value.zero_()
    for name, value in tensors.items():
        scale = tensors.get(name.removesuffix("weight") + "scale")
        value = value if scale is None or not name.endswith(".weight") else value * scale
        parts = name.split(".", 2)
        layer, rest = (f"model.layers.{parts[1]}.", parts[2]) if parts[0] == "blk" else ("", name)
        if rest in NAMES:
            state[layer + NAMES[rest]].copy_(value)
        elif not fused and rest.startswith("ffn_") and "_exps" in rest:
            for expert, matrix in enumerate(value):
                state[f"{layer}mlp.experts.{expert}.{rest[4:].split('_')[0]}_proj.weight"].copy_(matrix)
    for number in range(config.num_hidden_layers if fused else 0):
        gate, up, down = (tensors[f"blk.{number}.ffn_{kind}_exps.weight"] for kind in ("gate", "up", "down"))
        state[f"model.layers.{number}.mlp.experts.gate_up_proj"].copy_(torch.cat([gate, up], dim=1))
        state[f"model.layers.{number}.mlp.experts.down_proj"].copy_(down)
    return model
