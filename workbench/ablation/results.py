"""Rows of the ladder: medians of interleaved repeats, speed-up, losslessness; and the files of a run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.ablation.regime import diagnose
from workbench.ablation.schedule import Outcome
from workbench.ablation.stats import MedianBootstrap
from workbench.ablation.store import write_atomic
from workbench.lossless import DIFFERS, LogitsVerdict
from workbench.telemetry import summarize

SCHEMA = 1
MEDIANS = (
    "prefill_tok_s",
    "decode_tok_s",
    "ttft_ms",
    "bytes_per_token",
    "reads_per_token",
    "stall_ms_per_token",
    "compute_ms_per_token",
    "expert_compute_ms_per_token",
    "flash_busy_ms_per_token",
    "flash_idle_share",
    "hit_rate",
    "recall",
    "prefetch_wasted_bytes",
    "prefetch_wasted_bytes_per_token",
)
INTERVALS = ("prefill_tok_s", "decode_tok_s", "ttft_ms")
OK, FAILED = "ok", "failed"


def rows(
    outcomes: Sequence[Outcome],
    *,
    n_prompts: int,
    baseline: str,
    synthetic: bool = False,
    bootstrap: MedianBootstrap | None = None,
) -> list[dict[str, Any]]:
    """One row per rung, in the order of the ladder.

    Parameters
    ----------
    n_prompts
        Prompts per repeat; a repeat counts only when all of its prompts ran.
    baseline
        The rung that speed-up is over.
    synthetic
        Whether the model's weights are made up; becomes a label.

    Returns
    -------
    list of dict
        Metrics are medians over repeats, None where not measured or where the rung failed. `_low` and `_high` are the
        bounds of 95 % bootstrap intervals. `peak_bytes` is the largest of all timed runs.
    """
    bootstrap = bootstrap or MedianBootstrap()
    summaries = {o.step.rung.name: _summaries(o, n_prompts) for o in outcomes}
    failed = {o.step.rung.name for o in outcomes if o.error is not None}
    base = {} if baseline in failed else summaries.get(baseline, {})
    return [_row(o, summaries[o.step.rung.name], base, synthetic, bootstrap) for o in outcomes]


def _summaries(outcome: Outcome, n_prompts: int) -> dict[int, dict[str, Any]]:
    return {repeat: summarize(*recordings) for repeat, recordings in outcome.repeats(n_prompts).items()}


def _row(
    outcome: Outcome,
    repeats: Mapping[int, Mapping[str, Any]],
    base: Mapping[int, Mapping[str, Any]],
    synthetic: bool,
    bootstrap: MedianBootstrap,
) -> dict[str, Any]:
    step, ok = outcome.step, outcome.error is None and bool(repeats)
    measured = list(repeats.values()) if ok else []
    row: dict[str, Any] = {
        "rung": step.rung.name,
        "status": OK if ok else FAILED,
        "error": None if ok else outcome.error or "no repeat finished",
        "failure": None if ok else outcome.failure,
        "config": _portable(step.config.to_dict() if step.config else dict(step.rung.changes)),
        "model": step.model,
        "recipe": step.recipe,
        "changed": step.change_line,
        "note": step.rung.note,
        "repeats": len(measured),
    }
    for name in MEDIANS:
        samples = [m[name] for m in measured if m[name] is not None]
        row[name] = float(np.median(samples)) if samples else None
        if name in INTERVALS:
            estimate = bootstrap(samples) if samples else None
            row[f"{name}_low"] = estimate.low if estimate else None
            row[f"{name}_high"] = estimate.high if estimate else None
    row["decode_tok_s_samples"] = [m["decode_tok_s"] for m in measured]
    row |= _speedup(repeats if ok else {}, base, bootstrap)
    peaks = [m["peak_bytes"] for m in measured]
    row["peak_bytes"] = max(peaks) if peaks and None not in peaks else None
    row["contended_runs"] = sum(bool(m["contended"]) for m in measured)
    header = next(iter(outcome.timed.values())).header if outcome.timed else {}
    row["layout"] = header.get("model", {}).get("layout")
    row["threads"], row["lanes"] = header.get("threads"), header.get("lanes")
    row["arena_bytes"] = header.get("arena_bytes")
    row["flash"] = _flash(outcome, header)
    row["lossless"] = verdict(outcome) | {"timed": outcome.timed_lossless.to_dict()}
    row["labels"] = _labels(row, synthetic)
    row["regime"] = asdict(diagnose(row)) if ok else None
    return row


def _portable(config: dict[str, Any]) -> dict[str, Any]:
    """Toggles without this machine's folders."""
    return config | ({"draft_model": Path(config["draft_model"]).name} if config.get("draft_model") else {})


