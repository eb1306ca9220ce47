"""One verdict per level of the lossless ladder: lossless, not lossless or inconclusive, each with its reason.

"Not significant" is never lossless, and a control that itself moves makes its level inconclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from workbench.evals.distribution import summarize
from workbench.evals.stats import (
    BeatsChance,
    Flips,
    Holm,
    McNemarExact,
    MinimumDetectableEffect,
    NonInferiority,
    PairedDifference,
    ZeroMismatchBound,
)
from workbench.lossless import BIT_EXACT, DIFFERS, LogitsVerdict

LOSSLESS, NOT_LOSSLESS, INCONCLUSIVE = "lossless", "not lossless", "inconclusive"
LEVELS = {1: "bit-exact", 2: "greedy identity", 3: "distribution", 4: "task"}


@dataclass(frozen=True, kw_only=True)
class LevelVerdict:
    """Verdict of one level, why, and the figures it rests on."""

    level: int
    verdict: str
    reason: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return LEVELS[self.level]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {**asdict(self), "name": self.name}


@dataclass(frozen=True, kw_only=True)
class BitExactLevel:
    """Level 1: every float32 logit equal, the same tokens fed. `control` is the reference against itself."""

    def __call__(self, logits: LogitsVerdict, control: LogitsVerdict) -> LevelVerdict:
        figures = {**logits.to_dict(), "control": control.to_dict()}
        if control.verdict != BIT_EXACT:
            reason = f"the reference does not repeat itself: {control.reason or f'{control.differing} logits differ'}"
            return LevelVerdict(level=1, verdict=INCONCLUSIVE, reason=reason, figures=figures)
        if logits.verdict == BIT_EXACT:
            reason = f"all {logits.compared:,} logits of {logits.positions:,} positions are equal"
            return LevelVerdict(level=1, verdict=LOSSLESS, reason=reason, figures=figures)
        if logits.verdict == DIFFERS:
            reason = f"{logits.differing:,} of {logits.compared:,} logits differ, by up to {logits.max_abs_diff:.3g}"
            return LevelVerdict(level=1, verdict=NOT_LOSSLESS, reason=reason, figures=figures)
        return LevelVerdict(level=1, verdict=INCONCLUSIVE, reason=logits.reason or "not compared", figures=figures)


@dataclass(frozen=True)
class GreedyCase:
    """One prompt: both continuations, and the reference's top-1/top-2 margin at the first divergence (None: none)."""

    reference: Sequence[int]
    candidate: Sequence[int]
    margins: Sequence[float]

    @property
    def divergence(self) -> int | None:
        """First position where the two differ."""
        pairs = zip(self.reference, self.candidate, strict=True)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), None)

    @property
    def margin(self) -> float | None:
        """The reference's top-1 logit minus top-2 there."""
        return None if self.divergence is None else float(self.margins[self.divergence])


@dataclass(frozen=True, kw_only=True)
class GreedyLevel:
    """Level 2: greedy continuations identical, prompt by prompt.

    Parameters
    ----------
    min_prompts : int
        Fewer certify nothing: no mismatch among N bounds the rate only at about 3/N.
    """

    min_prompts: int = 20

    def __call__(
        self,
        cases: Sequence[GreedyCase],
        control: Sequence[GreedyCase],
        width: Sequence[GreedyCase],
        noise: float | None,
    ) -> LevelVerdict:
        """Judge `cases`; `control` is the reference run again, `width` the reference at another batch width.

        `noise` is how far another batch width moves the margin of the two best tokens: divergences with a smaller
        margin are near-ties.
        """
        apart = [case for case in cases if case.divergence is not None]
        ties = [c for c in apart if noise is not None and c.margin is not None and c.margin <= noise]
        bound = ZeroMismatchBound()(len(cases))
        figures = {
            "prompts": len(cases),
            "identical": len(cases) - len(apart),
            "near_ties": len(ties),
            "first_divergence": min((c.divergence for c in apart if c.divergence is not None), default=None),
            "margin_there": min(apart, key=lambda c: c.divergence or 0).margin if apart else None,
            "largest_margin": max((c.margin for c in apart if c.margin is not None), default=None),
            "batch_width_noise": noise,
            "control_diverged": sum(c.divergence is not None for c in control),
            "batch_width_diverged": sum(c.divergence is not None for c in width),
            "mismatch_bound": bound if not apart else None,
        }
        if not control or figures["control_diverged"]:
            reason = f"the reference does not repeat itself on {figures['control_diverged']} of {len(control)} prompts"
            return LevelVerdict(level=2, verdict=INCONCLUSIVE, reason=reason, figures=figures)
        if apart and len(ties) == len(apart):
            reason = (
                f"{len(apart)} of {len(cases)} prompts diverge, each at a near-tie that another batch width of the "
                "reference could turn as well"
            )
            return LevelVerdict(level=2, verdict=INCONCLUSIVE, reason=reason, figures=figures)
        if apart:
            reason = (
                f"{len(apart)} of {len(cases)} prompts diverge, {len(apart) - len(ties)} of them not at a near-tie "
                f"(margin up to {figures['largest_margin']:.3g})"
            )
            return LevelVerdict(level=2, verdict=NOT_LOSSLESS, reason=reason, figures=figures)
        if len(cases) < self.min_prompts:
            reason = f"only {len(cases)} prompts; {self.min_prompts} are needed"
            return LevelVerdict(level=2, verdict=INCONCLUSIVE, reason=reason, figures=figures)
        reason = f"all {len(cases)} prompts identical: the rate of divergence is below {bound:.1%} (95 %)"
        return LevelVerdict(level=2, verdict=LOSSLESS, reason=reason, figures=figures)


