"""Synthetic models: reproducible, labelled, and they route."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stock import decode

from workbench.errors import ToggleError
from workbench.storage.gguf_file import open_gguf
from workbench.storage.inspect import summarize
from workbench.storage.synth import SynthShape, synthesize


class TestSynth:
    def test_same_seed_same_bytes_and_labelled(self, tmp_path: Path) -> None:
        shape = SynthShape(n_layer=2, n_embd=256, n_ff=256, n_expert=8, n_expert_used=2, n_vocab=512, n_head=4, seed=5)
        first = synthesize(tmp_path / "a.gguf", shape, progress=False)
        assert first.read_bytes() == synthesize(tmp_path / "b.gguf", shape, progress=False).read_bytes()
        model = open_gguf(first)
        assert model.get("general.name").startswith("synthetic")
        assert model.get("les.synthetic") is True
        assert summarize(first).synthetic

    @pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0", "q3_k", "q4_k", "q6_k", "mxfp4"])
    def test_loads_and_routes(self, dtype: str, tmp_path: Path) -> None:
        shape = SynthShape(
            n_layer=3, n_embd=256, n_ff=256, n_expert=16, n_expert_used=4, n_vocab=512, n_head=4, expert_type=dtype
        )
        trace = decode(synthesize(tmp_path / "s.gguf", shape, progress=False), n_tokens=24)
        assert np.isfinite(trace.logits).all()
        for routed in trace.routed.values():
            assert len(set(routed.ravel())) >= 12

    @pytest.mark.parametrize(
        "wrong",
        [
            {"n_embd": 100},
            {"n_expert_used": 200},
            {"expert_type": "q9"},
            {"n_vocab": 3},
            {"n_layer": 0},
            {"residual_std": 0},
        ],
    )
    def test_impossible_shapes(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ToggleError):
            SynthShape(**wrong)  # type: ignore[arg-type]
