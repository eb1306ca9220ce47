"""One token as it happened: layers of compute with their waits, and one track per read lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError
from workbench.telemetry import Recording, spans_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DENSE, EXPERTS, WAIT, DEMAND, PREFETCH = "#BBBBBB", "#0072B2", "#D55E00", "#E69F00", "#009E73"


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
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from workbench.ablation.figure import RC

    t0, t1 = token_call(recording, token)
    assert recording.io is not None
    assert recording.layers is not None
    layers = recording.layers[(recording.layers["phase"] == "decode") & (recording.layers["i"] == token)]
    reads = recording.io[(recording.io["start_ns"] < t1) & (recording.io["end_ns"] > t0)]
    lanes = sorted(int(lane) for lane in reads["lane"].unique())

    def span(start: Any, end: Any) -> tuple[float, float]:
        return (int(start) - t0) / 1e6, (int(end) - int(start)) / 1e6

    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(9.0, 1.5 + 0.28 * len(lanes)), dpi=140)
        ax = figure.subplots()
        ax.broken_barh([span(t0, t1)], (-0.4, 0.8), color=DENSE)
        known_waits = True
        for row in layers.to_dict("records"):
            start, width = span(row["t0_ns"], row["t1_ns"])
            ax.broken_barh([(start, width)], (-0.4, 0.8), color=EXPERTS)
            waits = [span(begin, end) for begin, end, _ in spans_of(row["wait_spans"])]
            ax.broken_barh(waits or [(start, row["stall_ns"] / 1e6)], (-0.4, 0.35), color=WAIT)
            known_waits = known_waits and bool(waits or not row["stall_ns"])
            ax.text(start + width / 2, 0.55, str(row["layer"]), ha="center", va="bottom", fontsize=6)
        for source, colour in (("demand", DEMAND), ("prefetch", PREFETCH)):
            for n, lane in enumerate(lanes):
                chosen = reads[(reads["lane"] == lane) & (reads["source"] == source)]
                bars = [span(r["start_ns"], r["end_ns"]) for r in chosen.to_dict("records")]
                ax.broken_barh(bars, (-1.4 - n, 0.8), color=colour, edgecolor="white", linewidth=0.3)
        ax.set_yticks([0, *(-1 - n for n in range(len(lanes)))], ["compute", *(f"lane {lane}" for lane in lanes)])
        ax.set_xlim(0, (t1 - t0) / 1e6)
        ax.set_xlabel("ms")
        kind = recording.header["flash"]["kind"]
        note = "numbers: layers" + ("" if known_waits else "; waits are drawn at a layer's start")
        ax.set_title(f"Token {token}, {kind} flash ({note})", loc="left", fontsize=8)
        legend = {"dense": DENSE, "experts": EXPERTS, "wait": WAIT, "demand read": DEMAND, "prefetch": PREFETCH}
        patches = [Patch(color=c, label=name) for name, c in legend.items()]
        figure.legend(handles=patches, ncols=5, loc="lower right", frameon=False, fontsize=7)
        figure.subplots_adjust(left=0.08, right=0.99, top=0.86, bottom=0.32)
    return figure
