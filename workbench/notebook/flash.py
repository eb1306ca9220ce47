"""Which flash the panel's runs read: this machine's, or an emulated one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as w

PHONE_BYTES_S, PHONE_LATENCY_NS = 905_000_000, 76_930
"""The embedded model's emulated phone flash as derived on a 2-core cloud machine (`workbench demo` derives another)."""


class FlashChoice(w.HBox):
    """Emulated or native flash, shared by both sides.

    Parameters
    ----------
    values
        Toggles to start from.
    emulated
        Start with the emulated phone flash unless `values` choose one.
    """

    def __init__(self, values: Mapping[str, Any], *, emulated: bool) -> None:
        bandwidth, latency = values.get("emulate_bandwidth_bytes_s"), values.get("emulate_latency_ns")
        narrow = w.Layout(width="126px")
        chosen = bool(bandwidth) if bandwidth is not None else emulated
        self.kind = w.Dropdown(
            options=["emulated", "native"],
            value="emulated" if chosen else "native",
            description="flash",
            layout=w.Layout(width="150px"),
            style={"description_width": "34px"},
        )
        self.bandwidth = w.FloatText(
            value=(bandwidth or PHONE_BYTES_S) / 1e9,
            description="GB/s",
            step=0.1,
            layout=narrow,
            style={"description_width": "38px"},
        )
        self.latency = w.FloatText(
            value=(PHONE_LATENCY_NS if latency is None else latency) / 1e3,
            description="µs",
            step=10,
            layout=narrow,
            style={"description_width": "24px"},
        )
        super().__init__([self.kind, self.bandwidth, self.latency])
        self.kind.observe(lambda _change: self._hide(), names="value")
        self._hide()

    @property
    def toggles(self) -> dict[str, int]:
        """The emulation toggles; empty for this machine's own flash."""
        if self.kind.value == "native":
            return {}
        return {
            "emulate_bandwidth_bytes_s": round(self.bandwidth.value * 1e9),
            "emulate_latency_ns": round(self.latency.value * 1e3),
        }

    def on_change(self, call: Callable[[], object]) -> None:
        """Call when another flash is chosen."""
        for control in (self.kind, self.bandwidth, self.latency):
            control.observe(lambda _change: call(), names="value")

    def _hide(self) -> None:
        shown = None if self.kind.value == "emulated" else "none"
        self.bandwidth.layout.display = self.latency.layout.display = shown
