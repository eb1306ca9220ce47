"""The `workbench` command: one module per subcommand, imported only when used."""

from __future__ import annotations

import importlib
import sys

import click

from workbench.errors import WorkbenchError

COMMANDS = {
    "demo": "the ablation ladder on the embedded model, under emulated phone flash",
    "run": "generate text with any toggles and print the telemetry summary",
    "ablate": "the ablation ladder on your model, each rung checked against stock",
    "eval": "task scores through lm-eval, with chance and trivial strategies beside them",
    "compare": "the four levels of lossless between two models or two configurations",
    "figures": "the paper's figures from recorded runs, reproducible byte for byte",
    "device": "suites on phones, boards and other machines, recorded; targets and how far each is verified",
    "inspect": "layers, experts, bytes per expert, layout, reads per expert",
    "pack": "write the expert-contiguous GGUF",
    "unpack": "restore the original GGUF from a packed one, byte for byte",
    "quantize": "quantize by a recipe, with an importance matrix, packed in the same pass if asked",
    "synth": "write a synthetic MoE GGUF of any shape",
    "bench": "benchmarks: medians and ratios of interleaved runs",
    "iobench": "what this disk gives the read lanes",
    "doctor": "what this machine can do, and what to do about the rest",
}


class LazyGroup(click.Group):
    """A click group whose subcommands live in `workbench.cli.<name>.command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"workbench.cli.{name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup)
@click.version_option(package_name="les-workbench")
def cli() -> None:
    """Lossless on-device Mixture-of-Experts inference: run, measure, prove."""


def main() -> None:
    """Entry point: a `WorkbenchError` is one clear sentence and exit code 2."""
    try:
        cli()
    except WorkbenchError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
