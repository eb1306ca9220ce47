"""A small model and suite for runs on devices, and a runner that a shell can start."""

from __future__ import annotations

from pathlib import Path

from workbench.ablation.rungs import DEFAULT_LADDER
from workbench.ablation.suites import Suite
from workbench.storage.synth import SynthShape, synthesize

SHAPE = SynthShape(
    n_layer=2, n_embd=256, n_ff=256, n_expert=8, n_expert_used=2, n_head=4, n_head_kv=2, n_vocab=300, n_ctx=256
)
SUITE = Suite(name="test", tokens=4, repeats=2, rungs=DEFAULT_LADDER[:3], base={"threads": 1})


def make_model(folder: Path) -> Path:
    return synthesize(folder / "tiny.gguf", SHAPE, progress=False)


def make_runner(folder: Path, *cases: str) -> Path:
    """A script that a target pushes as `les-run`: the real one, after the given shell `case` arms on its job's path."""
    from workbench.native_paths import runner

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "les-run"
    arms = "\n".join(cases)
    path.write_text(f'#!/bin/sh\ncase "$1" in\n{arms}\nesac\nexec "{runner()}" "$1"\n')
    path.chmod(0o755)
    return path
