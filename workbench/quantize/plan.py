"""What a quantized file will be, before anything is computed: types, fallbacks, header, sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.errors import ModelFileError
from workbench.quantize.imatrix import Imatrix
from workbench.quantize.library import quantize_types
from workbench.quantize.recipes import Recipe
from workbench.storage.gguf_file import GgufFile, Shard, open_gguf
from workbench.storage.gguf_header import (
    STRING,
    TYPE_NAMES,
    UINT32,
    Field,
    Header,
    Tensor,
    encode_field,
    encode_header,
    lay_out,
    pad,
    parse_header,
)

ALIGNMENT_BYTES = 32
QUANTIZATION_VERSION = 2
PRECISE = ("F32", "F16", "BF16", "Q8_0")
"""Types worth quantizing from; anything smaller has lost too much already."""

_LONGEST_VALUE = 127  # as llama.cpp's own tool writes them


@dataclass(frozen=True)
class Item:
    """A tensor on its way: where it comes from and what it becomes."""

    shard: Shard
    source: Tensor
    target: Tensor

    @property
    def changes(self) -> bool:
        return self.source.type_id != self.target.type_id


@dataclass(frozen=True)
class Fallback:
    """A tensor whose rows do not fit the blocks of the type chosen for it."""

    name: str
    width: int
    wanted: str
    given: str

    def __str__(self) -> str:
        return f"{self.name}: rows of {self.width} do not fit {self.wanted}, {self.given} instead"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A quantization, decided.

    Attributes
    ----------
    items : tuple of Item
        In the order of the new file, which is that of llama.cpp's quantizer.
    header : Header
        Of the new file.
    unmatched : tuple of str
        Patterns of the recipe that name no tensor.
    without_importance : tuple of str
        Expert tensors that become smaller than Q8_0 although the importance matrix does not know them.
    """

    source: GgufFile
    recipe: Recipe
    imatrix: Imatrix | None
    items: tuple[Item, ...]
    header: Header
    fallbacks: tuple[Fallback, ...]
    unmatched: tuple[str, ...]
    without_importance: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Of the new file, not packed."""
        return self.header.data_start + pad(self.header.data_bytes, ALIGNMENT_BYTES)

    def virtual_file(self, name: str) -> GgufFile:
        """The new file as if it lay on disk."""
        return GgufFile((Shard(Path(name), self.size_bytes, self.header),))

    def importance(self, item: Item) -> np.ndarray | None:
        """Weights of a tensor's columns, float32 [matrices, width], or None.

        Raises
        ------
        ModelFileError
            When the importance matrix was computed for a model of another shape.
        """
        if self.imatrix is None or not item.changes:
            return None
        values = self.imatrix.importance(item.source.name)
        if values is None:
            return None
        width, matrices = item.source.shape[0], int(np.prod(item.source.shape[2:3]))
        if values.size != width * matrices:
            raise ModelFileError(
                f"{self.imatrix.path}: {item.source.name}: {values.size} weights, this model's has {width * matrices}: "
                "it was computed for another model"
            )
        return values.reshape(matrices, width)


def make_plan(
    source: Path | str, recipe: Recipe, *, imatrix: Imatrix | None = None, allow_requantize: bool = False
) -> Plan:
    """Ask llama.cpp for the types and lay out the new file.

    Raises
    ------
    ModelFileError
        When the source is damaged, packed, unknown to llama.cpp, or quantized already (beyond Q8_0) and
        `allow_requantize` is not set.
    """
    model = open_gguf(source)
    if model.packed:
        raise ModelFileError(f"{model.path}: packed; quantize the original (`workbench unpack` restores it)")
    types, fallbacks = quantize_types(
        str(model.path), file_type=recipe.file_type, rules=recipe.rules, imatrix=imatrix is not None
    )
    found = sorted(model.tensors(), key=lambda pair: _order(pair[1].name))
    missing = [tensor.name for _, tensor in found if tensor.name not in types]
    if missing:
        raise ModelFileError(f"{model.path}: llama.cpp chose no type for {missing[0]} ({len(missing)} such tensors)")
    specs = [(tensor.name, _without_trailing_ones(tensor.shape), types[tensor.name]) for _, tensor in found]
    targets, _ = lay_out(specs, ALIGNMENT_BYTES)
    items = tuple(Item(shard, tensor, target) for (shard, tensor), target in zip(found, targets, strict=True))
    if not allow_requantize:
        _check_precise(model, items)
    widths = {tensor.name: tensor.shape[0] for _, tensor in found}
    return Plan(
        source=model,
        recipe=recipe,
        imatrix=imatrix,
        items=items,
        header=_header(model, recipe, imatrix, targets),
        fallbacks=tuple(Fallback(name, widths[name], wanted, given) for name, wanted, given in fallbacks),
        unmatched=tuple(p for p in recipe.types if not any(re.search(p, tensor.name) for _, tensor in found)),
        without_importance=tuple(
            item.source.name
            for item in items
            if imatrix is not None
            and "_exps." in item.source.name
            and item.changes
            and item.target.type_name not in PRECISE
            and item.source.name not in imatrix.sums
        ),
    )


def _order(name: str) -> tuple[int, bytes]:
    """Llama.cpp's order of tensors: by block, those outside blocks first, then by name."""
    match = re.match(r"blk\.(\d+)\.", name)
    return (int(match[1]) if match else -1, name.encode())


