"""`workbench figures`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from workbench.figures import FIGURES

if TYPE_CHECKING:
    from workbench.figures.build import Built


@click.command("figures", epilog="; ".join(f"{name}: {what}" for name, what in FIGURES.items()))
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    help="Folder of recorded runs, or one run; default: device_runs/recorded.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default="runs/figures", show_default=True, help="Folder for the figures."
)
@click.option("--only", "names", multiple=True, type=click.Choice(list(FIGURES)), help="Only this figure; repeatable.")
def command(runs: Path | None, out: Path, names: tuple[str, ...]) -> None:
    """Draw the paper's figures from recorded runs only: PNG, PDF, SVG and the CSV that each drew.

    Equal runs give equal bytes. What the runs do not hold is not drawn but listed as not measured, with the command
    that records it. Reported values of others are marked as such and never mixed with measured ones.

    Prints a table, then ONE JSON document as the last line.
    """
    from workbench.figures.build import build

    made = build(runs, out, names)
    _show(made)
    click.echo(f"\nFigures: {out}")
    document = [
        {
            "figure": b.name,
            "files": [p.name for p in b.files],
            "labels": list(b.labels),
            "not_measured": b.reason or None,
        }
        | {"run": b.how or None, "passed_over": list(b.passed_over)}
        for b in made
    ]
    click.echo(json.dumps({"out": str(out), "figures": document}, ensure_ascii=False))


def _show(made: Sequence[Built]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title_justify="left")
    table.add_column("figure")
    table.add_column("state")
    table.add_column("labels, or what to run", overflow="fold")
    for b in made:
        if b.files:
            also = f"; could be drawn as well from: {', '.join(b.passed_over)}" if b.passed_over else ""
            table.add_row(b.name, "drawn", escape((", ".join(b.labels) or "measured") + also))
        else:
            table.add_row(b.name, "not measured", escape(f"{b.reason}. Run: {b.how}"))
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)
