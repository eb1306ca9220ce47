"""Read bandwidth while decoding against what the same lanes and sizes reach with nothing else to do."""

from __future__ import annotations

from tqdm import tqdm

from workbench.bench.common import SHAPE, bench_model, ratio, report, run_once
from workbench.config import RunConfig
from workbench.iobench import iobench
from workbench.telemetry import summarize


def run(*, repeats: int = 5, tokens: int = 16) -> None:
    """Idle and decoding alternate, since a disk drifts. Decoding: bytes over the time with reads in flight."""
    model = bench_model(packed=True)
    config = RunConfig(lookahead="router", ready_first=True, lanes=2, threads=1)
    idle, decoding, shares = [], [], []
    for _ in tqdm(range(repeats), desc="rounds", unit="round"):
        summary = summarize(run_once(model, config, tokens=tokens))
        block = round(summary["bytes_per_token"] / summary["reads_per_token"])
        busy_s = summary["flash_busy_ms_per_token"] / 1e3
        decoding.append(summary["bytes_per_token"] / busy_s)
        shares.append(1 - summary["flash_idle_share"])
        idle.append(iobench(model, lanes=config.lanes, block_bytes=block, seconds=2.0)["bytes_s"])
    rows = [
        {"case": "idle I/O benchmark", "MB/s": sorted(idle)[len(idle) // 2] / 1e6, "flash busy": 1.0},
        {
            "case": "during decode",
            "MB/s": sorted(decoding)[len(decoding) // 2] / 1e6,
            "flash busy": sum(shares) / len(shares),
        },
    ]
    notes = [f"{SHAPE.label}; {config.lanes} lanes, {block / 1e6:.2f} MB reads, direct, native flash"]
    report("bandwidth", ratio(decoding, idle), 0.85, rows, notes)
