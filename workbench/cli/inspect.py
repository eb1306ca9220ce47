"""`workbench inspect`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import pandas as pd

    from workbench.storage.inspect import ModelSummary


@click.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document: {summary, layers}.")
@click.option(
    "--record", type=click.Path(path_type=Path), help="Record where expert bytes lie, for `workbench figures` (JSON)."
)
def command(model: str, as_json: bool, record: Path | None) -> None:
    """Show MODEL's layers, experts, bytes per expert, layout and reads per expert."""
    from workbench.models import resolve_model
    from workbench.storage.gguf_file import open_gguf
    from workbench.storage.inspect import inspect, layout_record, summarize

    file = open_gguf(resolve_model(model))
    summary, layers = summarize(file), inspect(file)
    if record:
        from workbench.ablation.results import to_json
        from workbench.ablation.store import write_atomic

        write_atomic(record, to_json(layout_record(file), indent=1) + "\n")
    if as_json:
        click.echo(json.dumps({"summary": dataclasses.asdict(summary), "layers": layers.to_dict("records")}))
    else:
        _show(summary, layers)


def _show(summary: ModelSummary, layers: pd.DataFrame) -> None:
    import pandas as pd
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"{summary.name or summary.path}: {summary.arch}, {summary.layout} layout", markup=False)
    console.print(
        f"{summary.n_moe_layer} of {summary.n_layer} layers with {summary.n_expert} experts, "
        f"{summary.n_expert_used} per token; file {summary.file_bytes / 1e6:,.1f} MB: "
        f"experts {summary.all_experts_bytes / 1e6:,.1f} MB, the rest {summary.dense_bytes / 1e6:,.1f} MB",
        highlight=False,
    )
    console.print(
        f"a token reads {summary.expert_bytes_per_token / 1e6:,.2f} MB of experts in {summary.reads_per_token} reads",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = layers.drop(columns="layout")
    for name in shown.columns:
        numeric = pd.api.types.is_numeric_dtype(shown[name])
        table.add_column(name.replace("_", "\n"), justify="right" if numeric else "left")
    for row in shown.itertuples(index=False):
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    console.print(table)
