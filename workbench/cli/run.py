"""`workbench run`: text on stdout as it comes, then what it cost."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import click

from workbench.cli.toggles import take_config, toggle_options


@click.command("run")
@click.argument("model")
@click.option("--prompt", "-p", required=True, help="Text to continue.")
@click.option("--tokens", "-n", default=128, show_default=True, help="Tokens to generate at most.")
@click.option("--ignore-eos", is_flag=True, help="Go on after an end-of-text token.")
@click.option("--telemetry-file", type=click.Path(path_type=Path), help="Keep the telemetry (JSON Lines) here.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the summary as JSON here.")
@toggle_options()
def command(
    model: str,
    prompt: str,
    tokens: int,
    ignore_eos: bool,
    telemetry_file: Path | None,
    json_path: Path | None,
    **values: Any,
) -> None:
    """Generate text with MODEL (a GGUF, or owner/repo:file.gguf on the hub) and say what it cost.

    Every toggle of RunConfig is an option. Ctrl-C stops after the current token and keeps what was recorded.
    """
    from workbench.models import resolve_model
    from workbench.runner import InterruptedRun, run_native

    config = take_config(values)
    path = resolve_model(model)
    job: dict[str, Any] = {
        "model": str(path),
        "config": config.to_dict(),
        "run_id": uuid.uuid4().hex[:12],
        "prompt": prompt,
        "n_predict": tokens,
        "ignore_eos": ignore_eos,
    }
    if telemetry_file:
        job["telemetry_path"] = str(telemetry_file)
    click.echo(prompt, nl=False)
    try:
        recording = run_native(job, on_record=lambda record: click.echo(record.get("text") or "", nl=False))
    except InterruptedRun as stopped:
        if stopped.recording is None:
            raise click.Abort from None
        recording = stopped.recording
    click.echo("\n")
    document = _summary(recording)
    if json_path:
        json_path.write_text(json.dumps(document, indent=2) + "\n")


def _summary(recording: Any) -> dict[str, Any]:
    """Print the summary of a run; returns it as a document."""
    from rich.console import Console
    from rich.table import Table

    from workbench.telemetry import summarize

    summary = summarize(recording)
    header = recording.header
    flash = header["flash"]["kind"] if header["io_mode"] else "not read"
    table = Table(title=f"{header['model']['file']} · experts {header['config']['experts']} · flash {flash}")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in summary.items():
        shown = "not measured" if value is None else f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
        table.add_row(name, str(value) if isinstance(value, bool) else shown)
    table.add_row("ended by", str(recording.end["reason"] if recording.end else "crash"))
    Console().print(table)
    return {"config": header["config"], "model": header["model"], "flash": header["flash"], "summary": summary}
