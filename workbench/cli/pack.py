"""`workbench pack`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("source")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace TARGET if it exists.")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
def command(source: str, target: Path, overwrite: bool, progress: bool) -> None:
    """Write the expert-contiguous form of SOURCE to TARGET, so that one expert is one read.

    SOURCE is a GGUF, or any shard of a split one. TARGET appears only when it is complete. Stock llama.cpp refuses it;
    `workbench unpack` restores SOURCE byte for byte.
    """
    from workbench.models import resolve_model
    from workbench.storage.inspect import summarize
    from workbench.storage.pack import pack

    original = resolve_model(source)
    pack(original, target, overwrite=overwrite, progress=progress)
    before, after = summarize(original), summarize(target)
    click.echo(
        f"{target}: {after.file_bytes / 1e6:,.1f} MB (source {before.file_bytes / 1e6:,.1f} MB), "
        f"{after.reads_per_token} reads per token instead of {before.reads_per_token}"
    )
