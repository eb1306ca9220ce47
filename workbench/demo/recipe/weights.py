"""Move weights between machines in small parts: two int8 levels per block of 32, about 16 bits in all.

The first level alone is Q8_0; the second quantises what the first left over. Vectors and routers stay float32.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

BLOCK = 32
PART_BYTES = 14 * 2**20


def _level(rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scale = (rest.abs().amax(1, keepdim=True) / 127).half()
    scale = torch.where(scale == 0, torch.full_like(scale, 6e-8), scale)
    codes = (rest / scale.float()).round().clamp(-127, 127)
    return scale, codes.to(torch.int8), rest - codes * scale.float()


def save_levels(model: nn.Module, folder: Path) -> None:
    """Write `level1.*.bin`, `level2.*.bin` in parts of at most 14 MiB, and `levels.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    streams: list[bytearray] = [bytearray(), bytearray()]
    index = []
    for name, p in model.named_parameters():
        w = p.detach().float().cpu()
        plain = w.dim() < 2 or "router" in name or w.shape[-1] % BLOCK != 0
        index.append({"name": name, "shape": list(w.shape), "plain": plain})
        if plain:
            streams[0] += w.numpy().tobytes()
            continue
        rest = w.reshape(-1, BLOCK)
        for stream in streams:
            scale, codes, rest = _level(rest)
            stream += scale.numpy().tobytes() + codes.numpy().tobytes()
    for level, stream in enumerate(streams, 1):
        for part, at in enumerate(range(0, len(stream), PART_BYTES)):
            (folder / f"level{level}.{part:02d}.bin").write_bytes(stream[at : at + PART_BYTES])
    (folder / "levels.json").write_text(json.dumps(index))


def load_levels(folder: Path) -> dict[str, np.ndarray]:
    """Return float32 weights from the parts of all levels that are there (the first alone is Q8_0)."""
    index = json.loads(next(folder.glob("**/levels.json")).read_text())
    weights: dict[str, np.ndarray] = {}
    n_levels = 2 if any(folder.glob("**/level2.*.bin")) else 1
    for level in range(1, n_levels + 1):
        data = b"".join(p.read_bytes() for p in sorted(folder.glob(f"**/level{level}.*.bin"), key=lambda p: p.name))
        at = 0
        for entry in index:
            n = int(np.prod(entry["shape"]))
            if entry["plain"]:
                if level == 1:
                    weights[entry["name"]] = np.frombuffer(data, np.float32, n, at).reshape(entry["shape"]).copy()
                    at += 4 * n
                continue
            scale = np.frombuffer(data, np.float16, n // BLOCK, at).astype(np.float32)[:, None]
            codes = np.frombuffer(data, np.int8, n, at + n // BLOCK * 2).reshape(-1, BLOCK)
            at += n // BLOCK * 2 + n
            part = (codes * scale).reshape(entry["shape"])
            weights[entry["name"]] = part if level == 1 else weights[entry["name"]] + part
        if at != len(data):
            raise ValueError(f"level {level} has {len(data)} bytes, its index describes {at}")
    return weights


def load_into(model: nn.Module, weights: dict[str, np.ndarray]) -> None:
    """Copy weights into a model; every parameter must be there."""
    model.load_state_dict({name: torch.from_numpy(w) for name, w in weights.items()}, strict=True)
