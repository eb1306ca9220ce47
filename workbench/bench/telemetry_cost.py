"""What token telemetry costs: against telemetry off, on the embedded model, where a token is shortest."""

from __future__ import annotations

from workbench.bench.common import case_rows, interleave, ratio, report
from workbench.config import RunConfig
from workbench.demo import demo_model
from workbench.telemetry import Recording


def whole_rate(recording: Recording) -> float:
    """Tokens per second from the first token to the end of the run, everything between calls included."""
    end = recording.end or {}
    return float(end["n_decode"] * 1e9 / (end["wall_ns"] - end["ttft_ns"]))


def run(*, repeats: int = 15, tokens: int = 400) -> None:
    """Every expert cached, so that nothing but the engine and its records takes time."""
    model = demo_model()
    cases = {
        level: (model, RunConfig(cache_slots=24, threads=1, telemetry=level, logits_hash=level != "off"))
        for level in ("off", "token")
    }
    samples, summaries = interleave(cases, tokens=tokens, repeats=repeats, warm_up=1, rate=whole_rate)
    notes = ["token level: one record and one hash of the logits per token; embedded model, all experts cached"]
    report("telemetry_cost", ratio(samples["token"], samples["off"]), 0.99, case_rows(samples, summaries), notes)
