"""Power, temperature and memory over a run, beside what the article reports of power and temperature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.figures.reported import REPORTED, article
from workbench.figures.runs import NotMeasured, RecordedRun, Runs
from workbench.figures.sheet import (
    BLUE,
    GREY,
    MEASURED,
    ORANGE,
    RED,
    FigureData,
    absent,
    drawn_from,
    measured,
    reported,
    sheet,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOW = "workbench device run SUITE --target TARGET, on a device with a battery rail or an external meter"
QUANTITIES = {"power_w": 1.0, "battery_temp_c": 1.0, "memory_bytes": 1e-6}
MOST_POINTS = 1500


def data(runs: Runs) -> FigureData:
    """The recorded run with the most power samples."""
    values = article()["power"]
    theirs = (
        f"the article reports {values['load_w_low']:.2f}–{values['load_w_high']:.2f} W, {values['idle_screen_on_w']} W "
        f"idle with the screen on, +{values['rise_c']} °C after {values['after_s']} s"
    )
    sampled = {r.folder: r for r in runs.documents if (r.folder / "samples.parquet").is_file()}
    run = runs.choose("power", sampled.values(), _n_power)
    rows = [] if run is None else _rows(run)
    if run is None or not rows:
        raise NotMeasured(f"no recorded run sampled power, temperature or memory ({theirs})", HOW)
    marks = [
        {"quantity": "power_w", "mark": "load", "low": values["load_w_low"], "high": values["load_w_high"]},
        {"quantity": "power_w", "mark": "idle", "low": values["idle_screen_on_w"], "high": values["idle_screen_on_w"]},
        {"quantity": "battery_temp_c", "mark": "rise", "low": values["rise_c"], "high": values["rise_c"]},
    ]
    frame = pd.DataFrame([*rows, *({**m, "how": REPORTED} for m in marks)])
    there = {r["quantity"] for r in rows}
    labels = sorted({*run.labels} | (set() if {"power_w", "battery_temp_c"} <= there else {"not measured"}))
    caption = (
        f"Lines: samples as they were read. Hatched and dotted: reported by {article()['source']}: {theirs} (at "
        f"{values['ambient_c']} °C, whole device), another device. {drawn_from([run.name])}"
    )
    return FigureData(frame, f"Power and temperature: {run.name}", caption, labels)


def _n_power(run: RecordedRun) -> float:
    samples = run.samples()
    return 0.0 if samples is None else float(samples.get("power_w", pd.Series(dtype=float)).notna().sum())


def _rows(run: RecordedRun) -> list[dict[str, Any]]:
    samples = run.samples()
    assert samples is not None
    t0 = samples["t_ns"].min()
    rows = []
    for quantity, scale in QUANTITIES.items():
        if quantity not in samples:
            continue
        known = samples[samples[quantity].notna()].sort_values("t_ns")
        step = max(1, len(known) // MOST_POINTS)
        for t_ns, source, value in zip(known["t_ns"], known["source"], known[quantity], strict=True):
            rows.append({"quantity": quantity, "t_s": (int(t_ns) - int(t0)) / 1e9, "source": source,
                         "value": float(value) * scale, "how": MEASURED})  # fmt: skip
        rows[len(rows) - len(known) :] = rows[len(rows) - len(known) :][::step]
    return rows


def draw(given: FigureData) -> Figure:
    """Power, temperature rise, memory."""
    figure, axes = sheet(given, (9.6, 3.3), nrows=1, ncols=3)
    ours, marks = measured(given.frame), reported(given.frame).set_index("mark")[["low", "high"]].T.to_dict()
    load, idle, rise = (marks[m] for m in ("load", "idle", "rise"))
    power, temperature, memory = (ours[ours["quantity"] == q] for q in QUANTITIES)
    _lines(axes[0], power, BLUE, "-", "power of the device")
    axes[0].axhspan(load["low"], load["high"], facecolor="none", edgecolor=GREY, hatch="///", linewidth=0,
                    label=f"reported load: {load['low']:.2f}–{load['high']:.2f} W")  # fmt: skip
    axes[0].axhline(idle["low"], color=GREY, linestyle=":", linewidth=1.5, label=f"reported idle: {idle['low']:.2f} W")
    axes[0].set_ylim(0, max([float(load["high"]), *power["value"]]) * 1.45)
    axes[0].set_title("Power, W")
    axes[0].legend(loc="upper right")
    start = temperature["value"].iloc[0] if len(temperature) else 0.0
    _lines(axes[1], temperature.assign(value=temperature["value"] - start), RED, "--", "temperature")
    axes[1].axhline(
        rise["low"], color=GREY, linestyle=":", linewidth=1.5, label=f"reported after 180 s: +{rise['low']:g} °C"
    )
    axes[1].set_title("Battery temperature since the start, °C")
    axes[1].set_ylim(
        min([0.0, *(temperature["value"] - start)]), max([float(rise["low"]), *(temperature["value"] - start)]) * 1.45
    )
    axes[1].legend(loc="upper right")
    if len(memory):
        _lines(axes[2], memory, ORANGE, "-.", "memory")
        axes[2].set_ylim(bottom=0)
        axes[2].set_title("Memory, MB")
    else:
        absent(axes[2], "memory")
    for ax in axes:
        ax.set_xlabel("s")
    return figure


def _lines(axes: Axes, rows: pd.DataFrame, colour: str, line: str, what: str) -> None:
    if rows.empty:
        axes.text(0.5, 0.12, f"{what}: not measured", transform=axes.transAxes, ha="center", style="italic")
        axes.set_xlim(0, 180)
        return
    for n, (source, own) in enumerate(rows.groupby("source", sort=True)):
        axes.plot(
            own["t_s"], own["value"], line, color=colour, linewidth=1.2, alpha=1.0 - 0.3 * (n % 3), label=str(source)
        )
