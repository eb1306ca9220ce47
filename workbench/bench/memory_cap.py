"""Streaming against stock mmap, both inside a memory cap of a quarter of the model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tqdm import tqdm

from workbench.bench.common import SHAPE, bench_model, ratio, report, run_once
from workbench.config import RunConfig
from workbench.memory_cap import CapNotPermittedError, MemoryCap
from workbench.telemetry import summarize

CACHE_SLOTS = 12  # about a third of what the cap leaves beside the resident part


def forget(path: Path) -> None:
    """Drop a file from the page cache, so that reading it again counts against the reader's cap."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(*, repeats: int = 3, tokens: int = 24) -> None:
    """Stock pages experts in through the page cache and thrashes; it gets few tokens, since each takes seconds."""
    native, packed = bench_model(), bench_model(packed=True)
    limit = native.stat().st_size // 4
    cases = {
        "stock mmap": (native, RunConfig(experts="resident", threads=2), 4),
        "streaming": (
            packed,
            RunConfig(lookahead="router", ready_first=True, lanes=2, threads=1, cache_slots=CACHE_SLOTS),
            tokens,
        ),
    }
    samples: dict[str, list[float]] = {name: [] for name in cases}
    rows: list[dict[str, Any]] = []
    notes = [f"{SHAPE.label}; cap {limit / 1e6:,.0f} MB (a quarter); stock with repacking off, as under a cap"]
    try:
        for _ in tqdm(range(repeats), desc="rounds", unit="round"):
            for name, (model, config, n) in cases.items():
                with MemoryCap(limit) as cap:
                    forget(model)
                    recording = run_once(model, config, tokens=n, prompt="The expert", launcher=cap.launcher)
                    summary = summarize(recording)
                    samples[name].append(summary["decode_tok_s"])
                    rows.append(
                        {
                            "case": name,
                            "tok/s": summary["decode_tok_s"],
                            "process peak MB": summary["peak_bytes"] / 1e6,
                            "cgroup peak MB": cap.peak_bytes / 1e6,
                            "inside the cap": cap.peak_bytes <= limit,
                            "contended": summary["contended"],
                        }
                    )
    except CapNotPermittedError as error:
        rows = [{"case": name, "tok/s": None} for name in cases]
        report("memory_cap", None, 20, rows, [*notes, f"not measured: {error}"])
        return
    report("memory_cap", ratio(samples["streaming"], samples["stock mmap"]), 20, rows, notes, cap_bytes=limit)
