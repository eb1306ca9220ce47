"""`workbench bench NAME`."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from workbench.bench import BENCHES


@click.command("bench", epilog="; ".join(f"{name}: {what}" for name, what in BENCHES.items()))
@click.argument("name", type=click.Choice(list(BENCHES)))
@click.option("--repeats", type=click.IntRange(1), help="Interleaved repeats; default: the benchmark's own.")
@click.option("--tokens", type=click.IntRange(2), help="Tokens per run; default: the benchmark's own.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Also record it: bench.json in here.")
def command(name: str, repeats: int | None, tokens: int | None, out: Path | None) -> None:
    """Run a benchmark: a table, then ONE JSON document with `ratio` as the last line. Wants an idle machine."""
    from workbench.bench.common import recorded_in

    chosen = {k: v for k, v in (("repeats", repeats), ("tokens", tokens)) if v is not None}
    with recorded_in(out):
        importlib.import_module(f"workbench.bench.{name}").run(**chosen)
