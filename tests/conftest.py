"""Shared fixtures: tiny models made once, and the embedded one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_file(arch, dtype=…, …)`: a tiny random model, made once per set of arguments."""
    import tiny

    folder = tmp_path_factory.mktemp("tiny")
    made: dict[str, Path] = {}

    def make(arch: str, **how: Any) -> Path:
        key = "-".join([arch, *(f"{k}={v}" for k, v in sorted(how.items()))])
        if key not in made:
            made[key] = tiny.tiny_model(folder / f"{len(made)}-{arch}.gguf", arch, **how)
        return made[key]

    return make


@pytest.fixture(scope="session")
def packed_file(tiny_file: Callable[..., Path]) -> Callable[..., Path]:
    """Like `tiny_file`, expert-contiguous."""
    from workbench.storage.pack import pack

    def make(arch: str, **how: Any) -> Path:
        native = tiny_file(arch, **how)
        target = native.with_suffix(".packed.gguf")
        return target if target.exists() else pack(native, target, progress=False)

    return make


@pytest.fixture(scope="session")
def demo_file() -> Path:
    """The embedded demo model."""
    from workbench.demo import demo_model

    return demo_model()
