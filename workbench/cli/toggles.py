"""Command-line options for every toggle, generated from `RunConfig`: one vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import click

from workbench.config import RunConfig


def toggle_options(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add one option per `RunConfig` field; `defaults` replace the field's own."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for f in reversed(dataclasses.fields(RunConfig)):
            default = defaults.get(f.name, f.default)
            flag = "--" + f.name.replace("_", "-")
            kind: dict[str, Any] = {"type": type(default)}
            if f.metadata["choices"]:
                kind = {"type": click.Choice(f.metadata["choices"])}
            elif isinstance(default, bool):
                flag, kind = f"{flag}/--no-{f.name.replace('_', '-')}", {}
            function = click.option(flag, f.name, default=default, show_default=True, help=f.metadata["help"], **kind)(
                function
            )
        return function

    return decorate


def take_config(values: dict[str, Any]) -> RunConfig:
    """Pop the toggles out of a command's keyword arguments."""
    names = [f.name for f in dataclasses.fields(RunConfig)]
    return RunConfig.from_dict({name: values.pop(name) for name in names})
