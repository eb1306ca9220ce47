"""`workbench iobench`: bandwidth by lanes and read size."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("iobench")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--lanes",
    multiple=True,
    type=click.IntRange(1, 64),
    default=(1, 2, 4, 8),
    show_default=True,
    help="Concurrent reads.",
)
@click.option(
    "--kib", multiple=True, type=click.IntRange(4), default=(64, 256, 1024, 4096), show_default=True, help="Read size."
)
@click.option("--seconds", default=0.5, show_default=True, help="Time per combination.")
@click.option("--buffered", is_flag=True, help="Through the page cache instead of direct reads.")
def command(file: Path, lanes: tuple[int, ...], kib: tuple[int, ...], seconds: float, buffered: bool) -> None:
    """Random reads over FILE (a model) by the runtime's own lanes; a table, then one JSON line."""
    from rich.console import Console
    from rich.table import Table
    from tqdm import tqdm

    from workbench.iobench import iobench

    cells = [(n, k) for k in kib for n in lanes]
    results = {
        (n, k): iobench(file, lanes=n, block_bytes=k << 10, seconds=seconds, direct=not buffered)
        for n, k in tqdm(cells, desc="iobench")
    }
    direct = all(r["direct"] for r in results.values())
    mode = "direct" if direct else "buffered" if buffered else "buffered: direct reads are refused where this file lies"
    table = Table(title=f"{file.name}: MB/s, random reads, {mode}, native flash")
    table.add_column("read size")
    for n in lanes:
        table.add_column(f"{n} lane{'s' if n > 1 else ''}", justify="right")
    for k in kib:
        table.add_row(f"{k} KiB", *(f"{results[n, k]['bytes_s'] / 1e6:,.0f}" for n in lanes))
    Console().print(table)
    click.echo(json.dumps({"file": file.name, "mode": mode, "results": list(results.values())}))
