"""One token as it was scheduled, rung below rung on one time axis: compute, waits, and every read in its lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from workbench.figures.runs import NotMeasured, RecordedRun, Runs, flash_text
from workbench.figures.sheet import MEASURED, FigureData, drawn_from, sheet
from workbench.timeline import COMPUTE, draw_spans, legend, spans

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOW = "workbench ablate MODEL --suite device_runs/suites/demo-timeline.yaml --out RUNS/NAME"
MOST_RUNGS = 4


def data(runs: Runs) -> FigureData:
    """The token of median length of every rung's first timed run, from a ladder recorded read by read."""
    run = runs.choose("timeline", with_reads(runs), lambda r: len(r.rows))
    if run is None:
        raise NotMeasured("no recorded ladder holds single reads (telemetry io)", HOW)
    tokens, layers, io = (run.telemetry(level) for level in ("tokens", "layers", "io"))
    assert tokens is not None
    assert layers is not None
    assert io is not None
    frames, names = [], [n for n in dict.fromkeys(tokens["rung"]) if n in set(io["rung"])][:MOST_RUNGS]
    for name in names:
        own = [f[(f["rung"] == name) & (f["kind"] == "timed")] for f in (tokens, layers, io)]
        first = own[0]["run_id"].iloc[0]
        calls, layer_rows, reads = (f[f["run_id"] == first] for f in own)
        decode = calls[calls["phase"] == "decode"]
        lengths = (decode["t1_ns"] - decode["t0_ns"]).sort_values()
        token = int(decode.loc[lengths.index[len(lengths) // 2], "i"])
        frames.append(spans(calls, layer_rows, reads, token).assign(rung=name, token=token))
    frame = pd.concat(frames, ignore_index=True).assign(how=MEASURED)
    caption = (
        f"One decoded token of each rung (the one of median length of a run), all on the same time axis; numbers: "
        f"layers. Recording every read costs time itself. {flash_text(run.rows)} {drawn_from([run.name])}"
    )
    return FigureData(frame, f"Scheduling of one token: {run.document['model']['name']}", caption, run.labels)


def with_reads(runs: Runs) -> list[RecordedRun]:
    """Ladders whose recording holds single reads."""
    return [r for r in runs.ladders if (r.folder / "telemetry-io.parquet").is_file()]


def draw(given: FigureData) -> Figure:
    """One strip per rung."""
    frame = given.frame
    names = list(dict.fromkeys(frame["rung"]))
    tracks = [frame.loc[frame["rung"] == name, "track"].nunique() + 1.2 for name in names]
    figure, axes = sheet(
        given, (9.6, 1.3 + 0.19 * sum(tracks)), nrows=len(names), sharex=True, squeeze=False, height_ratios=tracks
    )
    for ax, name in zip(axes[:, 0], names, strict=True):
        own = frame[frame["rung"] == name]
        draw_spans(ax, own)
        call_ms = own.loc[(own["track"] == COMPUTE) & (own["kind"] == "dense"), "width_ms"].iloc[0]
        ax.set_title(f"{name}: {call_ms:.3g} ms", pad=3)
    ends = frame.loc[frame["kind"] == "dense", "width_ms"]
    axes[0, 0].set_xlim(0, ends.max())
    axes[-1, 0].set_xlabel("ms since the token's start")
    axes[0, 0].legend(handles=legend(), ncols=5, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
    return figure
