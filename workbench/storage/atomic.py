"""Write a large file so that its name appears only when it is complete and on disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from workbench.errors import ModelFileError, WorkbenchError

PARTIAL_SUFFIX = ".partial"
_HEADROOM_BYTES = 1 << 20


class DiskSpaceError(WorkbenchError):
    """The target's disk has too little room."""


@contextlib.contextmanager
def one_sentence(doing: str) -> Iterator[None]:
    """Turn an OSError into one WorkbenchError that says what was being done."""
    try:
        yield
    except OSError as error:
        raise WorkbenchError(f"{doing}: {error.strerror}") from error


def check_free_disk(folder: Path, needed_bytes: int, *, reclaimed_bytes: int = 0) -> None:
    """DiskSpaceError unless `folder`'s disk has `needed_bytes`, counting `reclaimed_bytes` about to be freed."""
    if not folder.is_dir():
        raise ModelFileError(f"{folder}: no such folder")
    free_bytes = shutil.disk_usage(folder).free + reclaimed_bytes
    if free_bytes < needed_bytes + _HEADROOM_BYTES:
        raise DiskSpaceError(
            f"{folder}: {needed_bytes / 1e9:.2f} GB needed, {free_bytes / 1e9:.2f} GB free: "
            f"make {(needed_bytes + _HEADROOM_BYTES - free_bytes) / 1e9:.2f} GB of room or choose another disk"
        )


def check_target(target: Path, *, overwrite: bool) -> None:
    """ModelFileError when `target` exists and may not be replaced, or is not a plain file."""
    if target.exists() and not target.is_file():
        raise ModelFileError(f"{target}: exists and is not a file")
    if target.exists() and not overwrite:
        raise ModelFileError(f"{target}: exists already; remove it or ask to overwrite it")


def partial_path(target: Path) -> Path:
    """Where an unfinished `target` lives."""
    return target.with_name(target.name + PARTIAL_SUFFIX)


def leftover_bytes(target: Path) -> int:
    """Disk that an unfinished `target` occupies, to be freed when it is started over."""
    partial = partial_path(target)
    return partial.stat().st_blocks * 512 if partial.is_file() else 0


@contextlib.contextmanager
def atomic_file(target: Path, size_bytes: int) -> Iterator[BinaryIO]:
    """Yield `target.partial` opened for writing, extended to `size_bytes`; rename it on success.

    An exception removes the partial file. A killed process leaves it, and the next call starts it over.

    Raises
    ------
    DiskSpaceError
        When the disk has too little room, before anything is written.
    ModelFileError
        When another process is writing the same target.
    """
    partial = partial_path(target)
    check_free_disk(target.parent, size_bytes, reclaimed_bytes=leftover_bytes(target))
    try:
        file = os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
    except OSError as error:
        raise ModelFileError(f"{partial}: cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ModelFileError(f"{partial}: another process is writing it") from error
        if not (partial.is_file() and os.path.samestat(partial.stat(), os.fstat(file.fileno()))):
            raise ModelFileError(f"{partial}: another process has just finished it")
        try:
            file.truncate(0)
            file.truncate(size_bytes)
            yield file
            os.fsync(file.fileno())
            os.replace(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
