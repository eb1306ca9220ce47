"""GGUF files on disk, whole or split into shards."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.errors import ModelFileError
from workbench.storage.gguf_header import Header, Tensor, parse_header

PACKED_PREFIX = "les-"
_SHARD_NAME = re.compile(r"^(?P<stem>.*)-(?P<no>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf\Z", re.DOTALL)


@dataclass(frozen=True)
class Shard:
    """One file and its header."""

    path: Path
    size_bytes: int
    header: Header


@dataclass(frozen=True)
class GgufFile:
    """A model: one shard, or all shards of a split in order. Keys come from the first."""

    shards: tuple[Shard, ...]

    @property
    def path(self) -> Path:
        return self.shards[0].path

    @property
    def size_bytes(self) -> int:
        return sum(s.size_bytes for s in self.shards)

    def get(self, key: str, default: Any = None) -> Any:
        return self.shards[0].header.get(key, default)

    @cached_property
    def architecture(self) -> str:
        """`general.architecture` as written: a packed file's starts with `les-`."""
        value = self.get("general.architecture")
        if not isinstance(value, str) or not value:
            raise ModelFileError(f"{self.path}: no general.architecture: not a model")
        return value

    @property
    def packed(self) -> bool:
        return self.architecture.startswith(PACKED_PREFIX)

    def get_arch(self, key: str, default: Any = None) -> Any:
        """A key of the architecture, such as `expert_count` for `qwen3moe.expert_count`."""
        return self.get(f"{self.architecture.removeprefix(PACKED_PREFIX)}.{key}", default)

    def tensors(self) -> Iterator[tuple[Shard, Tensor]]:
        """All tensors in file order."""
        for shard in self.shards:
            for tensor in shard.header.tensors:
                yield shard, tensor


def read_shard(path: Path) -> Shard:
    """Read one file's header; ModelFileError says what is wrong with it."""
    try:
        if not path.is_file():
            raise ModelFileError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
        with path.open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size

            def read(offset: int, n_bytes: int) -> bytes:
                return os.pread(file.fileno(), n_bytes, offset)

            return Shard(path, size_bytes, parse_header(read, size_bytes, str(path)))
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error


def open_gguf(path: str | Path) -> GgufFile:
    """Open a model by its file, or by any shard of a split.

    Raises
    ------
    ModelFileError
        For anything wrong with a header, and for a missing shard, by its expected file name.
    """
    path = Path(path)
    shard = read_shard(path)
    count = shard.header.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return _checked(GgufFile((shard,)))
    match = _SHARD_NAME.match(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelFileError(f"{path}: one of {count} shards, but not named like NAME-00001-of-{count:05d}.gguf")
    shards = []
    for no in range(1, count + 1):
        sibling = path.with_name(f"{match['stem']}-{no:05d}-of-{count:05d}.gguf")
        if not sibling.is_file():
            raise ModelFileError(f"{path}: shard {no} of {count} is missing: expected {sibling.name} beside it")
        shards.append(shard if sibling == path else read_shard(sibling))
        found = shards[-1].header.get("split.no")
        if found != no - 1 or shards[-1].header.get("split.count") != count:
            raise ModelFileError(f"{sibling}: shard {found} by its header, but named as number {no} of {count}")
    return _checked(GgufFile(tuple(shards)))


def _checked(model: GgufFile) -> GgufFile:
    names = [tensor.name for _, tensor in model.tensors()]
    if len(set(names)) != len(names):
        raise ModelFileError(f"{model.path}: a tensor occurs in two shards")
    total = model.get("split.tensors.count")
    if len(model.shards) > 1 and total is not None and total != len(names):
        raise ModelFileError(f"{model.path}: {len(names)} tensors in its shards, but split.tensors.count says {total}")
    return model
