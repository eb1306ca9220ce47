"""GGUF headers as bytes: parse them defensively, encode them exactly.

Layout (versions 2 and 3, little-endian): magic, version u32, tensor count u64, key count u64, key-value records,
tensor records, zero padding to the alignment, tensor data. Data offsets are relative to the start of the data; every
tensor follows the one before it, padded to the alignment (llama.cpp insists on that, and so do we).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gguf
import numpy as np

from workbench.errors import ModelFileError

MAGIC = b"GGUF"
VERSION = 3
DEFAULT_ALIGNMENT_BYTES = 32
MAX_HEADER_BYTES = 1 << 30
MAX_ALIGNMENT_BYTES = 1 << 20
MAX_DIMS = 4
STRING, ARRAY = 8, 9
SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
UINT8, UINT32, FLOAT32, BOOL, UINT64 = 0, 4, 6, 7, 10

_NEWER_TYPES = {40: ("NVFP4", (64, 36)), 41: ("Q1_0", (128, 18)), 42: ("Q2_0", (64, 18))}
"""Types of our llama.cpp that a release of the gguf package may not know."""

TYPE_NAMES: dict[int, str] = {
    **{type_id: name for type_id, (name, _) in _NEWER_TYPES.items()},
    **{int(t): t.name for t in gguf.GGMLQuantizationType},
}
BLOCKS: dict[int, tuple[int, int]] = {
    **{type_id: block for type_id, (_, block) in _NEWER_TYPES.items()},
    **{int(t): size for t, size in gguf.GGML_QUANT_SIZES.items()},
}
"""ggml type → (elements per block, bytes per block)."""

_SMALLEST_KV_BYTES = 8 + 1 + 4 + 1
_SMALLEST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


def pad(n_bytes: int, alignment_bytes: int) -> int:
    """Round up to the alignment."""
    return -(-n_bytes // alignment_bytes) * alignment_bytes


@dataclass(frozen=True)
class Field:
    """One key-value record. `record` holds its exact bytes."""

    key: str
    type_id: int
    element_type_id: int | None
    count: int
    record: bytes
    payload_start: int

    @property
    def payload(self) -> memoryview:
        """The bytes of the value, without key, types and count."""
        return memoryview(self.record)[self.payload_start :]

    @cached_property
    def value(self) -> Any:
        """The value in Python's terms; arrays become lists. Bytes that are not UTF-8 are replaced."""
        payload = self.payload
        kind = self.type_id if self.element_type_id is None else self.element_type_id
        if kind == STRING:
            values: list[Any] = []
            at = 0
            for _ in range(self.count):
                (length,) = struct.unpack_from("<Q", payload, at)
                values.append(str(payload[at + 8 : at + 8 + length], "utf-8", "replace"))
                at += 8 + length
        else:
            values = np.frombuffer(payload, dtype=SCALARS[kind]).tolist()
        return values if self.element_type_id is not None else values[0]


@dataclass(frozen=True)
class Tensor:
    """One tensor record. `shape` is in ggml's order (ne0 first); `offset` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int

    @property
    def type_name(self) -> str:
        return TYPE_NAMES[self.type_id]

    @cached_property
    def n_bytes(self) -> int:
        return tensor_bytes(self.shape, self.type_id)


def tensor_bytes(shape: Sequence[int], type_id: int) -> int:
    """Bytes of a tensor; `shape[0]` must be a multiple of the type's block (ValueError)."""
    block, block_bytes = BLOCKS[type_id]
    if shape and shape[0] % block:
        raise ValueError(f"row length {shape[0]} is not a multiple of {TYPE_NAMES[type_id]}'s block of {block}")
    n = 1
    for dim in shape:
        n *= dim
    return n // block * block_bytes


@dataclass(frozen=True)
class Header:
    """A parsed header: `raw` is every byte from 0 to the start of the tensor data."""

    version: int
    alignment_bytes: int
    fields: dict[str, Field]
    tensors: tuple[Tensor, ...]
    raw: bytes

    @property
    def data_start(self) -> int:
        return len(self.raw)

    @property
    def data_bytes(self) -> int:
        """Bytes from the start of the data to the end of the last tensor, without its padding."""
        return max((t.offset + t.n_bytes for t in self.tensors), default=0)

    def trailing_bytes(self, size_bytes: int) -> int:
        """Bytes after the last tensor and its padding in a file of `size_bytes`; negative or 0 when there are none."""
        return size_bytes - self.data_start - pad(self.data_bytes, self.alignment_bytes)

    def get(self, key: str, default: Any = None) -> Any:
        field = self.fields.get(key)
        return default if field is None else field.value


