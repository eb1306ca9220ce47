"""Small GGUFs of random bytes, whole and split, for tests that never compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workbench.storage.gguf_file import open_gguf
from workbench.storage.gguf_header import STRING, UINT32, encode_field, encode_header, lay_out
from workbench.storage.layout import ExpertLayout

F32, Q8_0 = 0, 8


def write_gguf(
    path: Path,
    tensors: list[tuple[str, tuple[int, ...], int]],
    *,
    extra: list[bytes] | None = None,
    arch: str = "qwen3moe",
    seed: int = 0,
) -> Path:
    """A GGUF of random bytes with these tensors."""
    placed, data_bytes = lay_out(tensors, 32)
    data = bytearray(data_bytes)
    rng = np.random.default_rng(seed)
    for t in placed:
        data[t.offset : t.offset + t.n_bytes] = rng.bytes(t.n_bytes)
    records = [
        encode_field("general.architecture", STRING, arch),
        encode_field(f"{arch}.block_count", UINT32, 2),
        encode_field(f"{arch}.expert_count", UINT32, 3),
        encode_field(f"{arch}.expert_used_count", UINT32, 2),
        *(extra or []),
    ]
    path.write_bytes(encode_header(records, placed, 32) + bytes(data))
    return path


def odd_tensors() -> list[tuple[str, tuple[int, ...], int]]:
    """Two layers whose expert bytes no alignment divides: separate (down first, as quantizers write) and fused."""
    return [
        ("token_embd.weight", (32, 5), Q8_0),
        ("blk.0.ffn_down_exps.weight", (32, 7, 3), Q8_0),
        ("blk.0.ffn_gate_exps.weight", (32, 3, 3), Q8_0),
        ("blk.0.ffn_gate_inp.weight", (7, 3), F32),
        ("blk.0.ffn_norm.weight", (7,), F32),
        ("blk.0.ffn_up_exps.weight", (32, 3, 3), Q8_0),
        ("blk.0.ffn_up_exps.bias", (3, 3), F32),
        ("blk.1.ffn_gate_up_exps.weight", (32, 6, 3), Q8_0),
        ("blk.1.ffn_down_exps.weight", (32, 7, 3), F32),
        ("output_norm.weight", (7,), F32),
    ]


def split(source: Path, folder: Path, count: int) -> list[Path]:
    """Write `source` as `count` shards, as gguf-split does."""
    (shard,) = open_gguf(source).shards
    data = source.read_bytes()[shard.header.data_start :]
    records = [f.record for f in shard.header.fields.values()]
    groups = np.array_split(np.arange(len(shard.header.tensors)), count)
    paths = []
    for no, group in enumerate(groups):
        tensors = [shard.header.tensors[i] for i in group]
        placed, data_bytes = lay_out([(t.name, t.shape, t.type_id) for t in tensors], 32)
        body = bytearray(data_bytes)
        for old, new in zip(tensors, placed, strict=True):
            body[new.offset : new.offset + new.n_bytes] = data[old.offset : old.offset + old.n_bytes]
        keys = [
            encode_field("split.no", 2, no),
            encode_field("split.count", 2, count),
            encode_field("split.tensors.count", 5, len(shard.header.tensors)),
        ]
        paths.append(folder / f"{source.stem}-{no + 1:05d}-of-{count:05d}.gguf")
        paths[-1].write_bytes(encode_header((records if no == 0 else []) + keys, placed, 32) + bytes(body))
    return paths


def expert_bytes(layout: ExpertLayout) -> dict[tuple[int, str, int], bytes]:
    """(layer, kind, expert) → bytes, read from where the layout says."""
    found = {}
    for layer in layout.layers:
        for tensor in layer.tensors:
            data = tensor.file.read_bytes()
            for expert in range(layer.n_expert):
                start = tensor.expert_offset(expert)
                found[layer.layer, tensor.kind, expert] = data[start : start + tensor.expert_bytes]
    return found
