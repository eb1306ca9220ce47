"""Lossless on-device Mixture-of-Experts inference: run it, measure it, prove it.

`import workbench` is quick: it imports neither plotting nor torch, and it points llama-cpp-python at the
libraries this package ships, which must happen before the first `import llama_cpp`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

from workbench.config import RunConfig
from workbench.errors import (
    ModelFileError,
    NativeError,
    RunError,
    ToggleError,
    UnsupportedArchitectureError,
    WorkbenchError,
)

__all__ = [
    "Ladder",
    "ModelFileError",
    "NativeError",
    "Run",
    "RunConfig",
    "RunError",
    "Session",
    "ToggleError",
    "UnsupportedArchitectureError",
    "WorkbenchError",
    "ablate",
    "interrupted",
    "load_runs",
    "panel",
    "run",
]

_LAZY = {"Session": "workbench.session"} | dict.fromkeys(
    ("Ladder", "Run", "ablate", "interrupted", "load_runs", "panel", "run"), "workbench.api"
)


def _use_our_libraries() -> None:
    from workbench import native_paths

    # libgomp reads this once: a bounded spin is fastest idle and survives a busy neighbour
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    with contextlib.suppress(NativeError):  # storage and analysis work without; the runner and Session complain
        os.environ["LLAMA_CPP_LIB_PATH"] = str(native_paths.lib_dir())


_use_our_libraries()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'workbench' has no attribute {name!r}")
