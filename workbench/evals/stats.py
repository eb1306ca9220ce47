"""Task statistics: each is a small frozen dataclass with its parameters, called on a table with one row per item.

Paired tables have the columns `reference` and `candidate` (0 or 1, or a score) and, where items share a document,
`cluster`. d = mean(candidate − reference): negative is a loss.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

_NORMAL = NormalDist()


class Values:
    """Results are JSON-ready through `to_dict`."""

    def to_dict(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)  # type: ignore[call-overload]


def _pair(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    missing = {"reference", "candidate"} - set(table.columns)
    if missing:
        raise ValueError(f"paired table lacks the column {', '.join(sorted(missing))}")
    if not len(table):
        raise ValueError("paired table is empty")
    return table["reference"].to_numpy(float), table["candidate"].to_numpy(float)


@dataclass(frozen=True)
class FlipCounts(Values):
    """`lost` = correct → wrong, `won` = wrong → correct; `rate` = (lost + won)/n."""

    n: int
    lost: int
    won: int
    rate: float


@dataclass(frozen=True, kw_only=True)
class Flips:
    """Items whose correctness changed (arXiv 2407.09141)."""

    def __call__(self, table: pd.DataFrame) -> FlipCounts:
        reference, candidate = _pair(table)
        lost = int(((reference == 1) & (candidate == 0)).sum())
        won = int(((reference == 0) & (candidate == 1)).sum())
        return FlipCounts(n=len(table), lost=lost, won=won, rate=(lost + won) / len(table))


@dataclass(frozen=True)
class TestResult(Values):
    """A test's statistic (None for exact tests) and p."""

    __test__ = False  # not a pytest class

    p: float
    statistic: float | None = None


def binomial_tail(k: int, n: int, share: float) -> float:
    """P(X ≤ k) for X ~ Binomial(n, share), summed exactly in logarithms."""
    if k >= n:
        return 1.0
    log_p, log_q = math.log(share), math.log1p(-share)
    terms = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * log_p + (n - i) * log_q
        for i in range(k + 1)
    ]
    top = max(terms)
    return min(1.0, math.exp(top) * math.fsum(math.exp(t - top) for t in terms))


@dataclass(frozen=True, kw_only=True)
class McNemarExact:
    """Two-sided exact McNemar test: lost ~ Binomial(lost + won, ½) when nothing changed."""

    def __call__(self, table: pd.DataFrame) -> TestResult:
        flips = Flips()(table)
        changed = flips.lost + flips.won
        if changed == 0:
            return TestResult(p=1.0)
        return TestResult(p=min(1.0, 2 * binomial_tail(min(flips.lost, flips.won), changed, 0.5)))


@dataclass(frozen=True)
class DifferenceEstimate(Values):
    """Paired difference with its standard error and two-sided interval; `clusters` of items that share a document."""

    difference: float
    se: float
    low: float
    high: float
    n: int
    clusters: int


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """d = (won − lost)/n with SE = √(won + lost − (won − lost)²/n)/n; clustered where items share a document.

    The clustered variance is Σ_g(Σ_i(d_i − d))²/n² (arXiv 2411.00640).

    Parameters
    ----------
    level : float
        Coverage of the interval.
    """

    level: float = 0.95

    def __call__(self, table: pd.DataFrame) -> DifferenceEstimate:
        reference, candidate = _pair(table)
        change = candidate - reference
        mean, n = float(change.mean()), len(change)
        residual = change - mean
        groups = table["cluster"].to_numpy() if "cluster" in table else np.arange(n)
        sums = pd.Series(residual).groupby(groups).sum().to_numpy()
        se = float(math.sqrt((sums**2).sum()) / n)
        half = _NORMAL.inv_cdf(0.5 + self.level / 2) * se
        return DifferenceEstimate(
            difference=mean, se=se, low=mean - half, high=mean + half, n=n, clusters=len(np.unique(groups))
        )


@dataclass(frozen=True, kw_only=True)
class NonInferiority:
    """Is the candidate worse by less than the margin? z = (d + δ)/SE, one-sided.

    Without a single flip SE is 0 and z says nothing; then p is the exact chance of seeing none among n clusters when
    a share δ of them flips, (1 − δ)ⁿ (the rule of three).

    Parameters
    ----------
    margin : float
        δ, as a share: 0.01 = one point of accuracy.
    """

    margin: float = 0.01

    def __call__(self, table: pd.DataFrame) -> TestResult:
        estimate = PairedDifference()(table)
        if estimate.se == 0:
            if estimate.difference + self.margin <= 0:
                return TestResult(p=1.0)
            return TestResult(p=(1 - self.margin) ** estimate.clusters)
        z = (estimate.difference + self.margin) / estimate.se
        return TestResult(p=1 - _NORMAL.cdf(z), statistic=z)


@dataclass(frozen=True, kw_only=True)
class MinimumDetectableEffect:
    """The loss that this many items would have shown with the given power, (z₁₋α + z_power)·SE.

    With no flips SE is taken from one flip, the smallest observable.
    """

    alpha: float = 0.05
    power: float = 0.8

    def __call__(self, table: pd.DataFrame) -> float:
        estimate = PairedDifference()(table)
        se = estimate.se or 1 / estimate.n
        return (_NORMAL.inv_cdf(1 - self.alpha) + _NORMAL.inv_cdf(self.power)) * se

    def items_needed(self, table: pd.DataFrame, margin: float) -> int:
        """Items needed to show non-inferiority at the margin with this power, at the observed rate of flips."""
        effect = self(table)
        return math.ceil(len(table) * (effect / margin) ** 2)


@dataclass(frozen=True, kw_only=True)
class Holm:
    """Holm's step-down adjustment of the column `p` of a table with one row per task; adds `p_holm`."""

    column: str = "p"

    def __call__(self, table: pd.DataFrame) -> pd.DataFrame:
        p = table[self.column].to_numpy(float)
        order = np.argsort(p, kind="stable")
        factors = len(p) - np.arange(len(p))
        adjusted = np.empty_like(p)
        adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * factors))
        return table.assign(**{f"{self.column}_holm": adjusted})


@dataclass(frozen=True)
class ChanceResult(Values):
    """Accuracy, chance, and the exact one-sided p of that accuracy at chance."""

    accuracy: float
    chance: float
    p: float
    beats: bool


@dataclass(frozen=True, kw_only=True)
class BeatsChance:
    """Does the reference beat chance? Exact binomial, one-sided, on the columns `reference` and `chance`.

    Items of unequal chance use the mean, which is conservative (their sum varies less).
    """

    alpha: float = 0.01

    def __call__(self, table: pd.DataFrame) -> ChanceResult:
        correct, n = int(table["reference"].sum()), len(table)
        chance = float(table["chance"].mean())
        if chance <= 0:
            return ChanceResult(accuracy=correct / n, chance=0.0, p=0.0 if correct else 1.0, beats=correct > 0)
        p = 1.0 if correct == 0 else 1 - binomial_tail(correct - 1, n, chance)
        return ChanceResult(accuracy=correct / n, chance=chance, p=p, beats=p < self.alpha)


@dataclass(frozen=True, kw_only=True)
class ZeroMismatchBound:
    """Upper bound of a rate after none in n was seen: 1 − α^(1/n), about 3/n at 95 %."""

    level: float = 0.95

    def __call__(self, n: int) -> float:
        return 1.0 if n < 1 else 1 - (1 - self.level) ** (1 / n)
