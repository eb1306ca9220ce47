"""What the engine itself costs: every expert cached against stock resident, same threads, same kernels."""

from __future__ import annotations

from workbench.bench.common import SHAPE, bench_model, case_rows, interleave, n_threads, ratio, report
from workbench.config import RunConfig


def run(*, repeats: int = 5, tokens: int = 64) -> None:
    """Every run generates twice and records the second pass, whose experts are all cached by the first."""
    model, threads = bench_model(), n_threads()
    cases = {
        "stock resident": (model, RunConfig(experts="resident", threads=threads)),
        "flash, all cached": (model, RunConfig(cache_slots=SHAPE.n_expert, threads=threads, lanes=2)),
    }
    samples, summaries = interleave(cases, tokens=tokens, repeats=repeats, warm_up=1)
    notes = [f"{SHAPE.label}; {threads} compute threads; second pass of the same generation"]
    estimate = ratio(samples["flash, all cached"], samples["stock resident"])
    report("engine_tax", estimate, 0.95, case_rows(samples, summaries), notes)
