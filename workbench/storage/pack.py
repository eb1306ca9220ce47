"""`pack`: rewrite a GGUF so that each expert's gate, up and down lie next to each other.

The source is read once, front to back (and hashed on the way); every byte goes to its new place. The packed file is
one file whatever the number of source shards, calls its architecture `les-<arch>` so that stock llama.cpp refuses it,
and carries the original headers and hashes so that `unpack` restores the source byte for byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tqdm.auto import tqdm

from workbench.errors import ModelFileError
from workbench.storage.atomic import atomic_file, check_target, one_sentence
from workbench.storage.gguf_file import PACKED_PREFIX, GgufFile, Shard, open_gguf
from workbench.storage.gguf_header import (
    STRING,
    UINT8,
    UINT32,
    UINT64,
    Tensor,
    encode_array,
    encode_field,
    encode_header,
    lay_out,
)
from workbench.storage.layout import PACKED_SCHEMA, Placement, expert_groups, interleave
from workbench.storage.transfer import chunks, read_at, write_at

PACKED_ALIGNMENT_BYTES = 4096
_NO_HASH = "0" * 64

Take = Callable[[int, int], bytes]
"""(n_bytes, offset) → the next bytes of a file that is read front to back."""


def pack(source: str | Path, target: str | Path, *, progress: bool = True, overwrite: bool = False) -> Path:
    """Write the expert-contiguous form of `source` to `target`.

    Parameters
    ----------
    source
        A GGUF, or any shard of a split one.
    target
        The file to write. It appears only when complete; until then `target.partial` holds the work.
    progress
        Show a progress bar on stderr.
    overwrite
        Replace an existing target.

    Returns
    -------
    Path
        The target.

    Raises
    ------
    ModelFileError
        When the source is damaged, packed already, without experts, or holds bytes that `unpack` could not restore;
        when the target exists.
    DiskSpaceError
        When the target's disk has too little room.
    """
    target = Path(target)
    model = open_gguf(source)
    if model.packed:
        raise ModelFileError(f"{model.path}: packed already")
    with one_sentence(f"packing {model.path} to {target}"):
        check_target(target, overwrite=overwrite)
        for shard in model.shards:
            _check_restorable(shard, target)
    return pack_stream(model, target, _from_disk, desc="pack", progress=progress, overwrite=overwrite)


def pack_stream(
    model: GgufFile,
    target: Path,
    open_shard: Callable[[Shard], contextlib.AbstractContextManager[Take]],
    *,
    desc: str,
    progress: bool = True,
    overwrite: bool = False,
) -> Path:
    """Write the expert-contiguous form of a model whose bytes need not lie in a file.

    Parameters
    ----------
    model
        Headers of the model's shards; their paths' names are those that `unpack` restores.
    open_shard
        Opens a shard for reading front to back.
    desc
        What the progress bar says.
    """
    with one_sentence(f"writing {target}"):
        check_target(target, overwrite=overwrite)
        tensors, data_bytes = lay_out(_packed_order(model), PACKED_ALIGNMENT_BYTES)
        head = _packed_header(model, tensors, [_NO_HASH] * len(model.shards))
        places = _packed_places(model, tensors, len(head))
        with (
            atomic_file(target, len(head) + data_bytes) as out,
            tqdm(total=model.size_bytes, unit="B", unit_scale=True, desc=desc, disable=not progress) as bar,
        ):
            hashes = []
            for shard in model.shards:
                with open_shard(shard) as take:
                    hashes.append(_scatter(shard, take, out.fileno(), places, bar))
            write_at(out.fileno(), _packed_header(model, tensors, hashes), 0)
    return target


def _check_restorable(shard: Shard, target: Path) -> None:
    trailing_bytes = shard.header.trailing_bytes(shard.size_bytes)
    if trailing_bytes > 0:
        raise ModelFileError(f"{shard.path}: {trailing_bytes} bytes follow the last tensor: not packed")
    if target.exists() and target.samefile(shard.path):
        raise ModelFileError(f"{target}: source and target are the same file")


def _packed_order(model: GgufFile) -> list[tuple[str, tuple[int, ...], int]]:
    experts = [tensor for members in expert_groups(model).values() for _, tensor in members.values()]
    names = {t.name for t in experts}
    dense = [tensor for _, tensor in model.tensors() if tensor.name not in names]
    return [(t.name, t.shape, t.type_id) for t in dense + experts]


def _packed_header(model: GgufFile, tensors: tuple[Tensor, ...], sha256: list[str]) -> bytes:
    """The packed file's header; its length does not depend on the hashes' values."""
    sources = [
        {"name": s.path.name, "size": s.size_bytes, "sha256": h} for s, h in zip(model.shards, sha256, strict=True)
    ]
    headers = [shard.header.raw for shard in model.shards]
    replaced = {
        "general.architecture": encode_field("general.architecture", STRING, PACKED_PREFIX + model.architecture),
        "general.alignment": encode_field("general.alignment", UINT32, PACKED_ALIGNMENT_BYTES),
    }
    fields = model.shards[0].header.fields
    kept = [replaced.pop(key, field.record) for key, field in fields.items() if not key.startswith("split.")]
    added = [
        *replaced.values(),
        encode_field("les.layout", STRING, "contiguous"),
        encode_field("les.schema", UINT32, PACKED_SCHEMA),
        encode_field("les.sources", STRING, json.dumps(sources)),
        encode_array("les.source_header_zlib", UINT8, zlib.compress(b"".join(headers), 6)),
        encode_array("les.source_header_sizes", UINT64, [len(h) for h in headers]),
    ]
    return encode_header(kept + added, tensors, PACKED_ALIGNMENT_BYTES)


def _packed_places(model: GgufFile, tensors: tuple[Tensor, ...], data_start: int) -> dict[str, Placement]:
    places = {t.name: Placement(data_start + t.offset, t.n_bytes, t.n_bytes, 1) for t in tensors}
    for members in expert_groups(model).values():
        layer = [tensor for _, tensor in members.values()]
        places.update(interleave(layer, places[layer[0].name].offset))
    return places


@contextlib.contextmanager
def _from_disk(shard: Shard) -> Iterator[Take]:
    with shard.path.open("rb", buffering=0) as file:
        yield lambda n_bytes, offset: read_at(file.fileno(), n_bytes, offset, shard.path)
        if os.fstat(file.fileno()).st_size != shard.size_bytes:
            raise ModelFileError(f"{shard.path}: changed while it was packed")


def _scatter(shard: Shard, source: Take, out: int, places: dict[str, Placement], bar: tqdm) -> str:
    """Copy one shard's tensors to their places; return the SHA-256 of the whole shard."""
    header = shard.header
    digest = hashlib.sha256(header.raw)
    bar.update(header.data_start)

    def take(n_bytes: int, offset: int) -> bytes:
        data = source(n_bytes, offset)
        digest.update(data)
        bar.update(n_bytes)
        return data

    at = header.data_start
    for tensor in header.tensors:
        start = header.data_start + tensor.offset
        _check_padding(shard, take(start - at, at))
        at = start
        place = places[tensor.name]
        for piece in range(place.n_pieces):
            for done, n_bytes in chunks(place.piece_bytes):
                write_at(out, take(n_bytes, at), place.offset + piece * place.stride_bytes + done)
                at += n_bytes
    _check_padding(shard, take(shard.size_bytes - at, at))
    return digest.hexdigest()


def _check_padding(shard: Shard, padding: bytes) -> None:
    if any(padding):
        raise ModelFileError(f"{shard.path}: padding between tensors is not zero: not packed")