def _without_trailing_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _check_precise(model: GgufFile, items: tuple[Item, ...]) -> None:
    for item in items:
        if item.changes and item.source.type_name not in PRECISE:
            raise ModelFileError(
                f"{model.path}: {item.source.name} is {item.source.type_name} already; quantize from F16, BF16, F32 or "
                f"Q8_0 weights, or allow requantizing and lose quality twice (--requantize)"
            )


def _header(model: GgufFile, recipe: Recipe, imatrix: Imatrix | None, tensors: tuple[Tensor, ...]) -> Header:
    last = {"general.quantization_version": QUANTIZATION_VERSION, "general.file_type": recipe.file_type}
    fields = model.shards[0].header.fields
    records = [f.record for key, f in fields.items() if key not in last and not _replaced(f, imatrix)]
    records += [encode_field(key, UINT32, value) for key, value in last.items()]
    if imatrix is not None:
        file = imatrix.path.name if imatrix.path else ""
        records.append(encode_field("quantize.imatrix.file", STRING, file[:_LONGEST_VALUE]))
        if imatrix.datasets:
            records.append(encode_field("quantize.imatrix.dataset", STRING, imatrix.datasets[0][:_LONGEST_VALUE]))
        records.append(encode_field("quantize.imatrix.entries_count", UINT32, len(imatrix.sums)))
        records.append(encode_field("quantize.imatrix.chunks_count", UINT32, imatrix.chunk_count))
    raw = encode_header(records, tensors, ALIGNMENT_BYTES)
    size_bytes = len(raw) + pad(tensors[-1].offset + tensors[-1].n_bytes, ALIGNMENT_BYTES)
    return parse_header(lambda offset, n_bytes: raw[offset : offset + n_bytes], size_bytes, "the quantized file")


def _replaced(field: Field, imatrix: Imatrix | None) -> bool:
    if field.key.startswith("quantize.imatrix."):
        return imatrix is not None
    if field.key == "general.alignment":
        return bool(field.value != ALIGNMENT_BYTES)
    return field.key in ("split.no", "split.count", "split.tensors.count")


def quantizable(model: GgufFile) -> bool:
    """Whether all weights are of types worth quantizing from."""
    known = {*PRECISE, "I8", "I16", "I32", "I64", "F64"}
    return all(tensor.type_name in known for _, tensor in model.tensors())


def type_counts(items: tuple[Item, ...]) -> dict[str, int]:
    """Tensors per type of the new file, the most frequent first."""
    names = [TYPE_NAMES[item.target.type_id] for item in items]
    return {name: names.count(name) for name in sorted(set(names), key=lambda n: (-names.count(n), n))}
