"""One token as it happened: layers of compute with their waits, and one track per read lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.errors import WorkbenchError
from workbench.telemetry import Recording, spans_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

COMPUTE = "compute"
LOOK = {
    "dense": ("#C8C8C8", ""),
    "experts": ("#0173B2", ""),
    "wait": ("#D55E00", "xxxx"),
    "demand": ("#DE8F05", "////"),
    "prefetch": ("#029E73", "...."),
}
"""Kind of span → colour and hatch."""


def spans(tokens: pd.DataFrame, layers: pd.DataFrame, io: pd.DataFrame, token: int) -> pd.DataFrame:
    """Everything that happened in decode call `token` of one run.

    Parameters
    ----------
    tokens, layers, io
        As in `Recording`.

    Returns
    -------
    DataFrame
        `track` (`compute` or `lane N`), `kind` (a key of `LOOK`), `start_ms` and `width_ms` from the call's start,
        `layer`, `bytes` (reads only). Recordings without the places of waits have them at their layer's start.

    Raises
    ------
    WorkbenchError
        If the run has no such token.
    """
    calls = tokens[tokens["phase"] == "decode"]
    call = calls[calls["i"] == token]
    if call.empty:
        raise WorkbenchError(f"token {token}: the run has {len(calls)} decode calls")
    t0, t1 = int(call["t0_ns"].iloc[0]), int(call["t1_ns"].iloc[0])

    def span(track: str, kind: str, start: Any, end: Any, **more: Any) -> dict[str, Any]:
        start_ms, width_ms = (int(start) - t0) / 1e6, (int(end) - int(start)) / 1e6
        return {"track": track, "kind": kind, "start_ms": start_ms, "width_ms": width_ms} | more

    rows = [span(COMPUTE, "dense", t0, t1)]
    for row in layers[(layers["phase"] == "decode") & (layers["i"] == token)].to_dict("records"):
        rows.append(span(COMPUTE, "experts", row["t0_ns"], row["t1_ns"], layer=row["layer"]))
        waits = spans_of(row.get("wait_spans")) or [(row["t0_ns"], row["t0_ns"] + row["stall_ns"], 0)]
        rows += [span(COMPUTE, "wait", begin, end, layer=row["layer"]) for begin, end, _ in waits]
    for row in io[(io["start_ns"] < t1) & (io["end_ns"] > t0)].sort_values(["lane", "start_ns"]).to_dict("records"):
        more = {"layer": row["layer"], "bytes": row["bytes"]}
        rows.append(span(f"lane {row['lane']}", row["source"], row["start_ns"], row["end_ns"], **more))
    return pd.DataFrame(rows)


def draw_spans(axes: Axes, frame: pd.DataFrame) -> None:
    """Draw `spans` on axes."""
    lanes = sorted({t for t in frame["track"] if t != COMPUTE}, key=lambda t: int(t.split()[1]))
    level = {COMPUTE: 0} | {lane: -1 - n for n, lane in enumerate(lanes)}
    for kind, (colour, hatch) in LOOK.items():
        for track, rows in frame[frame["kind"] == kind].groupby("track"):
            height = 0.35 if kind == "wait" else 0.8
            bars = list(zip(rows["start_ms"], rows["width_ms"], strict=True))
            axes.broken_barh(
                bars, (level[str(track)] - 0.4, height), facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0.3
            )
    for row in frame[frame["kind"] == "experts"].to_dict("records"):
        middle = row["start_ms"] + row["width_ms"] / 2
        axes.text(middle, 0.48, f"{row['layer']:.0f}", ha="center", va="bottom", fontsize=6)
    axes.set_yticks(list(level.values()), list(level))
    axes.set_ylim(min(level.values()) - 0.6, 0.95)


def legend() -> list[Patch]:
    """Legend entries for `draw_spans`."""
    from matplotlib.patches import Patch

    names = {"demand": "demand read", "prefetch": "prefetch read"}
    return [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=names.get(kind, kind))
        for kind, (colour, hatch) in LOOK.items()
    ]


def token_call(recording: Recording, token: int) -> tuple[int, int]:
    """Start and end of decode call `token`, ns.

    Raises
    ------
    WorkbenchError
        If the run was recorded below telemetry level io, or has no such token.
    """
    if recording.io is None or recording.layers is None:
        raise WorkbenchError("the timeline needs telemetry='io' and experts='flash'")
    call = recording.decode[recording.decode["i"] == token]
    if call.empty:
        raise WorkbenchError(f"token {token}: the run has {len(recording.decode)} decode calls")
    return int(call["t0_ns"].iloc[0]), int(call["t1_ns"].iloc[0])


def token_spans(recording: Recording, token: int = 0) -> dict[str, Any]:
    """What happened in decode call `token`, for drawing.

    Returns
    -------
    dict
        `title`; `duration_us`; `tracks` (names); `spans`, each with `track` (index), `kind` (dense, layer, wave, wait,
        demand, prefetch), `t0` and `t1` in µs from the call's start, `name` and `details` (pairs of name and value).

    Raises
    ------
    WorkbenchError
        As `token_call`.
    """
    t0, t1 = token_call(recording, token)
    assert recording.io is not None
    assert recording.layers is not None
    reads = recording.io[(recording.io["start_ns"] < t1) & (recording.io["end_ns"] > t0)]
    layers = recording.layers[(recording.layers["phase"] == "decode") & (recording.layers["i"] == token)]
    lanes = sorted(int(lane) for lane in reads["lane"].unique())
    spans: list[dict[str, Any]] = []

    def add(track: int, kind: str, start_ns: int, end_ns: int, name: str, **details: Any) -> None:
        begin, end = (int(start_ns) - t0) / 1e3, (int(end_ns) - t0) / 1e3
        shown = [["took", f"{end - begin:,.0f} µs"], *([k.replace("_", " "), str(v)] for k, v in details.items())]
        spans.append({"track": track, "kind": kind, "t0": begin, "t1": end, "name": name, "details": shown})

    left = t0
    for row in layers.to_dict("records"):
        number = f"layer {row['layer']}"
        predicted = "nothing" if row["predicted"] is None else list(row["predicted"])
        routed = [list(experts) for experts in row["routed"]]
        add(0, "dense", left, row["t0_ns"], f"{number}: attention and router", then="the router has chosen")
        add(0, "layer", row["t0_ns"], row["t1_ns"], number, routed=_ids(routed), predicted=_ids(predicted),
            cached=row["hits"], waves=row["waves"], stall=f"{row['stall_ns'] / 1e3:,.0f} µs")  # fmt: skip
        for n, (begin, end, experts) in enumerate(spans_of(row["wave_spans"]), start=1):
            add(1, "wave", begin, end, f"{number}, wave {n}", experts=experts)
        waits = spans_of(row["wait_spans"])
        for begin, end, _ in waits:
            add(2, "wait", begin, end, f"{number}: waiting for reads")
        if row["stall_ns"] and not waits:
            add(2, "wait", row["t0_ns"], row["t0_ns"] + row["stall_ns"], f"{number}: waited", when="not recorded")
        left = row["t1_ns"]
    add(0, "dense", left, t1, "output layer")
    for row in reads.to_dict("records"):
        queued = f"{(row['start_ns'] - row['queue_ns']) / 1e3:,.0f} µs"
        add(3 + lanes.index(int(row["lane"])), row["source"], row["start_ns"], row["end_ns"],
            f"layer {row['layer']}, {row['source']} read", experts=_ids(row["experts"]),
            size=f"{row['bytes'] / 1e3:,.0f} kB", queued=queued)  # fmt: skip
    kind = recording.header["flash"]["kind"]
    return {
        "title": f"Token {token} · {kind} flash · {recording.header['model']['file']}",
        "duration_us": (t1 - t0) / 1e3,
        "tracks": ["layers", "waves", "waits", *(f"lane {lane}" for lane in lanes)],
        "spans": spans,
    }


def _ids(value: Any) -> str:
    return str(value).replace("[", "").replace("]", "")


def draw(recording: Recording, token: int = 0) -> Figure:
    """Draw decode call `token`.

    Raises
    ------
    WorkbenchError
        If the run was recorded below telemetry level io, or has no such token.
    """
    from matplotlib.figure import Figure

    from workbench.figures.sheet import style

    token_call(recording, token)
    assert recording.io is not None
    assert recording.layers is not None
    frame = spans(recording.tokens, recording.layers, recording.io, token)
    with style():
        figure = Figure(figsize=(9.0, 1.5 + 0.28 * (frame["track"].nunique() - 1)), dpi=140, layout="constrained")
        ax = figure.subplots()
        draw_spans(ax, frame)
        ax.set_xlim(0, frame["width_ms"].iloc[0])
        ax.set_xlabel("ms")
        kind = recording.header["flash"]["kind"]
        ax.set_title(f"Token {token}, {kind} flash (numbers: layers)")
        figure.legend(handles=legend(), ncols=5, loc="outside lower right")
    return figure
