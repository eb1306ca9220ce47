"""Lookahead and ready-first at c = 0 against serial on demand, on this machine's own flash."""

from __future__ import annotations

from workbench.bench.common import SHAPE, bench_model, case_rows, interleave, ratio, report
from workbench.config import RunConfig


def run(*, repeats: int = 5, tokens: int = 24) -> None:
    """Both sides: contiguous file, direct reads, one compute thread; they differ in scheduling alone."""
    model = bench_model(packed=True)
    cases = {
        "serial on demand": (model, RunConfig(lanes=1, threads=1)),
        "lookahead + ready-first": (model, RunConfig(lookahead="router", ready_first=True, lanes=2, threads=1)),
    }
    samples, summaries = interleave(cases, tokens=tokens, repeats=repeats)
    notes = [f"{SHAPE.label}, expert-contiguous; native flash, direct reads, c = 0; compute ms side by side"]
    estimate = ratio(samples["lookahead + ready-first"], samples["serial on demand"])
    report("overlap", estimate, 1.3, case_rows(samples, summaries), notes)
