"""The embedded demo model."""

from __future__ import annotations

from pathlib import Path

from workbench.errors import ModelFileError

MODEL, DRAFTER = "demo-q8_0.gguf", "demo-draft-q8_0.gguf"


def demo_model() -> Path:
    """The embedded model's file.

    Raises
    ------
    ModelFileError
        If this installation lacks it.
    """
    return _embedded(MODEL)


def demo_drafter() -> Path:
    """The DSpark drafter trained for the embedded model.

    Raises
    ------
    ModelFileError
        If this installation lacks it.
    """
    return _embedded(DRAFTER)


def _embedded(name: str) -> Path:
    path = Path(__file__).parent / name
    if not path.is_file():
        raise ModelFileError(f"{path}: the embedded model is missing; install the project again")
    return path
