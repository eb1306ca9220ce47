"""A widget for every toggle worth touching, made from `RunConfig`: one vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as w

from workbench.config import RunConfig

MAIN = ("experts", "lookahead", "ready_first", "lookahead_width", "cache_slots", "speculation")
MORE = ("draft_model", "draft_max", "draft_adaptive", "io", "lanes", "threads", "temperature", "seed", "telemetry")
_FIELDS = {f.name: f for f in dataclasses.fields(RunConfig)}


class Toggles(w.VBox):
    """The toggles of one side.

    Parameters
    ----------
    values
        Fields of `RunConfig` to start from; those without a control are kept as they are.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._kept = {name: value for name, value in values.items() if name not in MAIN + MORE}
        self.controls = {name: _control(name, values.get(name, _FIELDS[name].default)) for name in MAIN + MORE}
        more = w.Accordion([_grid(self.controls, MORE)], titles=("more toggles",), selected_index=None)
        super().__init__([_grid(self.controls, MAIN), more])
        self.add_class("les-toggles")

    def values(self) -> dict[str, Any]:
        """Field names and values, unchecked."""
        return self._kept | {name: control.value for name, control in self.controls.items()}

    def on_change(self, call: Callable[[], object]) -> None:
        """Call when a control changes."""
        for control in self.controls.values():
            control.observe(lambda _change: call(), names="value")


def _grid(controls: Mapping[str, w.Widget], names: tuple[str, ...]) -> w.Widget:
    columns = w.Layout(grid_template_columns="repeat(2, minmax(0, 1fr))", grid_gap="2px 14px", overflow="hidden")
    return w.GridBox([controls[name] for name in names], layout=columns)


def _control(name: str, value: Any) -> w.Widget:
    field = _FIELDS[name]
    shared: dict[str, Any] = {
        "value": value,
        "description": name,
        "tooltip": field.metadata["help"],
        "style": {"description_width": "104px"},
        "layout": w.Layout(width="auto", min_width="0"),
    }
    if field.metadata["choices"]:
        return w.Dropdown(options=field.metadata["choices"], **shared)
    if isinstance(field.default, bool):
        return w.Checkbox(**(shared | {"indent": True}))
    if isinstance(field.default, int):
        return w.IntText(**shared)
    if isinstance(field.default, float):
        return w.FloatText(step=0.25, **shared)
    return w.Text(**shared)
