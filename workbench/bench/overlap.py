"""Lookahead and ready-first at c = 0 against serial on demand, on this machine's own flash."""

from __future__ import annotations

from workbench.bench.common import bench_model, case_rows, interleave, ratio, report
from workbench.config import RunConfig
from workbench.storage.synth import SynthShape

# A token's dense part is about twice its experts, as in the article's 35B-A3B (1.0 of 3 B active weights are experts).
SHAPE = SynthShape(n_layer=16, n_expert=96, n_expert_used=4, n_head=32, n_head_kv=8, head_dim=128, n_vocab=65536)


def run(*, repeats: int = 5, tokens: int = 24) -> None:
    """Both sides: contiguous file, direct reads, one lane, one compute thread; they differ in scheduling alone."""
    model = bench_model(SHAPE, packed=True)
    cases = {
        "serial on demand": (model, RunConfig(lanes=1, threads=1)),
        "lookahead + ready-first": (model, RunConfig(lookahead="router", ready_first=True, lanes=1, threads=1)),
    }
    samples, summaries = interleave(cases, tokens=tokens, repeats=repeats)
    notes = [f"{SHAPE.label}, expert-contiguous; native flash, direct reads, c = 0; compute ms side by side"]
    estimate = ratio(samples["lookahead + ready-first"], samples["serial on demand"])
    report("overlap", estimate, 1.3, case_rows(samples, summaries), notes)
