"""Storage: where gate, up and down of an expert lie in a native and in a packed file, and what fetched them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.figures.runs import NotMeasured, RecordedRun, Runs
from workbench.figures.sheet import (
    BLUE,
    GREEN,
    MEASURED,
    ORANGE,
    PURPLE,
    FigureData,
    absent,
    drawn_from,
    sheet,
    slanted,
)
from workbench.figures.timeline import HOW as READS_HOW
from workbench.figures.timeline import with_reads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOW = "workbench inspect MODEL --record RUNS/NAME/layout-native.json, and the packed file likewise"
LOOK = {"gate": (BLUE, ""), "gate_up": (PURPLE, "xx"), "up": (ORANGE, "///"), "down": (GREEN, "...")}
SHOWN_EXPERTS = 4
LAYOUTS = ("native", "contiguous")


def data(runs: Runs) -> FigureData:
    """The first MoE layer's first experts in both layouts, and reads per expert where reads were recorded."""
    found = {r.document["summary"]["layout"]: r for r in runs.layouts}
    if set(found) < set(LAYOUTS):
        raise NotMeasured("no recorded layout of a native and a packed file", HOW)
    pieces = [piece for layout in LAYOUTS for piece in _pieces(layout, found[layout])]
    reads_run = runs.choose("storage", with_reads(runs), lambda r: len(r.rows))
    reads = [] if reads_run is None else _reads(reads_run)
    document = found["native"].document
    caption = [
        f"Left: the bytes of the first {SHOWN_EXPERTS} of {document['n_expert']} experts of layer {document['layer']} "
        f"as they lie in the two files (numbers: experts); offsets from the layer's first expert byte.",
        "Right: reads over experts fetched in all timed decode calls; adjacent bytes wanted together are one read, "
        "so a packed file can need fewer than one per expert."
        if reads
        else "Reads: not measured.",
        drawn_from(dict.fromkeys([*(r.name for r in found.values()), *([reads_run.name] if reads_run else [])])),
    ]
    frame = pd.concat([pd.DataFrame(pieces), pd.DataFrame(reads)], ignore_index=True).assign(how=MEASURED)
    labels = ["synthetic"] if document["summary"]["synthetic"] else []
    labels += [] if reads else ["not measured"]
    return FigureData(frame, f"Storage layout: {document['summary']['name']}", " ".join(caption), labels)


def _pieces(layout: str, run: RecordedRun) -> list[dict[str, Any]]:
    tensors = run.document["tensors"]
    start = min(t["offset"] for t in tensors)
    end = max(t["offset"] + t["stride_bytes"] * (run.document["n_expert"] - 1) + t["expert_bytes"] for t in tensors)
    return [
        {
            "panel": "offsets",
            "layout": layout,
            "expert": expert,
            "part": t["kind"],
            "type": t["type"],
            "offset_bytes": t["offset"] + expert * t["stride_bytes"] - start,
            "piece_bytes": t["expert_bytes"],
            "region_bytes": end - start,
        }
        for t in tensors
        for expert in range(min(SHOWN_EXPERTS, run.document["n_expert"]))
    ]


def _reads(run: RecordedRun) -> list[dict[str, Any]]:
    """Per rung that reads: reads over fetched experts, and the bytes of one read, from the recorded reads."""
    io, tokens = run.telemetry("io"), run.telemetry("tokens")
    assert io is not None
    assert tokens is not None
    begin_ns = tokens[tokens["phase"] == "decode"].groupby("run_id")["t0_ns"].min()
    io = io[io["start_ns"] >= io["run_id"].map(begin_ns)]
    layouts = {row["rung"]: row["layout"] for row in run.rows}
    rows = []
    for name in dict.fromkeys(io["rung"]):
        own = io[(io["rung"] == name) & (io["kind"] == "timed")]
        fetched = own.groupby(["run_id", "i", "layer"])["experts"].agg(lambda e: len({x for part in e for x in part}))
        rows.append(
            {
                "panel": "reads",
                "layout": layouts.get(name),
                "rung": name,
                "reads": len(own),
                "experts": int(fetched.sum()),
                "reads_per_expert": len(own) / int(fetched.sum()),
                "bytes_per_read": float(own["bytes"].mean()),
            }
        )
    return rows


def draw(given: FigureData) -> Figure:
    """The byte map, reads per expert, bytes per read."""
    figure, axes = sheet(given, (9.6, 3.5), nrows=1, ncols=3, width_ratios=[3.4, 1.2, 1.2])
    frame = given.frame
    _map(axes[0], frame[frame["panel"] == "offsets"])
    reads = frame[frame["panel"] == "reads"]
    if reads.empty:
        absent(axes[1], "reads", READS_HOW, width=24)
        axes[2].set_axis_off()
        return figure
    for ax, key, scale, title in (
        (axes[1], "reads_per_expert", 1.0, "Reads per expert"),
        (axes[2], "bytes_per_read", 1e-3, "kB per read"),
    ):
        packed = (reads["layout"] == "contiguous").tolist()
        bars = ax.bar(
            range(len(reads)),
            reads[key] * scale,
            color=[GREEN if p else BLUE for p in packed],
            hatch=["..." if p else "" for p in packed],
            edgecolor="white",
        )
        ax.bar_label(bars, [f"{v * scale:.3g}" for v in reads[key]], padding=2, fontsize=7)
        ax.margins(y=0.12)
        ax.set_title(title)
        slanted(ax, list(reads["rung"]))
    return figure


def _map(axes: Axes, pieces: pd.DataFrame) -> None:
    from matplotlib.patches import Patch

    for n, layout in enumerate(LAYOUTS):
        own = pieces[pieces["layout"] == layout]
        axes.broken_barh([(0, own["region_bytes"].iloc[0] / 1e6)], (-n - 0.3, 0.6), facecolor="#E8E8E8")
        for row in own.to_dict("records"):
            colour, hatch = LOOK[row["part"]]
            start, width = row["offset_bytes"] / 1e6, row["piece_bytes"] / 1e6
            axes.broken_barh(
                [(start, width)], (-n - 0.3, 0.6), facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0.4
            )
        for expert, rows in own.groupby("expert"):
            spans = rows.sort_values("offset_bytes")
            if layout == "native":
                for _, piece in spans.iterrows():
                    middle = (piece["offset_bytes"] + piece["piece_bytes"] / 2) / 1e6
                    axes.text(middle, -n + 0.34, f"{expert:.0f}", ha="center", va="bottom", fontsize=6)
            else:
                middle = (spans["offset_bytes"].min() + (spans["offset_bytes"] + spans["piece_bytes"]).max()) / 2e6
                axes.text(middle, -n + 0.34, f"{expert:.0f}", ha="center", va="bottom", fontsize=6.5)
    axes.set_yticks([0, -1], ["native", "packed"])
    axes.set_ylim(-1.5, 0.8)
    axes.set_xlabel("offset in the layer's expert bytes, MB")
    kinds = [kind for kind in LOOK if kind in set(pieces["part"])]
    handles = [Patch(facecolor=LOOK[k][0], hatch=LOOK[k][1], edgecolor="white", label=k) for k in kinds]
    handles.append(Patch(facecolor="#E8E8E8", label="between them: other experts, other tensors"))
    axes.legend(handles=handles, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2)
