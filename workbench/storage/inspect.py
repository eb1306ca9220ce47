"""What a model file holds, layer by layer: `inspect(path)`; in a few numbers: `summarize(path)`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.storage.gguf_file import GgufFile, open_gguf
from workbench.storage.layout import MoeLayer, expert_layout

PAGE_BYTES = 4096


@dataclass(frozen=True)
class ModelSummary:
    """A model file in a few numbers. `*_per_token`: for a token whose experts are all read from the file."""

    path: str
    name: str
    arch: str
    layout: str
    synthetic: bool
    n_shards: int
    n_layer: int
    n_moe_layer: int
    n_expert: int
    n_expert_used: int
    file_bytes: int
    all_experts_bytes: int
    dense_bytes: int
    expert_bytes_per_token: int
    reads_per_token: int


def summarize(source: str | Path | GgufFile) -> ModelSummary:
    """Shape, layout and sizes of a model; ModelFileError if it is damaged or has no experts."""
    model = source if isinstance(source, GgufFile) else open_gguf(source)
    layout = expert_layout(model)
    weight_bytes = sum(tensor.n_bytes for _, tensor in model.tensors())
    return ModelSummary(
        path=str(layout.path),
        name=str(model.get("general.name", "")),
        arch=layout.arch,
        layout=layout.layout,
        synthetic=model.get("les.synthetic") is True,
        n_shards=len(model.shards),
        n_layer=layout.n_layer,
        n_moe_layer=len(layout.layers),
        n_expert=layout.n_expert,
        n_expert_used=layout.n_expert_used,
        file_bytes=model.size_bytes,
        all_experts_bytes=layout.expert_bytes_total,
        dense_bytes=weight_bytes - layout.expert_bytes_total,
        expert_bytes_per_token=layout.expert_bytes_per_token,
        reads_per_token=sum(min(layout.n_expert_used, x.n_expert) * x.reads_per_expert for x in layout.layers),
    )


def inspect(source: str | Path | GgufFile) -> pd.DataFrame:
    """One row per MoE layer.

    Returns
    -------
    DataFrame
        layer; n_expert; tensors (kinds, in the order of an expert's bytes); types (each once, in that order);
        expert_bytes (one expert, all tensors); layer_bytes (all experts); layout; reads_per_expert; stride_grid_bytes
        (the largest power of two, up to a page, that divides the distance between experts: direct reads want at
        least 512).

    Raises
    ------
    ModelFileError
        When the file is damaged or has no experts.
    """
    return pd.DataFrame([_row(layer) for layer in expert_layout(source).layers])


def layout_record(model: GgufFile) -> dict[str, Any]:
    """The first MoE layer's byte layout as a document (`kind: layout`): offsets in the file, sizes, strides."""
    layer = expert_layout(model).layers[0]
    return {
        "schema": 1,
        "kind": "layout",
        "summary": asdict(summarize(model)) | {"path": model.path.name},
        "layer": layer.layer,
        "n_expert": layer.n_expert,
        "reads_per_expert": layer.reads_per_expert,
        "tensors": [
            {
                "kind": t.kind,
                "type": t.type,
                "offset": t.offset,
                "expert_bytes": t.expert_bytes,
                "stride_bytes": t.stride_bytes,
            }
            for t in layer.tensors
        ],
    }


def _row(layer: MoeLayer) -> dict[str, object]:
    return {
        "layer": layer.layer,
        "n_expert": layer.n_expert,
        "tensors": "+".join(t.kind for t in layer.tensors),
        "types": "+".join(dict.fromkeys(t.type for t in layer.tensors)),
        "expert_bytes": layer.expert_bytes,
        "layer_bytes": layer.n_expert * layer.expert_bytes,
        "layout": layer.layout,
        "reads_per_expert": layer.reads_per_expert,
        "stride_grid_bytes": math.gcd(PAGE_BYTES, *(t.stride_bytes for t in layer.tensors)),
    }
