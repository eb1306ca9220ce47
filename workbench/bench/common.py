"""What the benchmarks share: the synthetic model, interleaved runs, and the report."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.ablation.results import to_json
from workbench.ablation.stats import Estimate, MedianBootstrap
from workbench.ablation.store import build_id, machine_id, write_atomic
from workbench.config import RunConfig
from workbench.runner import cache_folder, run_native
from workbench.storage.pack import pack
from workbench.storage.synth import SynthShape, synthesize
from workbench.telemetry import Recording, summarize

PROMPT = "The expert weights stay in flash; the next layer's router is asked early which of them it will want."
_record_in: ContextVar[Path | None] = ContextVar("record_in", default=None)
# A token's dense part is about as large as its experts, as in the article's model.
SHAPE = SynthShape(n_head=32, n_head_kv=8, head_dim=128, n_vocab=65536)


def bench_model(shape: SynthShape = SHAPE, *, packed: bool = False) -> Path:
    """A synthetic benchmark model (cached), native or expert-contiguous."""
    folder = cache_folder() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    native = folder / f"{shape.label.replace(' ', '-').replace('/', '-').replace(',', '')}.gguf"
    if not native.exists():
        synthesize(native, shape)
    if not packed:
        return native
    contiguous = native.with_suffix(".packed.gguf")
    if not contiguous.exists():
        pack(native, contiguous)
    return contiguous


def n_threads() -> int:
    """Compute threads used where both sides must have the same."""
    return os.cpu_count() or 1


def run_once(
    model: Path, config: RunConfig, *, tokens: int, prompt: str = PROMPT, warm_up: int = 0, **how: Any
) -> Recording:
    """One run in its own process, after `warm_up` unrecorded passes of the same generation."""
    job = {
        "model": str(model),
        "config": config.to_dict(),
        "run_id": uuid.uuid4().hex[:12],
        "prompt": prompt,
        "n_predict": tokens,
        "ignore_eos": True,
        "warm_up": warm_up,
    }
    return run_native(job, **how)


def decode_tok_s(recording: Recording) -> float:
    """Decode tokens per second as every table gives it."""
    return float(summarize(recording)["decode_tok_s"])


def interleave(
    cases: Mapping[str, tuple[Path, RunConfig]],
    *,
    tokens: int,
    repeats: int,
    warm_up: int = 0,
    rate: Callable[[Recording], float] = decode_tok_s,
) -> tuple[dict[str, list[float]], dict[str, list[dict[str, Any]]]]:
    """Run the cases A B … then … B A, `repeats` times after one warm-up each.

    Returns
    -------
    samples, summaries
        Per case: `rate` of each repeat (decode tokens per second), and each repeat's whole summary.
    """
    from tqdm import tqdm

    names = list(cases)
    order = [(name, True) for name in names]
    for r in range(repeats):
        order += [(name, False) for name in (names if r % 2 == 0 else reversed(names))]
    samples: dict[str, list[float]] = {name: [] for name in names}
    summaries: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for name, discarded in tqdm(order, desc="runs", unit="run"):
        model, config = cases[name]
        recording = run_once(model, config, tokens=tokens, warm_up=warm_up)
        if not discarded:
            samples[name].append(rate(recording))
            summaries[name].append(summarize(recording))
    return samples, summaries


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """Ratio of medians with its bootstrap interval."""
    return MedianBootstrap().ratio(numerator, denominator)


def median_of(summaries: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Median of a summary's figure over repeats; None where it was not measured."""
    values = [s[key] for s in summaries if s[key] is not None]
    return MedianBootstrap()(values).value if values else None


def report(
    name: str,
    estimate: Estimate | None,
    goal: float,
    rows: list[dict[str, Any]],
    notes: Sequence[str] = (),
    **more: Any,
) -> None:
    """Print a table, then ONE JSON document with `ratio` as the last line."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"bench {name}", caption="\n".join(notes), title_justify="left", caption_justify="left")
    for key in rows[0]:
        table.add_column(key, justify="left" if isinstance(rows[0][key], str) else "right")
    for row in rows:
        table.add_row(*(_cell(v) for v in row.values()))
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    console.print(table)
    if estimate is None:
        console.print("ratio: not measured")
    else:
        between = "" if estimate.low is None else f" (95 % {estimate.low:.3g}–{estimate.high:.3g}, n = {estimate.n})"
        met = "met" if estimate.value >= goal else "NOT met"
        console.print(f"ratio {estimate.value:.3g}{between}; goal ≥ {goal:g}: {met}")
    document = {
        "bench": name,
        "ratio": None if estimate is None else estimate.value,
        "ratio_low": None if estimate is None else estimate.low,
        "ratio_high": None if estimate is None else estimate.high,
        "goal": goal,
        "rows": rows,
        "notes": list(notes),
        **more,
    }
    folder = _record_in.get()
    if folder is not None:
        write_atomic(folder / "bench.json", to_json(_recording(name, estimate, document), indent=1) + "\n")
        console.print(f"Recorded: {folder / 'bench.json'}")
    print(json.dumps(document), flush=True)


@contextlib.contextmanager
def recorded_in(folder: Path | None) -> Iterator[None]:
    """Let `report` also write `bench.json` into a folder; None: no file."""
    token = _record_in.set(folder)
    try:
        yield
    finally:
        _record_in.reset(token)


def _recording(name: str, estimate: Estimate | None, document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "bench",
        "name": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "estimate": None if estimate is None else asdict(estimate),
        **{key: value for key, value in document.items() if key != "bench"},
        "machine": machine_id(),
        "build": {"id": build_id()},
    }


def _cell(value: Any) -> str:
    if value is None:
        return "not measured"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def case_rows(
    samples: Mapping[str, list[float]], summaries: Mapping[str, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The usual columns of a comparison of decode speeds."""
    return [
        {
            "case": name,
            "tok/s": MedianBootstrap()(samples[name]).value,
            "compute ms": median_of(summaries[name], "compute_ms_per_token"),
            "stall ms": median_of(summaries[name], "stall_ms_per_token"),
            "MB/token": _scaled(median_of(summaries[name], "bytes_per_token"), 1e-6),
            "flash idle": median_of(summaries[name], "flash_idle_share"),
            "recall": median_of(summaries[name], "recall"),
            "peak MB": _scaled(median_of(summaries[name], "peak_bytes"), 1e-6),
            "contended": any(s["contended"] for s in summaries[name]),
        }
        for name in samples
    ]


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
