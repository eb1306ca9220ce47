"""`workbench synth`: its options are the fields of `SynthShape`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from workbench.storage.synth import SynthShape, model_bytes, synthesize


def _shape_options(function: Callable[..., None]) -> Callable[..., None]:
    for field in reversed(dataclasses.fields(SynthShape)):
        option = click.option(
            f"--{field.name.replace('_', '-')}",
            default=field.default,
            show_default=True,
            type=type(field.default),
            help=field.metadata["help"].capitalize() + ".",
        )
        function = option(function)
    return function


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@_shape_options
@click.option("--overwrite", is_flag=True, help="Replace TARGET if it exists.")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
def command(target: Path, overwrite: bool, progress: bool, **shape: Any) -> None:
    """Write a synthetic MoE model (qwen3moe) of any shape to TARGET, for benchmarks.

    It speaks no language. Its name and a key in the file say that it is synthetic.
    """
    chosen = SynthShape(**shape)
    synthesize(target, chosen, overwrite=overwrite, progress=progress)
    click.echo(f"{target}: {chosen.label}, {model_bytes(chosen) / 1e6:,.1f} MB of weights")
