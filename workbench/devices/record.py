"""Run a suite on a target and leave a recording: figures, telemetry and samples, without private details."""

from __future__ import annotations

import datetime
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.ablation.ladder import Ladder, Place, run_ladder
from workbench.ablation.results import to_json
from workbench.ablation.schedule import Outcome, Progress
from workbench.ablation.store import machine_id, write_atomic
from workbench.ablation.suites import Suite
from workbench.devices import power, samples
from workbench.devices.runs import SAMPLES, DeviceRuns, read_samples, runner_samples
from workbench.devices.scrub import check_clean, own_secrets, scrub
from workbench.devices.targets.base import Facts, Target
from workbench.errors import WorkbenchError

RECORDED = Path("device_runs/recorded")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A finished suite: `folder` is the recording, `document` its `results.json`."""

    folder: Path
    document: dict[str, Any]
    reused: int
    ran: int


def run_suite(
    model: Path,
    suite: Suite,
    target: Target,
    *,
    work: Path,
    recorded: Path = RECORDED,
    fresh: bool = False,
    timeout_s: float | None = None,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int], Progress] | None = None,
) -> Recorded:
    """Run (or go on with) a suite on a device, and write its recording.

    Parameters
    ----------
    work
        Where finished runs are kept, so that the same command goes on where it stopped; holds models made for rungs.
    recorded
        Parent of the recording, which is replaced when it is the same day's, device's and suite's.

    Raises
    ------
    WorkbenchError
        When the model cannot be used or the device does not answer at all. A rung that fails is a row with its reason.
    """
    facts = target.probe()
    if fresh:
        (work / SAMPLES).unlink(missing_ok=True)
    runs = DeviceRuns(
        target=target, folder=work, cooldown_s=suite.cooldown_s, idle_s=suite.power.get("idle_s", 0), say=say
    )
    about = about_target(target, facts)
    place = Place(
        runner=runs,
        build=target.build_id(),
        machine=machine_id() if target.clock_is_ours else facts.public(),
        n_cpu=facts.n_cpu,
        about=about,
    )
    date = _first_day(work, fresh)
    try:
        ladder = run_ladder(
            model, suite, work, fresh=fresh, timeout_s=timeout_s, place=place, say=say, progress=progress
        )
    finally:
        target.close()
    folder = recorded / f"{date}-{slug(facts.name)}-{slug(suite.name)}"
    document = write_recording(folder, ladder, work, secrets={*facts.secrets, *own_secrets()})
    return Recorded(folder=folder, document=document, reused=ladder.reused, ran=ladder.ran)


def about_target(target: Target, facts: Facts) -> dict[str, Any]:
    """The header of a recording: which target, how far it is verified, which device."""
    return {
        "name": target.name,
        "verified": target.verified.to_dict(),
        "tool": target.version(),
        "device": facts.public(),
    }


def slug(text: str) -> str:
    """A name for a folder."""
    return re.sub(r"[^a-z0-9_.]+", "-", text.lower()).strip("-")


def _first_day(work: Path, fresh: bool) -> str:
    """The day the work folder was begun, so that a resumed suite is one recording."""
    path = work / "begun.txt"
    if fresh or not path.is_file():
        write_atomic(path, datetime.datetime.now(datetime.UTC).date().isoformat())
    return path.read_text(encoding="utf-8").strip()


def write_recording(folder: Path, ladder: Ladder, work: Path, *, secrets: Iterable[str]) -> dict[str, Any]:
    """Write the recording from a run folder; either all of it without secrets, or none."""
    from workbench.ablation.figure import save

    secrets = list(secrets)
    rows, idle = read_samples(work)
    for outcome in ladder.outcomes:
        for run in (*outcome.verification, *outcome.timed.values(), *outcome.sustained):
            rows += runner_samples(run)
    table = samples.frame(rows)
    windows = _windows(ladder.outcomes, idle)
    reports = [report.to_dict() for report in power.report(table, windows)]
    manifest = json.loads((work / "manifest.json").read_text(encoding="utf-8"))
    clock = next((_clock(o) for o in ladder.outcomes if _clock(o)), None)
    document = scrub(json.loads(to_json(ladder.document)) | {"power": reports}, secrets)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write_atomic(partial / "results.json", to_json(document, indent=1) + "\n")
        manifest |= {"windows": windows, "clock": clock}
        write_atomic(partial / "manifest.json", to_json(scrub(manifest, secrets), indent=1) + "\n")
        for path in sorted(work.glob("telemetry-*.parquet")):
            shutil.copy(path, partial / path.name)
        table.to_parquet(partial / "samples.parquet", index=False)
        save(document, partial)
        check_clean(partial, secrets)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)
    return document


def _windows(outcomes: Iterable[Outcome], idle: tuple[int, int] | None) -> list[dict[str, Any]]:
    windows: list[dict[str, Any]] = []
    if idle:
        windows.append({"kind": "idle", "rung": None, "t0_ns": idle[0], "t1_ns": idle[1], "tokens": 0})
    for outcome in outcomes:
        decodes = [run.decode for run in outcome.sustained if len(run.decode)]
        if not decodes:
            continue
        made = sum(len(run.generated) - 1 for run in outcome.sustained)
        t0, t1 = min(int(d["t0_ns"].min()) for d in decodes), max(int(d["t1_ns"].max()) for d in decodes)
        windows.append({"kind": "sustained", "rung": outcome.step.rung.name, "t0_ns": t0, "t1_ns": t1, "tokens": made})
    return windows


def _clock(outcome: Outcome) -> dict[str, int] | None:
    for run in (*outcome.verification, *outcome.timed.values()):
        clock = run.header.get("clock")
        if clock:
            return {"mono_ns": int(clock["mono_ns"]), "wall_ns": int(clock["wall_ns"])}
    return None


def add_meter(folder: Path, csv: Path) -> list[dict[str, Any]]:
    """Add an external meter's CSV to a recording and report again.

    Returns
    -------
    list of dict
        `PowerReport`s; also in `results.json`.
    """
    manifest, document = (_read(folder / name) for name in ("manifest.json", "results.json"))
    clock = manifest.get("clock")
    if not clock:
        raise WorkbenchError(f"{folder}: no run of it tells its clock, so the meter's times cannot be placed")
    kept = pd.read_parquet(folder / "samples.parquet")
    kept = kept[kept["source"] != "meter"]
    rows = samples.from_meter(csv, wall_minus_mono_ns=clock["wall_ns"] - clock["mono_ns"])
    table = samples.frame([*_rows(kept), *rows])
    document["power"] = [report.to_dict() for report in power.report(table, manifest.get("windows", []))]
    table.to_parquet(folder / "samples.parquet", index=False)
    write_atomic(folder / "results.json", to_json(document, indent=1) + "\n")
    return list(document["power"])


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): None if pd.isna(v) else v for k, v in row.items()} for row in table.to_dict("records")]


def _read(path: Path) -> dict[str, Any]:
    try:
        values: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorkbenchError(f"{path}: {error}; give the folder of a recording") from None
    return dict(values)
