"""Random quantized blocks, drawn directly: no float weights are made and quantized.

Every drawer fills whole blocks so that the dequantized weights have mean about 0 and a given standard deviation. A
tensor's super-scale is constant, quants and sub-scales are random: the bytes hardly compress and every kernel does its
normal work.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from workbench.storage.gguf_header import BLOCKS, TYPE_NAMES

TYPE_IDS = {name.lower(): type_id for type_id, name in TYPE_NAMES.items()}


def _random_blocks(rng: np.random.Generator, n_blocks: int, block_bytes: int) -> np.ndarray:
    words = rng.integers(0, 1 << 64, size=-(-n_blocks * block_bytes // 8), dtype=np.uint64)
    return words.view(np.uint8)[: n_blocks * block_bytes].reshape(n_blocks, block_bytes)


def _half(value: float) -> np.ndarray:
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def _f32(rng: np.random.Generator, n_blocks: int, std: float) -> np.ndarray:
    return rng.standard_normal(n_blocks, dtype=np.float32) * np.float32(std)


def _f16(rng: np.random.Generator, n_blocks: int, std: float) -> np.ndarray:
    return _f32(rng, n_blocks, std).astype(np.float16)


def _q8_0(rng: np.random.Generator, n_blocks: int, std: float) -> np.ndarray:
    blocks = _random_blocks(rng, n_blocks, 34)
    blocks[:, 0:2] = _half(std / 73.9)  # d; weight = d * q, q uniform in -128..127
    return blocks


def _q3_k(rng: np.random.Generator, n_blocks: int, std: float) -> np.ndarray:
    blocks = _random_blocks(rng, n_blocks, 110)
    blocks[:, 108:110] = _half(std / 43.3)  # d; weight = d * (sc - 32) * q, sc in 0..63, q in -4..3
    return blocks


def _q4_k(rng: np.random.Generator, n_blocks: int, std: float) -> np.ndarray:
    blocks = _random_blocks(rng, n_blocks, 144)
    d = std / 168.3  # weight = d * sc * q - dmin * m, sc and m in 0..63, q in 0..15
    blocks[:, 0:2], blocks[:, 2:4] = _half(d), _half(7.5 * d)
    # The 12 scale bytes below make m = sc in every run of 32 weights, so that each has mean 0: a run's own mean would
    # correlate neighbouring weights, and embeddings with them.
    blocks[:, 8:12] = blocks[:, 4:8]
    low = blocks[:, 12:16] & 15
    blocks[:, 12:16] = low | (low << 4)
    return blocks


def _q6_k(rng: np.random.Generator, n_blocks: int, std: float) -> np.ndarray:
    blocks = _random_blocks(rng, n_blocks, 210)
    blocks[:, 208:210] = _half(std / 1365.0)  # d; weight = d * sc * q, sc in -128..127, q in -32..31
    return blocks


def _mxfp4(rng: np.random.Generator, n_blocks: int, std: float) -> np.ndarray:
    blocks = _random_blocks(rng, n_blocks, 17)
    blocks[:, 0] = round(np.log2(std / 5.85)) + 128  # e; weight = 2^(e - 128) * {0, 1, 2, 3, 4, 6, 8, 12, negated}
    return blocks


_DRAWERS: dict[str, Callable[[np.random.Generator, int, float], np.ndarray]] = {
    "f32": _f32,
    "f16": _f16,
    "q8_0": _q8_0,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q6_k": _q6_k,
    "mxfp4": _mxfp4,
}
DRAWABLE = tuple(_DRAWERS)
"""Types that can be drawn."""


def draw(rng: np.random.Generator, type_name: str, n_elements: int, std: float) -> bytes:
    """`n_elements` weights (a multiple of the block) of standard deviation `std`, as the file stores them."""
    return _DRAWERS[type_name](rng, n_elements // BLOCKS[TYPE_IDS[type_name]][0], std).tobytes()
