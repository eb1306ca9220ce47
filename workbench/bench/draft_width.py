"""Which draft length pays: fixed widths, no drafting, the adaptive one, and the drafter without its Markov head."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from workbench.bench.common import decode_tok_s, median_of, ratio, report, run_once
from workbench.config import RunConfig
from workbench.demo import demo_drafter, demo_model
from workbench.storage.gguf_file import open_gguf
from workbench.telemetry import summarize

BLOCK = 6
TEXTS = {
    "easy": "Question: What is 2 + 3? Answer: 5. Question: What is 4 + 3? Answer: 7. Question: What is 1 + 6?",
    "hard": "The lighthouse keeper's daughter had never believed that storms could be read like letters, until",
}
FLASHES: dict[str, dict[str, Any]] = {
    "emulated": {"emulate_bandwidth_bytes_s": 400_000_000, "emulate_latency_ns": 100_000, "io": "buffered"},
    "native": {},
}
NOISE = 2
"""A real disk needs so many times the repeats of an emulated one."""


def without_markov(drafter: Path, target: Path) -> Path:
    """A copy of a drafter whose Markov tensors are zero: its slots no longer see each other's tokens."""
    data = bytearray(drafter.read_bytes())
    (shard,) = open_gguf(drafter).shards
    for tensor in shard.header.tensors:
        if tensor.name.startswith("markov_"):
            start = shard.header.data_start + tensor.offset
            data[start : start + tensor.n_bytes] = bytes(tensor.n_bytes)
    target.write_bytes(data)
    return target


def run(*, repeats: int = 3, tokens: int = 256) -> None:
    """Interleaved; the ratio is adaptive over the best fixed width (no drafting among them), where it is worst."""
    from tqdm import tqdm

    model = demo_model()
    with tempfile.TemporaryDirectory() as scratch:
        plain_drafter = without_markov(demo_drafter(), Path(scratch) / "no-markov.gguf")
        base = RunConfig(lookahead="router", ready_first=True, lanes=2, threads=1, batch_invariant=True)
        drafting = replace(base, speculation="dspark", draft_model=str(demo_drafter()))
        arms = {"off": base}
        arms |= {f"width {w}": replace(drafting, draft_max=w) for w in range(1, BLOCK + 1)}
        arms["adaptive"] = replace(drafting, draft_adaptive=True)
        arms["no Markov, width 3"] = replace(drafting, draft_model=str(plain_drafter), draft_max=3)
        samples: dict[tuple[str, str, str], list[float]] = {}
        details: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        rounds = [
            (flash, text, arm)
            for repeat in range(NOISE * repeats)
            for flash in FLASHES
            if flash == "native" or repeat < repeats
            for text in TEXTS
            for arm in (list(arms) if repeat % 2 == 0 else list(reversed(arms)))
        ]
        for flash, text, arm in tqdm(rounds, desc="runs", unit="run"):
            config = replace(arms[arm], **FLASHES[flash])
            recording = run_once(model, config, tokens=tokens, prompt=TEXTS[text])
            key = (flash, text, arm)
            samples.setdefault(key, []).append(decode_tok_s(recording))
            details.setdefault(key, []).append(summarize(recording) | union(recording.decode))
    rows, estimates = [], []
    for flash in FLASHES:
        for text in TEXTS:
            off = samples[flash, text, "off"]
            fixed = [a for a in arms if a == "off" or a.startswith("width")]
            best = max(fixed, key=lambda a: median(samples[flash, text, a]))
            estimates.append(ratio(samples[flash, text, "adaptive"], samples[flash, text, best]))
            for arm in arms:
                key = (flash, text, arm)
                gain = ratio(samples[key], off)
                rows.append(
                    {
                        "flash": flash,
                        "text": text,
                        "arm": arm + (" (best fixed)" if arm == best else ""),
                        "tok/s": median(samples[key]),
                        "x off": gain.value,
                        "x off low": gain.low,
                        "x off high": gain.high,
                        "x best fixed": ratio(samples[key], samples[flash, text, best]).value,
                        "tau": median_of(details[key], "tau"),
                        "drafted": median_of(details[key], "drafted_per_round"),
                        "union": median_of(details[key], "union"),
                        "MB/token": (median_of(details[key], "bytes_per_token") or 0) / 1e6,
                        "contended": any(d["contended"] for d in details[key]),
                    }
                )
    notes = [
        "union: experts a verified batch reads over what its tokens would read one by one. In flash time a batch pays",
        "when tau / (width x union) exceeds 1; in compute only where a wider batch costs less than its tokens singly",
    ]
    report("draft_width", min(estimates, key=lambda e: e.value), 0.97, rows, notes)


def union(decode: Any) -> dict[str, float | None]:
    """Experts looked up per batch over width × k × layers, from the records (1 without drafting)."""
    width = decode["n_tokens"].astype(float)
    single = decode.loc[decode["n_tokens"] == 1, "lookups"].astype(float).mean()
    per_token = single if single == single else demo_lookups()
    return {"union": float((decode["lookups"].astype(float) / (width * per_token)).mean())}


def demo_lookups() -> int:
    """Experts a single token of the embedded model needs, over all layers."""
    from workbench.storage.layout import expert_layout

    layout = expert_layout(demo_model())
    return layout.n_expert_used * len(layout.layers)
