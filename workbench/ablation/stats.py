"""Medians and ratios of medians of interleaved repeats, with bootstrap intervals from a fixed seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with its interval (None where fewer than two repeats give no interval)."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, kw_only=True)
class MedianBootstrap:
    """Percentile bootstrap of a median over repeats.

    With few repeats the interval cannot be wider than the range of the samples: read it with `n`.

    Parameters
    ----------
    level : float
        Coverage of the interval.
    draws : int
        Resamples.
    seed : int
        Seed of the resampling; equal samples give equal intervals.
    """

    level: float = 0.95
    draws: int = 4000
    seed: int = 1

    def __call__(self, samples: Sequence[float]) -> Estimate:
        """Median of the samples."""
        values = np.asarray(samples, dtype=float)
        medians = np.median(values[self._resample(len(values))], axis=1)
        return self._estimate(float(np.median(values)), medians, len(values))

    def ratio(self, numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
        """Ratio of two medians whose samples are paired by repeat.

        Repeats are resampled as pairs: what both shared in one round of an interleaved schedule (a warm machine, a
        slow disk) stays shared.
        """
        a, b = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
        if len(a) != len(b):
            raise ValueError(f"paired samples needed, got {len(a)} and {len(b)}")
        picks = self._resample(len(a))
        ratios = np.median(a[picks], axis=1) / np.median(b[picks], axis=1)
        return self._estimate(float(np.median(a) / np.median(b)), ratios, len(a))

    def _resample(self, n: int) -> np.ndarray:
        return np.random.default_rng(self.seed).integers(0, n, size=(self.draws, n))

    def _estimate(self, value: float, draws: np.ndarray, n: int) -> Estimate:
        if n < 2:
            return Estimate(value=value, low=None, high=None, n=n)
        tail = 50.0 * (1.0 - self.level)
        low, high = np.percentile(draws, [tail, 100.0 - tail])
        return Estimate(value=value, low=float(low), high=float(high), n=n)