class _Cursor:
    """Reads forward through a file of known size, asking `read(offset, n_bytes)` for 256 KiB or more at a time."""

    def __init__(self, read: Callable[[int, int], bytes], size_bytes: int, name: str) -> None:
        self.read, self.size_bytes, self.name = read, size_bytes, name
        self.buffer = bytearray()
        self.at = 0

    def fail(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.name}: {what}")

    def skip(self, n_bytes: int, what: str) -> int:
        """Move past `n_bytes` and return where they start; they are then in `buffer`."""
        start, end = self.at, self.at + n_bytes
        if end > self.size_bytes:
            raise self.fail(f"truncated header: {what} at byte {start} needs {n_bytes} bytes, the file ends before")
        if end > MAX_HEADER_BYTES:
            raise self.fail(f"header larger than {MAX_HEADER_BYTES >> 20} MiB ({what} at byte {start}): not plausible")
        while len(self.buffer) < end:
            have = len(self.buffer)
            more = self.read(have, min(max(end - have, 1 << 18), self.size_bytes - have))
            if not more:
                raise self.fail(f"truncated header: {what} at byte {start}, the file ended while it was read")
            self.buffer += more
        self.at = end
        return start

    def number(self, fmt: str, what: str) -> int:
        start = self.skip(struct.calcsize(fmt), what)
        return int(struct.unpack_from(fmt, self.buffer, start)[0])

    def text(self, what: str) -> str:
        length = self.number("<Q", f"length of {what}")
        start = self.skip(length, what)
        try:
            return self.buffer[start : self.at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"damaged header: {what} at byte {start} is not UTF-8") from error

    def count(self, smallest_bytes: int, what: str) -> int:
        n = self.number("<Q", f"number of {what}")
        if n * smallest_bytes > self.size_bytes:
            raise self.fail(f"truncated or damaged header: {n} {what} cannot fit in {self.size_bytes} bytes")
        return n


def parse_header(read: Callable[[int, int], bytes], size_bytes: int, name: str) -> Header:
    """Parse and check a header.

    Parameters
    ----------
    read
        `read(offset, n_bytes)` returns at most that many bytes of the file.
    size_bytes
        Size of the whole file; tensor data must fit in it.
    name
        What error messages call the file.

    Raises
    ------
    ModelFileError
        Naming the file and what is wrong with it.
    """
    cursor = _Cursor(read, size_bytes, name)
    start = cursor.skip(4, "magic") if size_bytes >= 4 else -1
    if start < 0 or cursor.buffer[:4] != MAGIC:
        raise cursor.fail("not a GGUF file (it does not start with 'GGUF')")
    version = cursor.number("<I", "version")
    if version and version & 0xFFFF == 0:
        raise cursor.fail("big-endian GGUF is not supported")
    if version not in (2, 3):
        raise cursor.fail(f"GGUF version {version} is not supported (2 and 3 are)")
    n_tensors = cursor.count(_SMALLEST_TENSOR_BYTES, "tensors")
    n_fields = cursor.count(_SMALLEST_KV_BYTES, "keys")
    fields: dict[str, Field] = {}
    for _ in range(n_fields):
        field = _parse_field(cursor)
        if field.key in fields:
            raise cursor.fail(f"damaged header: key {field.key!r} occurs twice")
        fields[field.key] = field
    alignment_bytes = _alignment(cursor, fields)
    tensors = tuple(_parse_tensor(cursor) for _ in range(n_tensors))
    data_start = pad(cursor.at, alignment_bytes)
    _check_tensors(cursor, tensors, alignment_bytes, data_start)
    data_start = min(data_start, size_bytes)
    cursor.skip(data_start - cursor.at, "padding before the tensor data")
    raw = bytes(cursor.buffer[:data_start])
    return Header(version, alignment_bytes, fields, tensors, raw)


def _parse_field(cursor: _Cursor) -> Field:
    start = cursor.at
    key = cursor.text("key")
    if not key:
        raise cursor.fail(f"damaged header: empty key at byte {start}")
    kind = type_id = cursor.number("<I", f"type of {key!r}")
    element_type_id, count = None, 1
    if type_id == ARRAY:
        kind = element_type_id = cursor.number("<I", f"element type of {key!r}")
        count = cursor.count(8 if kind == STRING else 1, f"elements of {key!r}")
    payload_start, what = cursor.at - start, f"value of {key!r}"
    if kind == STRING:
        for _ in range(count):
            cursor.skip(cursor.number("<Q", what), what)
    elif kind in SCALARS:
        cursor.skip(np.dtype(SCALARS[kind]).itemsize * count, what)
    else:
        raise cursor.fail(f"damaged header: key {key!r} has unknown type {kind}")
    return Field(key, type_id, element_type_id, count, bytes(cursor.buffer[start : cursor.at]), payload_start)


