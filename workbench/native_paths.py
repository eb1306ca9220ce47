"""Where the installed native parts are: next to this file, or in site-packages for an editable install."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from workbench.errors import NativeError


def _find(relative: str) -> Path:
    candidates = [Path(__file__).parent / relative]
    try:
        distribution = importlib.metadata.distribution("les-workbench")
        candidates.append(Path(str(distribution.locate_file(f"workbench/{relative}"))))
    except importlib.metadata.PackageNotFoundError:
        pass
    for path in candidates:
        if path.exists():
            return path
    raise NativeError(
        f"the native runtime is not installed (no workbench/{relative}); install the project with "
        "`uv sync` or `pip install .` instead of running it from the source folder"
    )


def lib_dir() -> Path:
    """Folder of libllama, libggml* and libles."""
    return _find("lib")


def library() -> Path:
    """The session library."""
    return _find("lib/libles.dylib" if sys.platform == "darwin" else "lib/libles.so")


def runner() -> Path:
    """The command-line runner `les-run`."""
    return _find("bin/les-run")