def _speedup(
    repeats: Mapping[int, Mapping[str, Any]], base: Mapping[int, Mapping[str, Any]], bootstrap: MedianBootstrap
) -> dict[str, float | None]:
    both = [r for r in repeats if r in base and repeats[r]["decode_tok_s"] and base[r]["decode_tok_s"]]
    if not both:
        return {"speedup": None, "speedup_low": None, "speedup_high": None}
    ratio = bootstrap.ratio([repeats[r]["decode_tok_s"] for r in both], [base[r]["decode_tok_s"] for r in both])
    return {"speedup": ratio.value, "speedup_low": ratio.low, "speedup_high": ratio.high}


def _flash(outcome: Outcome, header: Mapping[str, Any]) -> dict[str, Any]:
    config = outcome.step.config
    flash: dict[str, Any] = {"kind": config.flash_kind if config else "native"}
    if config and flash["kind"] == "emulated":
        flash["bandwidth_bytes_s"] = config.emulate_bandwidth_bytes_s
        flash |= {"latency_ns": config.emulate_latency_ns, "depth": config.emulate_depth}
    flash |= header.get("flash") or {}
    late = [(run.end or {}).get("emulation_late_ns") for run in outcome.timed.values()]
    known = [value for value in late if value is not None]
    if known:
        flash["late_ms_per_run"] = float(np.median(known)) / 1e6
    return flash


def verdict(outcome: Outcome) -> dict[str, Any]:
    """The rung's verdict: that of the logits, unless a timed run's hashes say it differs."""
    logits, timed = outcome.lossless, outcome.timed_lossless
    values = logits.to_dict()
    if timed.verdict == DIFFERS and logits.verdict != DIFFERS:
        values["verdict"] = DIFFERS
        values["reason"] = timed.reason or (
            f"logits hashes of timed runs differ at {timed.differing} of {timed.compared} positions"
        )
    return values


def _labels(row: Mapping[str, Any], synthetic: bool) -> list[str]:
    labels = []
    if row["flash"]["kind"] == "emulated" and row["config"].get("experts") != "resident":
        labels.append("emulated")
    if synthetic:
        labels.append("synthetic")
    if row["contended_runs"]:
        labels.append("contended")
    if row["status"] == OK and row["decode_tok_s"] is None:
        labels.append("not measured")
    return labels


def sound(result_rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every rung ran and none differs."""
    return all(row["status"] == OK and row["lossless"]["verdict"] != DIFFERS for row in result_rows)


def telemetry_table(outcomes: Sequence[Outcome], level: str = "tokens") -> pd.DataFrame | None:
    """Telemetry of all runs in one table: `rung`, `kind`, `repeat`, `prompt`, then the run's columns.

    `kind` is verify, timed or sustained.

    Parameters
    ----------
    level
        `tokens`, `layers` or `io`; None when no run recorded that level.
    """
    frames = []
    for outcome in outcomes:
        runs: list[tuple[str, int | None, int, Any]] = [
            ("verify", None, prompt, run) for prompt, run in enumerate(outcome.verification)
        ]
        runs += [("timed", repeat, prompt, run) for (repeat, prompt), run in sorted(outcome.timed.items())]
        runs += [("sustained", part, 0, run) for part, run in enumerate(outcome.sustained)]
        for kind, repeat, prompt, run in runs:
            frame = getattr(run, level)
            if frame is None or not len(frame):
                continue
            names = {"rung": outcome.step.rung.name, "kind": kind, "repeat": repeat, "prompt": prompt}
            lead = pd.DataFrame(names | {"run_id": run.header.get("run_id")}, index=frame.index)
            lead["repeat"] = lead["repeat"].astype("Int64")
            frames.append(pd.concat([lead, frame], axis=1))
    return pd.concat(frames, ignore_index=True) if frames else None


def write_files(
    folder: Path, *, document: Mapping[str, Any], manifest: Mapping[str, Any], outcomes: Sequence[Outcome]
) -> None:
    """Write `results.json`, `manifest.json` and the Parquet telemetry of all runs into the run folder."""
    write_atomic(folder / "results.json", to_json(document, indent=1) + "\n")
    write_atomic(folder / "manifest.json", to_json(manifest, indent=1) + "\n")
    for level in ("tokens", "layers", "io"):
        table, path = telemetry_table(outcomes, level), folder / f"telemetry-{level}.parquet"
        if table is None:
            path.unlink(missing_ok=True)
        else:
            table.to_parquet(path, index=False)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON without NaN or infinities: those become null."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, LogitsVerdict):
        return value.to_dict()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
