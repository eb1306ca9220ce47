"""The embedded demo model."""

from __future__ import annotations

from pathlib import Path

from workbench.errors import ModelFileError

MODEL = "demo-q8_0.gguf"


def demo_model() -> Path:
    """The embedded model's file.

    Raises
    ------
    ModelFileError
        If this installation lacks it.
    """
    path = Path(__file__).parent / MODEL
    if not path.is_file():
        raise ModelFileError(f"{path}: the embedded model is missing; install the project again")
    return path
