"""Hand-written records in the runner's schema, for tests of arithmetic and of bad endings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from workbench.config import RunConfig

if TYPE_CHECKING:
    from workbench.telemetry import Recording

MS = 1_000_000
FLASH_FIELDS = (
    "stall_ns", "bytes", "reads", "lookups", "hits", "misses", "evictions", "prefetch_issued", "prefetch_used",
    "prefetch_wasted", "prefetch_wasted_bytes", "recall_hit", "recall_total", "flash_busy_ns",
)  # fmt: skip


def header(**config: Any) -> dict[str, Any]:
    chosen = RunConfig(**config)
    return {
        "t": "hdr",
        "schema": 1,
        "run_id": "test",
        "config": chosen.to_dict(),
        "model": {"file": "m.gguf", "arch": "qwen3moe", "n_expert": 8, "n_expert_used": 2, "n_vocab": 16,
                  "layout": "native", "sha256": None},
        "build": {"workbench": "test"},
        "device": {"os": "test"},
        "flash": {"kind": chosen.flash_kind, "bandwidth_bytes_s": chosen.emulate_bandwidth_bytes_s or None,
                  "latency_ns": chosen.emulate_latency_ns, "depth": chosen.emulate_depth},
        "threads": 2,
        "lanes": chosen.lanes,
        "arena_bytes": 1,
    }  # fmt: skip


def token(i: int, phase: str, t0_ms: float, t1_ms: float, **values: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "t": "tok", "i": i, "phase": phase, "n_tokens": 1, "token": i if phase == "decode" else None,
        "next": i + 1 if phase == "decode" else 0,
        "t0_ns": int(t0_ms * MS), "t1_ns": int(t1_ms * MS), "compute_ns": 2 * MS, "expert_compute_ns": MS,
        "predict_ns": 0, "logits_hash": f"{i:016x}", "rss_bytes": 100, "drafted": None, "accepted": None,
        "thermal": None,
    }  # fmt: skip
    return record | dict.fromkeys(FLASH_FIELDS) | values


def end(**values: Any) -> dict[str, Any]:
    return {
        "t": "end", "rc": 0, "reason": "length", "error": None, "n_prompt": 4, "n_decode": 2, "ttft_ns": 9 * MS,
        "prefill_ns": 8 * MS, "decode_ns": 20 * MS, "peak_bytes": 1000, "contended": False, "emulation_late_ns": None,
        "text": "x",
    } | values  # fmt: skip


def flash_run(**ends: Any) -> list[dict[str, Any]]:
    """Prefill of 4 tokens in 8 ms, then two tokens in 20 ms of wall time (2 ms of it between the calls)."""
    decode = {"stall_ns": 6 * MS, "bytes": 3000, "reads": 6, "lookups": 4, "misses": 3, "evictions": 0,
              "prefetch_issued": 2, "prefetch_used": 1, "prefetch_wasted": 1, "prefetch_wasted_bytes": 500,
              "recall_total": 4, "flash_busy_ns": 5 * MS}  # fmt: skip
    return [
        header(experts="flash", lookahead="router", cache_slots=2),
        token(0, "prefill", 0, 8, n_tokens=4, **(decode | {"hits": 0, "recall_hit": 0})),
        token(0, "decode", 10, 19, **(decode | {"hits": 1, "recall_hit": 3})),
        token(1, "decode", 21, 30, **(decode | {"hits": 2, "recall_hit": 2})),
        end(**ends),
    ]


def resident_run(**ends: Any) -> list[dict[str, Any]]:
    return [
        header(experts="resident"),
        token(0, "prefill", 0, 8, n_tokens=4),
        token(0, "decode", 10, 14),
        token(1, "decode", 14, 18),
        end(**ends),
    ]


def lines(records: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(record) + "\n" for record in records]


def recording(records: list[dict[str, Any]]) -> Recording:
    from workbench.telemetry import from_records

    return from_records(records)
