"""What a disk gives the runtime's own read lanes when nothing else runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.errors import ModelFileError
from workbench.session import library


def iobench(
    path: Path | str, *, lanes: int, block_bytes: int, seconds: float = 1.0, direct: bool = True, **emulate: int
) -> dict[str, Any]:
    """Random reads of `block_bytes` over a file by `lanes` threads for `seconds`.

    Returns
    -------
    dict
        `kind` (native or emulated), `direct` (whether reads really were), `bytes`, `reads`, `elapsed_ns`, `bytes_s`.

    Raises
    ------
    ModelFileError
        If the file cannot be read, or is smaller than one block.
    """
    job = {
        "path": str(path),
        "lanes": lanes,
        "block_bytes": block_bytes,
        "seconds": seconds,
        "direct": direct,
        **emulate,
    }
    result: dict[str, Any] = json.loads(library().les_iobench(json.dumps(job).encode()))
    if "error" in result:
        raise ModelFileError(result["error"])
    return result
