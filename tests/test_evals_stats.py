"""Statistics against scipy and worked examples."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats as sp

from workbench.evals.distribution import (
    ClusterBootstrap,
    KlDivergence,
    PerplexityRatio,
    RmsDeltaP,
    TopAgreement,
    log_softmax,
    position_table,
)
from workbench.evals.stats import (
    BeatsChance,
    Flips,
    Holm,
    McNemarExact,
    MinimumDetectableEffect,
    NonInferiority,
    PairedDifference,
    ZeroMismatchBound,
    binomial_tail,
)


def pairs(lost: int, won: int, n: int) -> pd.DataFrame:
    reference = [1] * lost + [0] * won + [1] * (n - lost - won)
    candidate = [0] * lost + [1] * won + [1] * (n - lost - won)
    return pd.DataFrame({"reference": reference, "candidate": candidate})


WORKED = pairs(12, 9, 1000)
"""12 lost, 9 won of 1000: McNemar finds nothing (p = 0.66), yet a loss of one point is not excluded (p = 0.063)."""


class TestFlips:
    def test_worked_example(self) -> None:
        flips = Flips()(WORKED)
        assert (flips.lost, flips.won, flips.rate) == (12, 9, 0.021)

    def test_a_table_without_pairs_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="lacks the column candidate"):
            Flips()(pd.DataFrame({"reference": [1]}))
        with pytest.raises(ValueError, match="empty"):
            Flips()(pairs(0, 0, 0))


class TestMcNemar:
    def test_worked_example(self) -> None:
        assert McNemarExact()(WORKED).p == pytest.approx(0.66, abs=0.005)

    @pytest.mark.parametrize(("lost", "won"), [(0, 0), (1, 0), (5, 5), (12, 9), (40, 11), (400, 320)])
    def test_against_scipy(self, lost: int, won: int) -> None:
        wanted = sp.binomtest(lost, lost + won, 0.5).pvalue if lost + won else 1.0
        assert McNemarExact()(pairs(lost, won, 1000)).p == pytest.approx(wanted, rel=1e-9)

    def test_binomial_tail_against_scipy(self) -> None:
        for k, n, p in ((0, 10, 0.25), (3, 10, 0.25), (120, 500, 0.25), (500, 500, 0.9), (10, 5000, 0.01)):
            assert binomial_tail(k, n, p) == pytest.approx(sp.binom.cdf(k, n, p), rel=1e-9)


class TestPairedDifference:
    def test_worked_example(self) -> None:
        found = PairedDifference()(WORKED)
        assert found.difference == pytest.approx(-0.003)
        assert found.se == pytest.approx(math.sqrt(21 - 9 / 1000) / 1000)
        assert found.high - found.difference == pytest.approx(1.959964 * found.se, rel=1e-6)

    def test_alone_in_its_cluster_is_no_cluster(self) -> None:
        assert PairedDifference()(WORKED.assign(cluster=range(1000))) == PairedDifference()(WORKED)

    def test_clustered_error_against_a_regression_on_a_constant(self) -> None:
        """Sandwich estimator with clusters (CR0) written out: bread 1/n, meat from sums of residuals per cluster."""
        rng = np.random.default_rng(1)
        cluster = np.repeat(np.arange(60), 5)
        table = pd.DataFrame({"reference": rng.integers(0, 2, 300), "cluster": cluster})
        table["candidate"] = np.where(rng.random(60)[cluster] < 0.2, 1 - table["reference"], table["reference"])
        y = (table["candidate"] - table["reference"]).to_numpy(float)
        x, bread = np.ones((300, 1)), 1 / 300
        residual = y - y.mean()
        scores = np.stack([x[cluster == g].T @ residual[cluster == g] for g in range(60)])
        wanted = math.sqrt(bread * float((scores.T @ scores)[0, 0]) * bread)
        found = PairedDifference()(table)
        assert found.se == pytest.approx(wanted)
        assert found.clusters == 60
        assert found.se > PairedDifference()(table.drop(columns="cluster")).se

    def test_interval_covers(self) -> None:
        rng, hits = np.random.default_rng(2), 0
        for _ in range(300):
            u = rng.random(400)
            table = pd.DataFrame(
                {"reference": (u < 0.7).astype(int), "candidate": ((u > 0.05) & (u < 0.72)).astype(int)}
            )
            found = PairedDifference()(table)
            hits += found.low <= -0.03 <= found.high
        assert 0.91 < hits / 300 < 0.985


class TestNonInferiority:
    def test_worked_example_fails_the_margin(self) -> None:
        found = NonInferiority(margin=0.01)(WORKED)
        assert found.p == pytest.approx(0.063, abs=0.0005)
        assert found.p == pytest.approx(sp.norm.sf(found.statistic))

    def test_no_flips_is_not_certainty(self) -> None:
        assert NonInferiority(margin=0.01)(pairs(0, 0, 100)).p == pytest.approx(0.99**100)
        assert NonInferiority(margin=0.01)(pairs(0, 0, 300)).p < 0.05

    def test_a_constant_loss_fails(self) -> None:
        assert NonInferiority(margin=0.01)(pairs(50, 0, 50)).p == 1.0


class TestMinimumDetectableEffect:
    def test_formula(self) -> None:
        se = PairedDifference()(WORKED).se
        assert MinimumDetectableEffect()(WORKED) == pytest.approx((sp.norm.ppf(0.95) + sp.norm.ppf(0.8)) * se)

    def test_the_effect_is_found_as_often_as_promised(self) -> None:
        """Simulated: at exactly the margin's worth of items, non-inferiority is shown in about 80 % of draws."""
        rng, rate, margin = np.random.default_rng(3), 0.02, 0.02
        n = MinimumDetectableEffect().items_needed(pairs(10, 10, 1000), margin)
        shown = 0
        for _ in range(400):
            lost, won = rng.multinomial(n, [rate / 2, rate / 2, 1 - rate])[:2]
            shown += NonInferiority(margin=margin)(pairs(int(lost), int(won), n)).p < 0.05
        assert 0.72 < shown / 400 < 0.9


