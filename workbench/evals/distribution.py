"""Two models' next-token distributions, position by position, and the statistics over them.

Logits are float32; sums are taken in float64. The table has one row per position: `kl` (nats), `agree`,
`delta_p` (of the text's next token), `nll_reference`, `nll_candidate` and `cluster` (the text).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from workbench.evals.stats import Values

COLUMNS = ("kl", "agree", "delta_p", "nll_reference", "nll_candidate", "cluster")


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise log-probabilities, float64 [n, n_vocab]."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def position_table(
    reference: np.ndarray,
    candidate: np.ndarray,
    targets: np.ndarray,
    clusters: np.ndarray,
    *,
    chunk_logits: int = 1 << 22,
) -> pd.DataFrame:
    """Compare logits [n, n_vocab] of the same positions.

    Parameters
    ----------
    targets
        The text's next token at each position.
    clusters
        The text each position belongs to.
    """
    if reference.shape != candidate.shape or len(reference) != len(targets):
        raise ValueError(f"shapes differ: {reference.shape}, {candidate.shape}, {len(targets)} targets")
    step, frames = max(1, chunk_logits // max(1, reference.shape[1])), []
    for start in range(0, len(reference), step):
        rows = slice(start, start + step)
        p, q = log_softmax(np.asarray(reference[rows])), log_softmax(np.asarray(candidate[rows]))
        at = np.arange(len(p)), np.asarray(targets[rows])
        frames.append(
            pd.DataFrame(
                {
                    "kl": np.maximum(0.0, (np.exp(p) * (p - q)).sum(axis=1)),
                    "agree": p.argmax(axis=1) == q.argmax(axis=1),
                    "delta_p": np.exp(q[at]) - np.exp(p[at]),
                    "nll_reference": -p[at],
                    "nll_candidate": -q[at],
                    "cluster": clusters[rows],
                }
            )
        )
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(COLUMNS))


@dataclass(frozen=True)
class Interval(Values):
    """A value with its bootstrap interval over texts (None with fewer than two texts)."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class ClusterBootstrap:
    """Percentile bootstrap of a ratio of sums, resampling whole texts.

    Parameters
    ----------
    level, draws, seed
        Coverage, resamples, and the seed that makes equal tables give equal intervals.
    """

    level: float = 0.95
    draws: int = 2000
    seed: int = 1

    def __call__(self, table: pd.DataFrame, column: str) -> Interval:
        """Mean of a column."""
        sums = table.groupby("cluster")[column].agg(["sum", "count"]).to_numpy(float)
        value = float(sums[:, 0].sum() / sums[:, 1].sum())
        if len(sums) < 2:
            return Interval(value=value, low=None, high=None)
        picks = np.random.default_rng(self.seed).integers(0, len(sums), size=(self.draws, len(sums)))
        drawn = sums[picks].sum(axis=1)
        tail = 50.0 * (1 - self.level)
        low, high = np.percentile(drawn[:, 0] / drawn[:, 1], [tail, 100 - tail])
        return Interval(value=value, low=float(low), high=float(high))


@dataclass(frozen=True, kw_only=True)
class KlDivergence:
    """KL(reference ‖ candidate) in nats per position: mean with interval, and percentiles."""

    percentiles: tuple[float, ...] = (50, 95, 99, 99.9)
    bootstrap: ClusterBootstrap = ClusterBootstrap()

    def __call__(self, table: pd.DataFrame) -> dict[str, Any]:
        values = table["kl"].to_numpy()
        found = {f"p{p:g}": float(np.percentile(values, p)) for p in self.percentiles}
        return {"mean": self.bootstrap(table, "kl").to_dict(), **found, "max": float(values.max())}


@dataclass(frozen=True, kw_only=True)
class TopAgreement:
    """Share of positions where both have the same most likely token."""

    bootstrap: ClusterBootstrap = ClusterBootstrap()

    def __call__(self, table: pd.DataFrame) -> Interval:
        return self.bootstrap(table.assign(agree=table["agree"].astype(float)), "agree")


@dataclass(frozen=True, kw_only=True)
class RmsDeltaP:
    """Root mean square of the change of the next token's probability."""

    def __call__(self, table: pd.DataFrame) -> float:
        return float(np.sqrt(np.mean(np.square(table["delta_p"].to_numpy()))))


@dataclass(frozen=True, kw_only=True)
class PerplexityRatio:
    """exp(mean(nll candidate − nll reference)): above 1 is worse."""

    bootstrap: ClusterBootstrap = ClusterBootstrap()

    def __call__(self, table: pd.DataFrame) -> Interval:
        change = table.assign(change=table["nll_candidate"] - table["nll_reference"])
        found = self.bootstrap(change, "change")
        low, high = (None if v is None else float(np.exp(v)) for v in (found.low, found.high))
        return Interval(value=float(np.exp(found.value)), low=low, high=high)


def summarize(table: pd.DataFrame) -> dict[str, Any]:
    """All distribution statistics of a table, JSON-ready."""
    return {
        "positions": len(table),
        "texts": int(table["cluster"].nunique()),
        "kl": KlDivergence()(table),
        "top1_agreement": TopAgreement()(table).to_dict(),
        "rms_delta_p": RmsDeltaP()(table),
        "perplexity_reference": float(np.exp(table["nll_reference"].mean())),
        "perplexity_ratio": PerplexityRatio()(table).to_dict(),
    }
