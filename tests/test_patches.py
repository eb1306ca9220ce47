"""The patched llama.cpp against the unpatched one: the kernels we touch give the very same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from unpatched import logits, unpatched_libraries

from workbench import native_paths

pytestmark = [pytest.mark.native, pytest.mark.slow]
TOKENS = np.random.default_rng(11).integers(3, 250, 192).tolist()


@pytest.fixture(scope="module")
def unpatched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpatched") / "lib"
    if not unpatched_libraries(folder):
        pytest.skip("the build cache that holds the source of llama.cpp is gone")
    return folder


@pytest.mark.parametrize("n_seq", [1, 3])
@pytest.mark.parametrize("arch", ["qwen3moe", "gpt-oss", "deepseek2", "glm4moe", "qwen3next"])
def test_same_bits(unpatched: Path, tiny_file: Callable[..., Path], tmp_path: Path, arch: str, n_seq: int) -> None:
    """Batches of 192 and 3 × 64 tokens: tiled attention with masked, half masked and open tiles, sinks and windows."""
    model = tiny_file(arch, dtype="q8_0")
    ours, theirs = (
        logits(lib, model, TOKENS, tmp_path / "logits.npy", n_seq=n_seq) for lib in (native_paths.lib_dir(), unpatched)
    )
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    assert np.isfinite(ours).all()
    assert ours.std() > 0