@dataclass(frozen=True, kw_only=True)
class DistributionLevel:
    """Level 3: next-token distributions within pre-set limits, judged by their intervals over texts.

    Parameters
    ----------
    margin : float
        Perplexity may grow, and top-1 agreement fall short of 1, by this share.
    kl_nats : float
        Limit of the mean KL divergence.
    min_texts : int
        Fewer texts certify nothing.
    """

    margin: float = 0.01
    kl_nats: float = 0.01
    min_texts: int = 8

    def __call__(self, table: pd.DataFrame, control: pd.DataFrame) -> LevelVerdict:
        """Judge `table`; `control` is the reference against itself."""
        figures = summarize(table) | {"control_kl_max": float(control["kl"].max()) if len(control) else None}
        moved = not len(control) or bool((control["nll_reference"] != control["nll_candidate"]).any())
        if moved:
            return self._verdict(INCONCLUSIVE, "the reference's own distributions change from run to run", figures)
        if figures["texts"] < self.min_texts or figures["kl"]["mean"]["low"] is None:
            return self._verdict(INCONCLUSIVE, f"only {figures['texts']} texts; {self.min_texts} are needed", figures)
        return self.limits(figures)

    def limits(self, figures: Mapping[str, Any]) -> LevelVerdict:
        """Judge what `summarize` found by the limits alone, whatever the control says."""
        kl, top, ratio = figures["kl"]["mean"], figures["top1_agreement"], figures["perplexity_ratio"]
        checks = (
            ("mean KL", kl["value"], kl["high"] <= self.kl_nats, kl["low"] > self.kl_nats, f"≤ {self.kl_nats:g} nats"),
            ("top-1 agreement", top["value"], top["low"] >= 1 - self.margin, top["high"] < 1 - self.margin,
             f"≥ {1 - self.margin:g}"),
            ("perplexity ratio", ratio["value"], ratio["high"] <= 1 + self.margin, ratio["low"] > 1 + self.margin,
             f"≤ {1 + self.margin:g}"),
        )  # fmt: skip
        text = ", ".join(f"{name} {value:.4g} ({limit})" for name, value, _, _, limit in checks)
        if any(beyond for *_, beyond, _ in checks):
            return self._verdict(NOT_LOSSLESS, f"beyond its limit with 95 % confidence: {text}", figures)
        if all(within for _, _, within, _, _ in checks):
            return self._verdict(LOSSLESS, f"within the limits with 95 % confidence: {text}", figures)
        return self._verdict(INCONCLUSIVE, f"the intervals straddle a limit: {text}", figures)

    def _verdict(self, verdict: str, reason: str, figures: Mapping[str, Any]) -> LevelVerdict:
        return LevelVerdict(level=3, verdict=verdict, reason=reason, figures=figures)


