"""`quantize`: one pass over the source, each tensor in the type its recipe gives it, packed on the way if asked."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from tqdm.auto import tqdm

from workbench.errors import ModelFileError, WorkbenchError
from workbench.quantize.imatrix import Imatrix
from workbench.quantize.library import convert_rows
from workbench.quantize.plan import Item, Plan, make_plan
from workbench.quantize.recipes import Recipe
from workbench.quantize.report import Report, make_report
from workbench.storage.atomic import atomic_file, check_target, one_sentence
from workbench.storage.gguf_file import Shard
from workbench.storage.pack import Take, pack_stream
from workbench.storage.transfer import read_at, write_at

_SLAB_WEIGHTS = 4 << 20


def quantize(
    source: Path | str,
    recipe: Recipe,
    target: Path | str,
    *,
    imatrix: Imatrix | None = None,
    pack: bool = False,
    threads: int = 0,
    allow_requantize: bool = False,
    progress: bool = True,
    overwrite: bool = False,
) -> Report:
    """Write the quantized form of a model; the bytes are those of llama.cpp's own quantizer.

    Parameters
    ----------
    source
        A GGUF, or any shard of a split one.
    target
        The file to write, one whatever the number of source shards. It appears only when complete.
    imatrix
        Importance matrix of the source.
    pack
        Write the expert-contiguous form directly: what `pack` would make of the quantized file, which itself is never
        on disk. `unpack` restores it.
    threads
        0: all cores.
    allow_requantize
        Accept a source that is quantized beyond Q8_0.

    Raises
    ------
    ModelFileError
        When the source or the importance matrix cannot be used, or the target exists.
    DiskSpaceError
        When the target's disk has too little room.
    """
    target = Path(target)
    check_target(target, overwrite=overwrite)
    plan = make_plan(source, recipe, imatrix=imatrix, allow_requantize=allow_requantize)
    for item in plan.items:
        plan.importance(item)  # refuse a matrix of another model before anything is written
    if target.exists() and any(target.samefile(shard.path) for shard in plan.source.shards):
        raise ModelFileError(f"{target}: source and target are the same file")
    stream = _Stream(plan, threads or os.cpu_count() or 1)
    if pack:
        file = plan.virtual_file(unpacked_name(target))
        pack_stream(file, target, stream.open, desc="quantize and pack", progress=progress, overwrite=overwrite)
    else:
        _write(plan, stream, target, progress)
    return make_report(plan, target, packed=pack)


def unpacked_name(target: Path) -> str:
    """`NAME.packed.gguf` → `NAME.gguf`: what `unpack` calls the file that was packed."""
    return target.name.removesuffix(".gguf").removesuffix(".packed") + ".gguf"


def _write(plan: Plan, stream: _Stream, target: Path, progress: bool) -> None:
    with (
        one_sentence(f"writing {target}"),
        atomic_file(target, plan.size_bytes) as out,
        tqdm(total=plan.size_bytes, unit="B", unit_scale=True, desc="quantize", disable=not progress) as bar,
    ):
        write_at(out.fileno(), plan.header.raw, 0)
        at = plan.header.data_start
        bar.update(at)
        for data in stream.pieces():
            write_at(out.fileno(), data, at)
            at += len(data)
            bar.update(len(data))


class _Stream:
    """The tensor data of the new file, front to back, a slab at a time."""

    def __init__(self, plan: Plan, threads: int) -> None:
        self.plan, self.threads = plan, threads

    def pieces(self) -> Iterator[bytes]:
        """Data and padding, from the end of the header to the end of the file."""
        at = 0
        for item in self.plan.items:
            yield bytes(item.target.offset - at)
            yield from self._tensor(item)
            at = item.target.offset + item.target.n_bytes
        yield bytes(self.plan.size_bytes - self.plan.header.data_start - at)

    def _tensor(self, item: Item) -> Iterator[bytes]:
        source, target = item.source, item.target
        width, n_rows = source.shape[0], math.prod(source.shape[1:])
        importance = self.plan.importance(item)
        from_row, to_row = source.n_bytes // max(1, n_rows), target.n_bytes // max(1, n_rows)
        per_matrix = source.shape[1] if len(source.shape) > 1 else 1
        start = item.shard.header.data_start + source.offset
        with item.shard.path.open("rb", buffering=0) as file:
            step = max(1, _SLAB_WEIGHTS // max(1, width))
            for first in range(0, n_rows, step):
                n = min(step, n_rows - first)
                data = read_at(file.fileno(), n * from_row, start + first * from_row, item.shard.path)
                try:
                    yield convert_rows(
                        data,
                        from_type=source.type_id,
                        to_type=target.type_id,
                        shape=(n, width),
                        first=first,
                        per_matrix=per_matrix,
                        importance=importance,
                        to_bytes=n * to_row,
                        threads=self.threads,
                    )
                except WorkbenchError as error:
                    raise type(error)(f"{item.shard.path}: {source.name} {error}") from None

    @contextlib.contextmanager
    def open(self, _: Shard) -> Iterator[Take]:
        """The new file for reading front to back, from the end of its header."""
        pieces, rest = self.pieces(), memoryview(b"")

        def take(n_bytes: int, _: int) -> bytes:
            nonlocal rest
            parts = []
            while n_bytes:
                if not rest:
                    rest = memoryview(next(pieces))
                parts.append(rest[:n_bytes])
                rest = rest[n_bytes:]
                n_bytes -= len(parts[-1])
            return b"".join(parts)

        yield take
