"""`workbench unpack`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
def command(source: Path, target: Path, overwrite: bool, progress: bool) -> None:
    """Restore the GGUF that SOURCE was packed from to TARGET, byte for byte.

    If TARGET is a folder the file gets its original name in it. The shards of a split original always keep their names:
    they go into TARGET if it is a folder, else beside it. Every file is checked against the original's SHA-256.
    """
    from workbench.storage.unpack import unpack

    for path in unpack(source, target, overwrite=overwrite, progress=progress):
        click.echo(f"{path}: restored, SHA-256 equal to the original's")