def _alignment(cursor: _Cursor, fields: dict[str, Field]) -> int:
    field = fields.get("general.alignment")
    if field is None:
        return DEFAULT_ALIGNMENT_BYTES
    if field.type_id != UINT32:
        raise cursor.fail("damaged header: general.alignment is not a 32-bit unsigned number")
    alignment_bytes = int(field.value)
    if not 0 < alignment_bytes <= MAX_ALIGNMENT_BYTES or alignment_bytes & (alignment_bytes - 1):
        raise cursor.fail(f"general.alignment {alignment_bytes} is not a power of two up to {MAX_ALIGNMENT_BYTES}")
    return alignment_bytes


def _parse_tensor(cursor: _Cursor) -> Tensor:
    name = cursor.text("tensor name")
    n_dims = cursor.number("<I", f"dimensions of {name!r}")
    if n_dims > MAX_DIMS:
        raise cursor.fail(f"damaged header: tensor {name!r} has {n_dims} dimensions (at most {MAX_DIMS})")
    shape = tuple(cursor.number("<q", f"shape of {name!r}") for _ in range(n_dims))
    type_id = cursor.number("<I", f"type of {name!r}")
    offset = cursor.number("<Q", f"offset of {name!r}")
    if type_id not in BLOCKS:
        raise cursor.fail(f"tensor {name!r} has type {type_id}, which is not known")
    if any(dim < 0 for dim in shape):
        raise cursor.fail(f"damaged header: tensor {name!r} has the shape {shape}")
    try:
        tensor_bytes(shape, type_id)
    except ValueError as error:
        raise cursor.fail(f"damaged header: tensor {name!r}: {error}") from error
    return Tensor(name, shape, type_id, offset)


def _check_tensors(cursor: _Cursor, tensors: tuple[Tensor, ...], alignment_bytes: int, data_start: int) -> None:
    expected, seen = 0, set()
    for tensor in tensors:
        if tensor.name in seen:
            raise cursor.fail(f"damaged header: tensor {tensor.name!r} occurs twice")
        seen.add(tensor.name)
        if tensor.offset != expected:
            raise cursor.fail(f"damaged header: tensor {tensor.name!r} at {tensor.offset}, expected at {expected}")
        end = data_start + tensor.offset + tensor.n_bytes
        if end > cursor.size_bytes:
            raise cursor.fail(
                f"truncated: tensor {tensor.name!r} ends at byte {end}, the file at {cursor.size_bytes}; fetch it again"
            )
        expected = pad(tensor.offset + tensor.n_bytes, alignment_bytes)


def encode_text(text: str) -> bytes:
    """Length-prefixed UTF-8."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def encode_field(key: str, type_id: int, value: Any) -> bytes:
    """A key-value record of a scalar or string."""
    head = encode_text(key) + struct.pack("<I", type_id)
    if type_id == STRING:
        return head + encode_text(value)
    return head + np.asarray(value, dtype=SCALARS[type_id]).tobytes()


def encode_array(key: str, element_type_id: int, values: Sequence[Any] | bytes) -> bytes:
    """A key-value record of an array; bytes stand for an array of `UINT8`."""
    head = encode_text(key) + struct.pack("<IIQ", ARRAY, element_type_id, len(values))
    if isinstance(values, bytes):
        return head + values
    if element_type_id == STRING:
        return head + b"".join(encode_text(str(v)) for v in values)
    return head + np.asarray(values, dtype=SCALARS[element_type_id]).tobytes()


def lay_out(
    tensors: Iterable[tuple[str, tuple[int, ...], int]], alignment_bytes: int
) -> tuple[tuple[Tensor, ...], int]:
    """Give (name, shape, type) their offsets in this order; also the padded size of all data, bytes."""
    placed, offset = [], 0
    for name, shape, type_id in tensors:
        placed.append(Tensor(name, shape, type_id, offset))
        offset = pad(offset + placed[-1].n_bytes, alignment_bytes)
    return tuple(placed), offset


def encode_header(records: Sequence[bytes], tensors: Sequence[Tensor], alignment_bytes: int) -> bytes:
    """Everything before the tensor data, padding included."""
    infos = (
        encode_text(t.name) + struct.pack(f"<I{len(t.shape)}qIQ", len(t.shape), *t.shape, t.type_id, t.offset)
        for t in tensors
    )
    head = MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(records)) + b"".join([*records, *infos])
    return head.ljust(pad(len(head), alignment_bytes), b"\0")
