"""Exact reads and writes at a file offset, in chunks small enough for any model on any machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from workbench.errors import ModelFileError

CHUNK_BYTES = 16 << 20


def chunks(n_bytes: int) -> Iterator[tuple[int, int]]:
    """(start, length) of each chunk of a run of `n_bytes`."""
    for start in range(0, n_bytes, CHUNK_BYTES):
        yield start, min(CHUNK_BYTES, n_bytes - start)


def read_at(handle: int, n_bytes: int, offset: int, path: Path) -> bytes:
    """Exactly `n_bytes` from `offset`; ModelFileError names `path` when they are not to be had."""
    parts = []
    while n_bytes:
        try:
            part = os.pread(handle, n_bytes, offset)
        except OSError as error:
            raise ModelFileError(f"{path}: read error at byte {offset}: {error.strerror}") from error
        if not part:
            raise ModelFileError(f"{path}: ended at byte {offset} while it was read")
        parts.append(part)
        n_bytes -= len(part)
        offset += len(part)
    return b"".join(parts)


def write_at(handle: int, data: bytes, offset: int) -> None:
    """All of `data` to `offset`."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(handle, rest, offset)
        rest, offset = rest[written:], offset + written
