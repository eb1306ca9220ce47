"""De-duplication: hashes of normalised text and of its 13-grams of words."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

import numpy as np

N_GRAM = 13
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def words(text: str) -> list[str]:
    """Return the lower-case words and numbers of a text, without punctuation."""
    return re.findall(r"[a-z0-9]+", text.lower())


def ngram_hashes(text: str, n: int = N_GRAM) -> np.ndarray:
    """Return one uint64 per n-gram of words; a shorter text gives one hash of the whole."""
    ids = np.array([zlib.crc32(w.encode()) for w in words(text)], np.uint64)
    if len(ids) == 0:
        return np.zeros(0, np.uint64)
    n = min(n, len(ids))
    total = np.zeros(len(ids) - n + 1, np.uint64)
    with np.errstate(over="ignore"):
        for i in range(n):
            total = (total + ids[i : len(ids) - n + 1 + i] + np.uint64(1)) * _MULTIPLIER
            total ^= total >> np.uint64(29)
    return total


def hash_set(texts: Iterable[str], n: int = N_GRAM) -> np.ndarray:
    """Return the sorted distinct n-gram hashes of many texts."""
    parts = [ngram_hashes(text, n) for text in texts]
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.uint64)


def hits(text: str, known: np.ndarray, n: int = N_GRAM) -> np.ndarray:
    """Return those n-gram hashes of a text that are in the sorted array `known`."""
    if len(known) == 0:
        return known
    mine = ngram_hashes(text, n)
    at = np.minimum(np.searchsorted(known, mine), len(known) - 1)
    return mine[known[at] == mine]
