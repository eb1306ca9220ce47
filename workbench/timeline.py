"""One token as it happened: layers of compute with their waits, and one track per read lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError
from workbench.telemetry import Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DENSE, EXPERTS, WAIT, DEMAND, PREFETCH = "#BBBBBB", "#0072B2", "#D55E00", "#E69F00", "#009E73"


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

    if recording.io is None or recording.layers is None:
        raise WorkbenchError("the timeline needs telemetry='io'")
    call = recording.decode[recording.decode["i"] == token]
    if call.empty:
        raise WorkbenchError(f"token {token}: the run has {len(recording.decode)} decode calls")
    t0, t1 = int(call["t0_ns"].iloc[0]), int(call["t1_ns"].iloc[0])
    layers = recording.layers[(recording.layers["phase"] == "decode") & (recording.layers["i"] == token)]
    reads = recording.io[(recording.io["start_ns"] < t1) & (recording.io["end_ns"] > t0)]
    lanes = sorted(int(lane) for lane in reads["lane"].unique())

    def span(start: Any, end: Any) -> tuple[float, float]:
        return (int(start) - t0) / 1e6, (int(end) - int(start)) / 1e6

    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(9.0, 1.5 + 0.28 * len(lanes)), dpi=140)
        ax = figure.subplots()
        ax.broken_barh([span(t0, t1)], (-0.4, 0.8), color=DENSE)
        for row in layers.to_dict("records"):
            start, width = span(row["t0_ns"], row["t1_ns"])
            ax.broken_barh([(start, width)], (-0.4, 0.8), color=EXPERTS)
            ax.broken_barh([(start, row["stall_ns"] / 1e6)], (-0.4, 0.35), color=WAIT)
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
        ax.set_title(
            f"Token {token}, {kind} flash (numbers: layers; waits are drawn at a layer's start)", loc="left", fontsize=8
        )
        legend = {"dense": DENSE, "experts": EXPERTS, "wait": WAIT, "demand read": DEMAND, "prefetch": PREFETCH}
        patches = [Patch(color=c, label=name) for name, c in legend.items()]
        figure.legend(handles=patches, ncols=5, loc="lower right", frameon=False, fontsize=7)
        figure.subplots_adjust(left=0.08, right=0.99, top=0.86, bottom=0.32)
    return figure
