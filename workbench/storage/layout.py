"""Where every expert's bytes lie in a model's file: `expert_layout(path)`.

*native*: a layer's gate, up and down tensors each hold all experts one after the other, so one expert is a read per
tensor. *contiguous* (written by `pack`): one expert's gate, up and down are adjacent, so one expert is one read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from workbench.errors import ModelFileError
from workbench.storage.gguf_file import PACKED_PREFIX, GgufFile, Shard, open_gguf
from workbench.storage.gguf_header import Tensor

KINDS = ("gate", "gate_up", "up", "down")
"""The kinds of expert tensor, in the order they have inside an expert."""

PACKED_SCHEMA = 1
_EXPERT_NAME = re.compile(r"^blk\.(?P<layer>[0-9]{1,6})\.ffn_(?P<kind>gate|up|down|gate_up)_exps\.weight\Z")


@dataclass(frozen=True)
class Placement:
    """Where a tensor's bytes lie: `n_pieces` pieces of `piece_bytes`, one every `stride_bytes` from `offset`.

    Offsets are absolute in the file. A tensor stored in one run is one piece.
    """

    offset: int
    piece_bytes: int
    stride_bytes: int
    n_pieces: int


@dataclass(frozen=True)
class ExpertTensor:
    """One of a layer's expert tensors. `shape` is in ggml's order, experts last."""

    kind: str
    name: str
    type: str
    shape: tuple[int, ...]
    expert_bytes: int
    file: Path
    offset: int
    stride_bytes: int

    def expert_offset(self, expert: int) -> int:
        """Absolute file offset of one expert's matrix."""
        return self.offset + expert * self.stride_bytes


@dataclass(frozen=True)
class MoeLayer:
    """One layer's routed experts."""

    layer: int
    n_expert: int
    layout: str
    tensors: tuple[ExpertTensor, ...]

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert, all its tensors."""
        return sum(t.expert_bytes for t in self.tensors)

    @property
    def reads_per_expert(self) -> int:
        return 1 if self.layout == "contiguous" else len(self.tensors)


@dataclass(frozen=True)
class ExpertLayout:
    """Where every expert of a model lies. `arch` is the model's own, without the `les-` of a packed file."""

    path: Path
    arch: str
    layout: str
    n_layer: int
    n_expert: int
    n_expert_used: int
    layers: tuple[MoeLayer, ...]

    @cached_property
    def expert_bytes_total(self) -> int:
        """Bytes of all experts of all layers."""
        return sum(layer.n_expert * layer.expert_bytes for layer in self.layers)

    @property
    def expert_bytes_per_token(self) -> int:
        """Bytes of the experts one token selects, over all layers."""
        return sum(min(self.n_expert_used, layer.n_expert) * layer.expert_bytes for layer in self.layers)


def expert_layout(source: str | Path | GgufFile) -> ExpertLayout:
    """Find a model's experts.

    Raises
    ------
    ModelFileError
        When the file is damaged, has no experts, or its expert tensors do not fit together.
    """
    model = source if isinstance(source, GgufFile) else open_gguf(source)
    groups = expert_groups(model)
    placements = placements_of(model, groups)
    layout = "contiguous" if model.packed else "native"
    layers = []
    for layer, members in groups.items():
        tensors = tuple(_expert_tensor(kind, shard, t, placements[t.name]) for kind, (shard, t) in members.items())
        layers.append(MoeLayer(layer, tensors[0].shape[-1], layout, tensors))
    n_expert = max(layer.n_expert for layer in layers)
    return ExpertLayout(
        path=model.path,
        arch=model.architecture.removeprefix(PACKED_PREFIX),
        layout=layout,
        n_layer=_count(model, "block_count", max(groups) + 1),
        n_expert=_count(model, "expert_count", n_expert),
        n_expert_used=_count(model, "expert_used_count", 0),
        layers=tuple(layers),
    )


