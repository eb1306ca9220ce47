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
    "Comparison",
    "Ladder",
    "ModelFileError",
    "NativeError",
    "Run",
    "RunConfig",
    "RunError",
    "Scores",
    "Session",
    "ToggleError",
    "UnsupportedArchitectureError",
    "WorkbenchError",
    "ablate",
    "compare",
    "eval",
    "figure",
    "interrupted",
    "load_runs",
    "panel",
    "paper_figures",
    "run",
]

_API = ("Ladder", "Run", "ablate", "figure", "interrupted", "paper_figures", "run")
_LAZY = (
    {"Session": "workbench.session", "load_runs": "workbench.devices.recorded", "panel": "workbench.notebook.panel"}
    | dict.fromkeys(_API, "workbench.api")
    | dict.fromkeys(("Comparison", "Scores", "compare", "eval"), "workbench.api_evals")
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