class TestHolm:
    def test_worked_example(self) -> None:
        table = Holm()(pd.DataFrame({"p": [0.01, 0.04, 0.03, 0.005]}))
        assert table["p_holm"].tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])  # Holm 1979, as in R's p.adjust

    def test_one_test_is_unchanged(self) -> None:
        assert Holm()(pd.DataFrame({"p": [0.2]}))["p_holm"].tolist() == [0.2]


class TestBeatsChance:
    @pytest.mark.parametrize("correct", [0, 125, 150, 160, 500])
    def test_against_scipy(self, correct: int) -> None:
        table = pd.DataFrame({"reference": [1] * correct + [0] * (500 - correct), "chance": 0.25})
        found = BeatsChance()(table)
        assert found.p == pytest.approx(sp.binom.sf(correct - 1, 500, 0.25), abs=1e-9)
        assert found.beats == (correct >= 150)

    def test_open_answers_have_no_chance(self) -> None:
        assert BeatsChance()(pd.DataFrame({"reference": [0, 1], "chance": 0.0})).beats


def test_rule_of_three() -> None:
    assert ZeroMismatchBound()(100) == pytest.approx(0.03, abs=0.001)
    assert ZeroMismatchBound()(0) == 1.0


class TestDistributions:
    rng = np.random.default_rng(5)
    p = rng.normal(size=(40, 50)).astype(np.float32) * 3
    q = p + rng.normal(size=(40, 50)).astype(np.float32) * 0.3
    targets = rng.integers(0, 50, 40)
    table = position_table(p, q, targets, np.repeat(np.arange(8), 5), chunk_logits=300)

    def test_positions_against_scipy(self) -> None:
        a, b = (sp_softmax(x.astype(float)) for x in (self.p, self.q))
        assert self.table["kl"].to_numpy() == pytest.approx(sp.entropy(a, b, axis=1), rel=1e-6)
        at = np.arange(40), self.targets
        assert self.table["delta_p"].to_numpy() == pytest.approx(b[at] - a[at])
        assert self.table["nll_candidate"].to_numpy() == pytest.approx(-np.log(b[at]))

    def test_log_softmax_survives_large_logits(self) -> None:
        assert np.isfinite(log_softmax(np.array([[1e4, -1e4, 0]], np.float32))).all()

    def test_statistics(self) -> None:
        kl = KlDivergence()(self.table)
        assert kl["mean"]["value"] == pytest.approx(self.table["kl"].mean())
        assert kl["p50"] <= kl["p95"] <= kl["p99"] <= kl["p99.9"] <= kl["max"]
        assert TopAgreement()(self.table).value == (self.p.argmax(1) == self.q.argmax(1)).mean()
        assert RmsDeltaP()(self.table) == pytest.approx(math.sqrt((self.table["delta_p"] ** 2).mean()))
        change = self.table["nll_candidate"] - self.table["nll_reference"]
        assert PerplexityRatio()(self.table).value == pytest.approx(math.exp(change.mean()))

    def test_the_bootstrap_repeats_itself_and_needs_two_texts(self) -> None:
        assert ClusterBootstrap()(self.table, "kl") == ClusterBootstrap()(self.table, "kl")
        assert ClusterBootstrap()(self.table.assign(cluster=0), "kl").low is None

    def test_bootstrap_interval_against_theory(self) -> None:
        rng = np.random.default_rng(6)
        table = pd.DataFrame({"kl": rng.normal(5, 1, 2000), "cluster": np.arange(2000)})
        found = ClusterBootstrap()(table, "kl")
        assert found.low is not None
        assert found.high is not None
        assert (found.high - found.low) / 2 == pytest.approx(1.96 / math.sqrt(2000), rel=0.1)

    def test_shapes_must_agree(self) -> None:
        with pytest.raises(ValueError, match="shapes differ"):
            position_table(self.p, self.q[:3], self.targets, self.targets)


def sp_softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
