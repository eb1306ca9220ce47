"""Every tiny model loads in llama.cpp, computes, and routes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from stock import decode

from workbench.storage.gguf_file import open_gguf
from workbench.storage.inspect import inspect

CASES = [(arch, "f32", None) for arch in tiny.ARCHITECTURES]
CASES += [(arch, "q4_k", None) for arch in tiny.ARCHITECTURES]
CASES += [("gpt-oss", "mxfp4", None), ("gpt-oss", "q8_0", None), ("qwen3moe", "q3_k", None), ("olmoe", "q5_0", None)]
CASES += [(arch, "q8_0", fused) for arch in ("qwen35moe", "qwen3next", "deepseek2") for fused in (True, False)]


@pytest.mark.parametrize(("arch", "dtype", "fused"), CASES)
def test_loads_and_routes(arch: str, dtype: str, fused: bool | None, tmp_path: Path) -> None:
    path = tiny.tiny_model(tmp_path / "tiny.gguf", arch, dtype=dtype, fused=fused)
    trace = decode(path)
    assert np.isfinite(trace.logits).all()
    for row in range(len(trace.logits) - 1):
        assert np.abs(trace.logits[row] - trace.logits[row + 1]).max() > 0.1
    assert len(trace.routed) >= 4
    for layer, routed in trace.routed.items():
        assert routed.shape == (8, 4), layer
        assert len({tuple(sorted(ids)) for ids in routed}) > 1, f"layer {layer} routes every token alike"
    if fused is not None:
        assert inspect(path)["tensors"].unique().tolist() == ["gate_up+down" if fused else "gate+up+down"]


@pytest.mark.parametrize("arch", ["glm4moe", "bailingmoe2", "deepseek2"])
def test_expert_groups_limit_the_choice(arch: str, tmp_path: Path) -> None:
    trace = decode(tiny.tiny_model(tmp_path / "grouped.gguf", arch))
    groups = {layer: max(len(set(ids // 4)) for ids in routed) for layer, routed in trace.routed.items()}
    assert set(groups.values()) == {2}


@pytest.mark.parametrize("arch", ["glm4moe", "bailingmoe2", "deepseek2", "dots1", "minimax-m2", "lfm2moe"])
def test_selection_bias_matters(arch: str, tmp_path: Path) -> None:
    path = tiny.tiny_model(tmp_path / "biased.gguf", arch)
    before = decode(path)
    (shard,) = open_gguf(path).shards
    data = bytearray(path.read_bytes())
    biases = [t for t in shard.header.tensors if "exp_probs_b" in t.name]
    for tensor in biases:
        start = shard.header.data_start + tensor.offset
        data[start : start + tensor.n_bytes] = bytes(tensor.n_bytes)
    path.write_bytes(data)
    after = decode(path)
    assert biases
    assert any((before.routed[layer][0] != after.routed[layer][0]).any() for layer in before.routed)


def test_gpt_oss_in_mxfp4_has_strides_off_the_direct_read_grid(tmp_path: Path) -> None:
    layers = inspect(tiny.tiny_model(tmp_path / "tiny.gguf", "gpt-oss", dtype="mxfp4"))
    assert (layers["stride_grid_bytes"] < 512).all()
    assert set(layers["types"]) == {"MXFP4"}


def test_scales_are_kept_on_request(tmp_path: Path) -> None:
    path = tiny.tiny_model(tmp_path / "scaled.gguf", "qwen3moe", scales=True)
    assert any(tensor.name.endswith("_exps.scale") for _, tensor in open_gguf(path).tensors())
    assert np.isfinite(decode(path).logits).all()


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    one, two, other = (
        tiny.tiny_model(tmp_path / f"{i}.gguf", "olmoe", dtype="q8_0", seed=seed).read_bytes()
        for i, seed in enumerate((3, 3, 4))
    )
    assert one == two != other


def test_keys_it_cannot_load_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not make a llama4 model"):
        tiny.tiny_model(tmp_path / "no.gguf", "llama4")
