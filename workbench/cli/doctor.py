"""`workbench doctor`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click


@click.command("doctor")
@click.argument("path", type=click.Path(path_type=Path, exists=True), default=Path())
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of the table.")
def command(path: Path, as_json: bool) -> None:
    """Say what this machine can do with models in PATH (a folder or a model), and what to do about the rest.

    Exit code 1 when something essential is missing.
    """
    from workbench.doctor import FAIL, OK, diagnose

    checks = list(diagnose(path))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(check) for check in checks]))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(show_lines=False)
        for column in ("check", "", "finding", "what to do"):
            table.add_column(column)
        for check in checks:
            colour = {OK: "green", FAIL: "bold red"}.get(check.status, "yellow")
            table.add_row(check.name, f"[{colour}]{check.status}[/]", check.detail, check.advice)
        Console().print(table)
    if any(check.status == FAIL for check in checks):
        sys.exit(1)
