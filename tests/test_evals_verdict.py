"""Verdicts: what is certified, what is refuted, and all that makes a level inconclusive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from workbench.evals.distribution import position_table
from workbench.evals.verdict import (
    INCONCLUSIVE,
    LOSSLESS,
    NOT_LOSSLESS,
    BitExactLevel,
    DistributionLevel,
    GreedyCase,
    GreedyLevel,
    TaskLevel,
)
from workbench.lossless import BIT_EXACT, DIFFERS, LogitsVerdict, not_checked

SAME = LogitsVerdict(verdict=BIT_EXACT, compared=100, positions=10, max_abs_diff=0.0)
OTHER = LogitsVerdict(verdict=DIFFERS, compared=100, positions=10, differing=7, max_abs_diff=0.5)


@pytest.mark.parametrize(
    ("logits", "control", "verdict", "reason"),
    [
        (SAME, SAME, LOSSLESS, "all 100 logits of 10 positions"),
        (OTHER, SAME, NOT_LOSSLESS, "7 of 100 logits differ, by up to 0.5"),
        (not_checked("too large"), SAME, INCONCLUSIVE, "too large"),
        (SAME, OTHER, INCONCLUSIVE, "does not repeat itself"),
        (OTHER, OTHER, INCONCLUSIVE, "does not repeat itself"),
    ],
)
def test_bit_exact(logits: LogitsVerdict, control: LogitsVerdict, verdict: str, reason: str) -> None:
    found = BitExactLevel()(logits, control)
    assert found.verdict == verdict
    assert reason in found.reason


def greedy(n: int, apart: Sequence[float] = ()) -> list[GreedyCase]:
    """`n` prompts; for every margin in `apart` one diverges at position 1."""
    cases = [GreedyCase([1, 2, 3], [1, 9, 9], [5.0, margin, 5.0]) for margin in apart]
    return cases + [GreedyCase([1, 2, 3], [1, 2, 3], [5.0, 5.0, 5.0])] * (n - len(cases))


class TestGreedy:
    def judge(self, cases: list[GreedyCase], control: list[GreedyCase] | None = None) -> tuple[str, str]:
        found = GreedyLevel()(cases, greedy(24) if control is None else control, greedy(24), 0.01)
        return found.verdict, found.reason

    def test_identical(self) -> None:
        assert self.judge(greedy(24)) == (
            LOSSLESS, "all 24 prompts identical: the rate of divergence is below 11.7% (95 %)")  # fmt: skip

    def test_a_divergence_that_is_no_near_tie_refutes(self) -> None:
        verdict, reason = self.judge(greedy(24, [0.001, 2.0]))
        assert verdict == NOT_LOSSLESS
        assert "1 of them not at a near-tie (margin up to 2)" in reason

    def test_near_ties_certify_and_refute_nothing(self) -> None:
        assert self.judge(greedy(24, [0.001]))[0] == INCONCLUSIVE

    def test_few_prompts(self) -> None:
        assert self.judge(greedy(5)) == (INCONCLUSIVE, "only 5 prompts; 20 are needed")

    def test_a_control_that_moves(self) -> None:
        assert self.judge(greedy(24), greedy(24, [2.0]))[0] == INCONCLUSIVE
        assert self.judge(greedy(24, [2.0]), greedy(24, [2.0]))[0] == INCONCLUSIVE
        assert self.judge(greedy(24), [])[0] == INCONCLUSIVE

    def test_divergence_and_margin(self) -> None:
        case = greedy(1, [0.25])[0]
        assert (case.divergence, case.margin) == (1, 0.25)


class TestDistribution:
    rng = np.random.default_rng(1)
    p = rng.normal(size=(800, 40)).astype(np.float32) * 4
    targets = p.argmax(1)
    clusters = np.repeat(np.arange(16), 50)

    def table(self, noise: float, n: int = 800) -> pd.DataFrame:
        q = self.p + np.float32(noise) * np.random.default_rng(2).normal(size=self.p.shape).astype(np.float32)
        return position_table(self.p[:n], q[:n], self.targets[:n], self.clusters[:n])

    @pytest.mark.parametrize(("noise", "verdict"), [(0, LOSSLESS), (0.002, LOSSLESS), (1.0, NOT_LOSSLESS)])
    def test_limits(self, noise: float, verdict: str) -> None:
        assert DistributionLevel()(self.table(noise), self.table(0)).verdict == verdict

    def test_few_texts(self) -> None:
        found = DistributionLevel()(self.table(0, 100), self.table(0))
        assert (found.verdict, found.reason) == (INCONCLUSIVE, "only 2 texts; 8 are needed")

    def test_a_control_that_moves(self) -> None:
        assert DistributionLevel()(self.table(0), self.table(1e-3)).verdict == INCONCLUSIVE
        assert DistributionLevel()(self.table(1), self.table(1e-3)).verdict == INCONCLUSIVE


def items(n: int, right: int, lost: int = 0, won: int = 0, task: str = "a", *, equal: bool = False) -> pd.DataFrame:
    reference = np.array([1] * right + [0] * (n - right))
    candidate = reference.copy()
    candidate[:lost] = 0
    candidate[n - won :] = 1
    return pd.DataFrame(
        {
            "task": task,
            "reference": reference,
            "candidate": candidate,
            "chance": 0.25,
            "cluster": range(n),
            "equal": equal,
        }
    )


class TestTask:
    def judge(
        self, *tables: pd.DataFrame, control: pd.DataFrame | None = None, margin: float = 0.01
    ) -> tuple[str, str]:
        control = items(50, 40, equal=True) if control is None else control
        found = TaskLevel(margin=margin)(pd.concat(tables, ignore_index=True), control)
        return found.verdict, found.reason

    def test_not_significant_is_not_lossless(self) -> None:
        verdict, reason = self.judge(items(1000, 700, 12, 9))
        assert verdict == INCONCLUSIVE
        assert "a loss of 0.01 is not excluded (p = 0.063" in reason

    def test_non_inferior(self) -> None:
        assert self.judge(items(1000, 700, 3, 3))[0] == LOSSLESS
        assert self.judge(items(1000, 700, 12, 9), margin=0.02)[0] == LOSSLESS

    def test_a_clear_loss_refutes(self) -> None:
        assert self.judge(items(1000, 700, 90, 5))[0] == NOT_LOSSLESS
        assert self.judge(items(1000, 700), items(1000, 700, 90, 5, "b"))[0] == NOT_LOSSLESS

    def test_a_baseline_at_chance_certifies_nothing(self) -> None:
        for equal in (True, False):
            verdict, reason = self.judge(items(1000, 255, equal=equal))
            assert verdict == INCONCLUSIVE
            assert "is at chance" in reason

    def test_one_task_at_chance_holds_back_a_level_of_few(self) -> None:
        verdict, reason = self.judge(items(1000, 700), items(1000, 255, task="b"))
        assert verdict == INCONCLUSIVE
        assert reason.startswith("b: the reference (0.255) is at chance")

    @pytest.mark.parametrize("equal", [True, False])
    def test_tasks_at_chance_are_set_aside_by_name_when_three_others_are_sound(self, equal: bool) -> None:
        sound = [items(1000, 700, 1, 1, name) for name in "abc"]
        verdict, reason = self.judge(*sound, items(1000, 255, task="d", equal=equal))
        assert verdict == LOSSLESS
        assert reason.endswith("set aside: d: the reference (0.255) is at chance (0.250): says nothing")

    def test_setting_aside_neither_hides_a_loss_nor_an_open_task(self) -> None:
        sound = [items(1000, 700, 1, 1, name) for name in "abc"]
        assert self.judge(*sound, items(1000, 255, 120, 0, "d"))[0] == NOT_LOSSLESS
        assert self.judge(*sound[:2], items(1000, 700, 12, 9, "c"), items(1000, 255, task="d"))[0] == INCONCLUSIVE
        assert self.judge(*(items(1000, 255, task=name, equal=True) for name in "abcd"))[0] == INCONCLUSIVE

    def test_tasks_at_chance_do_not_weigh_on_the_others(self) -> None:
        """Holm over the sound tasks alone: p = 0.013 passes among three, not among four."""
        sound = [items(700, 500, 5, 5, name) for name in "abc"]
        assert self.judge(*sound, items(1000, 255, 5, 5, task="d"))[0] == LOSSLESS
        assert self.judge(*sound, items(700, 500, 5, 5, task="d"))[0] == INCONCLUSIVE

    def test_few_items(self) -> None:
        assert self.judge(items(60, 50, equal=True))[1] == "a: only 60 items; 100 are needed"

    def test_no_flips_need_enough_items(self) -> None:
        assert self.judge(items(150, 120))[0] == INCONCLUSIVE
        assert self.judge(items(400, 320))[0] == LOSSLESS

    def test_scores_equal_to_the_bit(self) -> None:
        assert self.judge(items(150, 120, equal=True)) == (
            LOSSLESS, "a: all scores of 150 items are equal to the bit")  # fmt: skip

    def test_holm_over_tasks(self) -> None:
        """p = 0.03 passes alone, not among four."""
        one = items(700, 500, 5, 5)
        assert self.judge(one)[0] == LOSSLESS
        assert self.judge(*(items(700, 500, 5, 5, name) for name in "abcd"))[0] == INCONCLUSIVE

    def test_a_control_that_moves_or_is_missing(self) -> None:
        moved = items(50, 40)
        assert self.judge(items(1000, 700), control=moved)[0] == INCONCLUSIVE
        assert TaskLevel()(items(1000, 700), None).verdict == INCONCLUSIVE
        assert self.judge(items(1000, 700, 90, 5), control=moved)[0] == INCONCLUSIVE