def _expert_tensor(kind: str, shard: Shard, tensor: Tensor, place: Placement) -> ExpertTensor:
    return ExpertTensor(
        kind=kind,
        name=tensor.name,
        type=tensor.type_name,
        shape=tensor.shape,
        expert_bytes=tensor.n_bytes // tensor.shape[-1],
        file=shard.path,
        offset=place.offset,
        stride_bytes=place.stride_bytes if place.n_pieces > 1 else tensor.n_bytes // tensor.shape[-1],
    )


def _count(model: GgufFile, key: str, default: int) -> int:
    """A count that some architectures store as one number per layer: the largest then."""
    value = model.get_arch(key, default)
    values = value if isinstance(value, list) else [value]
    return max((v for v in values if isinstance(v, int)), default=default)


def expert_groups(model: GgufFile) -> dict[int, dict[str, tuple[Shard, Tensor]]]:
    """Layer → kind → tensor, layers ascending and kinds in `KINDS` order, checked to fit together."""
    found: dict[int, dict[str, tuple[Shard, Tensor]]] = {}
    for shard, tensor in model.tensors():
        match = _EXPERT_NAME.match(tensor.name)
        if match is None:
            continue
        if len(tensor.shape) != 3 or 0 in tensor.shape:
            raise ModelFileError(f"{shard.path}: expert tensor {tensor.name!r} has the shape {tensor.shape}, not 3D")
        found.setdefault(int(match["layer"]), {})[match["kind"]] = (shard, tensor)
    if not found:
        raise ModelFileError(f"{model.path}: no experts: {model.architecture} model without blk.N.ffn_*_exps.weight")
    groups = {}
    for layer in sorted(found):
        groups[layer] = {kind: found[layer][kind] for kind in KINDS if kind in found[layer]}
        if len({tensor.shape[-1] for _, tensor in groups[layer].values()}) != 1:
            raise ModelFileError(f"{model.path}: the expert tensors of layer {layer} hold different numbers of experts")
    return groups


def placements_of(
    model: GgufFile, groups: dict[int, dict[str, tuple[Shard, Tensor]]] | None = None
) -> dict[str, Placement]:
    """Where every tensor's bytes lie, by name; a packed file's expert tensors interleave.

    Raises
    ------
    ModelFileError
        When a packed file is not one this version can read.
    """
    places = {}
    for shard, tensor in model.tensors():
        places[tensor.name] = Placement(shard.header.data_start + tensor.offset, tensor.n_bytes, tensor.n_bytes, 1)
    if not model.packed:
        return places
    if model.get("les.layout") != "contiguous" or model.get("les.schema") != PACKED_SCHEMA:
        raise ModelFileError(
            f"{model.path}: packed with layout {model.get('les.layout')!r}, schema {model.get('les.schema')!r}; "
            f"this version reads 'contiguous', {PACKED_SCHEMA}: pack it again"
        )
    order = [tensor.name for _, tensor in model.tensors()]
    for layer, members in (groups or expert_groups(model)).items():
        tensors = [tensor for _, tensor in members.values()]
        first = order.index(tensors[0].name)
        if order[first : first + len(tensors)] != [t.name for t in tensors]:
            raise ModelFileError(f"{model.path}: damaged: the expert tensors of layer {layer} are not adjacent")
        places.update(interleave(tensors, places[tensors[0].name].offset))
    return places


def interleave(tensors: list[Tensor], region_offset: int) -> dict[str, Placement]:
    """Placements of a layer's expert tensors in a region where every expert is contiguous."""
    n_expert = tensors[0].shape[-1]
    piece_bytes = [t.n_bytes // n_expert for t in tensors]
    stride_bytes, at, places = sum(piece_bytes), region_offset, {}
    for tensor, n_bytes in zip(tensors, piece_bytes, strict=True):
        places[tensor.name] = Placement(at, n_bytes, stride_bytes, n_expert)
        at += n_bytes
    return places
