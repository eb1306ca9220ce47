"""`unpack`: restore the file or files that `pack` read, byte for byte."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm

from workbench.errors import ModelFileError
from workbench.storage.atomic import atomic_file, check_free_disk, check_target, leftover_bytes, one_sentence
from workbench.storage.gguf_file import GgufFile, open_gguf
from workbench.storage.gguf_header import MAX_HEADER_BYTES, UINT8, Header, parse_header
from workbench.storage.layout import Placement, placements_of
from workbench.storage.transfer import chunks, read_at, write_at


@dataclass(frozen=True)
class Original:
    """One file that was packed, and its header."""

    name: str
    size_bytes: int
    sha256: str
    header: Header


def unpack(source: str | Path, target: str | Path, *, progress: bool = True, overwrite: bool = False) -> list[Path]:
    """Restore the original of a packed file.

    Parameters
    ----------
    source
        A file written by `pack`.
    target
        The file to write. An existing folder gets the original file name. The shards of a split original keep their
        names, which llama.cpp depends on: they are written into `target` if it is a folder, else beside it.
    progress
        Show a progress bar on stderr.
    overwrite
        Replace existing files.

    Returns
    -------
    list of Path
        The files restored; each appears only after its SHA-256 was found equal to the original's.

    Raises
    ------
    ModelFileError
        When the source is not a packed file or is damaged; when a target exists.
    DiskSpaceError
        When the target's disk has too little room.
    """
    model = open_gguf(source)
    if not model.packed:
        raise ModelFileError(f"{model.path}: not a packed file (its architecture is {model.architecture!r})")
    originals = read_originals(model)
    places = placements_of(model)
    for original in originals:
        _check_complete(model, original)
    with one_sentence(f"unpacking {model.path} to {target}"):
        targets = _targets(originals, Path(target))
        for path in targets:
            check_target(path, overwrite=overwrite)
            if path.exists() and path.samefile(model.path):
                raise ModelFileError(f"{path}: source and target are the same file")
        total_bytes = sum(original.size_bytes for original in originals)
        check_free_disk(targets[0].parent, total_bytes, reclaimed_bytes=sum(map(leftover_bytes, targets)))
        with (
            model.path.open("rb", buffering=0) as file,
            tqdm(total=total_bytes, unit="B", unit_scale=True, desc="unpack", disable=not progress) as bar,
        ):
            for original, path in zip(originals, targets, strict=True):
                with atomic_file(path, original.size_bytes) as out:
                    _gather(model, file.fileno(), original, places, out.fileno(), bar)
    return targets


def _targets(originals: list[Original], target: Path) -> list[Path]:
    if len(originals) == 1 and not target.is_dir():
        return [target]
    folder = target if target.is_dir() else target.parent
    return [folder / original.name for original in originals]


def read_originals(model: GgufFile) -> list[Original]:
    """What a packed file says about the files it was made from; ModelFileError if it cannot be trusted."""
    with _damage(model):
        sources = json.loads(model.get("les.sources"))
        sizes = model.get("les.source_header_sizes")
        if not sources or len(sources) != len(sizes) or sum(sizes) > MAX_HEADER_BYTES:
            raise ValueError("sources and header sizes do not match")
        headers = _inflate(model, sum(sizes))
        originals = []
        for entry, n_bytes in zip(sources, sizes, strict=True):
            raw, headers = headers[:n_bytes], headers[n_bytes:]
            name, size_bytes, sha256 = str(entry["name"]), int(entry["size"]), str(entry["sha256"])
            if not name or Path(os.fsdecode(os.fsencode(name))).name != name or "\0" in name or name == "..":
                raise ValueError(f"{name!r} is not a plain file name")
            header = _parse(raw, size_bytes, name)
            if len(header.raw) != n_bytes or header.trailing_bytes(size_bytes) > 0:
                raise ValueError(f"header and size of {name} do not match")
            originals.append(Original(name, size_bytes, sha256, header))
        if len({original.name for original in originals}) != len(originals):
            raise ValueError("two sources have one name")
        return originals
    raise AssertionError


def _inflate(model: GgufFile, n_bytes: int) -> bytes:
    field = model.shards[0].header.fields["les.source_header_zlib"]
    if field.element_type_id != UINT8:
        raise ValueError("headers are not bytes")
    headers = zlib.decompressobj().decompress(field.payload, n_bytes)
    if len(headers) != n_bytes:
        raise ValueError("headers are cut short")
    return headers


def _parse(raw: bytes, size_bytes: int, name: str) -> Header:
    def read(offset: int, n_bytes: int) -> bytes:
        return raw[offset : offset + n_bytes]

    return parse_header(read, size_bytes, name)


@contextlib.contextmanager
def _damage(model: GgufFile) -> Iterator[None]:
    """Whatever a damaged record makes Python complain about is one ModelFileError."""
    try:
        yield
    except (ModelFileError, ValueError, TypeError, KeyError, zlib.error, OverflowError, RecursionError) as error:
        raise ModelFileError(f"{model.path}: damaged: its record of the original files: {error}") from error


def _check_complete(model: GgufFile, original: Original) -> None:
    here = {tensor.name: tensor for _, tensor in model.tensors()}
    for tensor in original.header.tensors:
        found = here.get(tensor.name)
        if found is None or (found.shape, found.type_id) != (tensor.shape, tensor.type_id):
            raise ModelFileError(f"{model.path}: damaged: tensor {tensor.name!r} of {original.name} is not in it")


def _gather(
    model: GgufFile, source: int, original: Original, places: dict[str, Placement], out: int, bar: tqdm
) -> None:
    """Write one original front to back and check its SHA-256."""
    header = original.header
    digest = hashlib.sha256()
    at = 0

    def put(data: bytes) -> None:
        nonlocal at
        write_at(out, data, at)
        digest.update(data)
        at += len(data)
        bar.update(len(data))

    put(header.raw)
    for tensor in header.tensors:
        put(bytes(header.data_start + tensor.offset - at))
        place = places[tensor.name]
        for piece in range(place.n_pieces):
            start = place.offset + piece * place.stride_bytes
            for done, n_bytes in chunks(place.piece_bytes):
                put(read_at(source, n_bytes, start + done, model.path))
    put(bytes(original.size_bytes - at))
    if digest.hexdigest() != original.sha256:
        raise ModelFileError(f"{model.path}: damaged: {original.name} restored from it has the wrong SHA-256")