@dataclass(frozen=True, kw_only=True)
class TaskLevel:
    """Level 4: non-inferiority at the margin on every task that the reference can do, Holm-adjusted over those.

    A task on which the reference is at chance says nothing about a loss: it never counts towards *lossless*. It is set
    aside, by name, when `min_tasks` others beat chance; with fewer the level stays inconclusive. Only the reference's
    own score decides this, never the comparison. A clear loss refutes the level on any task.

    Parameters
    ----------
    margin : float
        δ: the loss of accuracy that still counts as none.
    alpha : float
        Level of the tests.
    min_items : int
        Fewer items certify nothing.
    min_tasks : int
        Tasks that beat chance without which none at chance is set aside.
    """

    margin: float = 0.01
    alpha: float = 0.05
    min_items: int = 100
    min_tasks: int = 3

    def __call__(self, items: pd.DataFrame, control: pd.DataFrame | None) -> LevelVerdict:
        """Judge paired items: `task`, `reference`, `candidate`, `chance`, `cluster`, `equal` (scores equal to the bit).

        `control` has the same columns, the reference twice.
        """
        if not len(items):
            return LevelVerdict(level=4, verdict=INCONCLUSIVE, reason="no task has items to compare")
        table = self.table(items)
        pooled = self.row("all", items)
        moved = None if control is None or not len(control) else int((~control["equal"]).sum())
        figures = {
            "margin": self.margin,
            "tasks": table.to_dict("records"),
            "at_chance": [row["task"] for row in table.to_dict("records") if not row["beats_chance"]],
            "pooled": pooled,
            "control_items": 0 if control is None else len(control),
            "control_moved": moved,
        }
        if moved is None:
            return LevelVerdict(
                level=4, verdict=INCONCLUSIVE, reason="the reference was not run again", figures=figures
            )
        if moved:
            reason = f"the reference's own scores changed in {moved} of {len(control)} items"  # type: ignore[arg-type]
            return LevelVerdict(level=4, verdict=INCONCLUSIVE, reason=reason, figures=figures)
        silent = (table["verdict"] == INCONCLUSIVE) & ~table["beats_chance"].astype(bool)
        aside = table[silent] if int(table["beats_chance"].sum()) >= self.min_tasks else table[:0]
        counted = table.drop(aside.index)
        by = {v: counted[counted["verdict"] == v] for v in (NOT_LOSSLESS, INCONCLUSIVE, LOSSLESS)}
        verdict = next(v for v, rows in by.items() if len(rows))
        named = [f"{row.task}: {row.reason}" for row in by[verdict].itertuples()]
        named += [f"set aside: {row.task}: {row.reason}" for row in aside.itertuples()]
        return LevelVerdict(level=4, verdict=verdict, reason="; ".join(named), figures=figures)

    def table(self, items: pd.DataFrame) -> pd.DataFrame:
        """One row per task with its figures and verdict; at chance, `p_noninferior_holm` is NaN."""
        rows = pd.DataFrame([self.row(str(task), own) for task, own in items.groupby("task", sort=True)])
        sound = rows["beats_chance"].astype(bool)
        tested = Holm(column="p_noninferior")(rows[sound])["p_noninferior_holm"]
        holm = Holm(column="p_mcnemar")(rows).assign(p_noninferior_holm=tested)
        judged = [self._judge({str(k): v for k, v in row.items()}) for row in holm.to_dict("records")]
        return holm.assign(verdict=[v for v, _ in judged], reason=[r for _, r in judged])

    def row(self, task: str, items: pd.DataFrame) -> dict[str, Any]:
        """Figures of one task."""
        flips, difference = Flips()(items), PairedDifference()(items)
        binary = bool(np.isin(items[["reference", "candidate"]].to_numpy(), (0, 1)).all())
        chance = BeatsChance()(items) if binary else None
        effect = MinimumDetectableEffect()
        return {
            "task": task,
            "items": len(items),
            "clusters": difference.clusters,
            "reference": float(items["reference"].mean()),
            "candidate": float(items["candidate"].mean()),
            "chance": float(items["chance"].mean()),
            "beats_chance": chance.beats if chance else True,
            "p_chance": chance.p if chance else None,
            "lost": flips.lost,
            "won": flips.won,
            "flips": flips.rate,
            "p_mcnemar": McNemarExact()(items).p,
            "difference": difference.difference,
            "low": difference.low,
            "high": difference.high,
            "p_noninferior": NonInferiority(margin=self.margin)(items).p,
            "minimum_detectable_effect": effect(items),
            "items_needed": effect.items_needed(items, self.margin),
            "all_equal": bool(items["equal"].all()),
        }

    def _judge(self, row: Mapping[str, Any]) -> tuple[str, str]:
        if row["high"] < -self.margin or (row["difference"] <= -self.margin and row["p_mcnemar_holm"] < self.alpha):
            return NOT_LOSSLESS, (
                f"{row['reference']:.3f} → {row['candidate']:.3f}, a loss of {-row['difference']:.3f} "
                f"[{-row['high']:.3f}, {-row['low']:.3f}]"
            )
        if not row["beats_chance"]:
            return (
                INCONCLUSIVE,
                f"the reference ({row['reference']:.3f}) is at chance ({row['chance']:.3f}): says nothing",
            )
        if row["items"] < self.min_items:
            return INCONCLUSIVE, f"only {row['items']} items; {self.min_items} are needed"
        if row["all_equal"]:
            return LOSSLESS, f"all scores of {row['items']} items are equal to the bit"
        if row["p_noninferior_holm"] < self.alpha:
            return LOSSLESS, (
                f"{row['reference']:.3f} → {row['candidate']:.3f}, {row['flips']:.1%} flips: worse by less than "
                f"{self.margin:g} (p = {row['p_noninferior_holm']:.2g})"
            )
        return INCONCLUSIVE, (
            f"{row['reference']:.3f} → {row['candidate']:.3f}, {row['flips']:.1%} flips: a loss of {self.margin:g} is "
            f"not excluded (p = {row['p_noninferior_holm']:.2g}; about {row['items_needed']:,} items would be needed)"
        )
