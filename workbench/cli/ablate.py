"""`workbench ablate`: the ablation ladder on one's own model."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from workbench.ablation.suites import PHONE, Suite, load_suite
from workbench.cli.eval import SUITES

INTERRUPTED = 130


@click.command("ablate")
@click.argument("model")
@click.option("--suite", type=click.Path(path_type=Path), help="Suite file (YAML or JSON); default: the whole ladder.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder; default: runs/ablate-MODEL.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the JSON document here.")
@click.option("--repeats", type=click.IntRange(1), help="Timed repeats per rung.")
@click.option("--tokens", type=click.IntRange(2), help="Tokens generated per prompt.")
@click.option("--prompt", "prompts", multiple=True, help="Prompt (real text); may be given several times.")
@click.option("--packed", type=click.Path(path_type=Path, exists=True), help="The model's packed form, if you have it.")
@click.option("--draft", type=click.Path(path_type=Path, exists=True), help="The DSpark drafter trained for MODEL.")
@click.option(
    "--emulate-bandwidth",
    "bandwidth",
    metavar="BYTES_S|phone",
    help="Emulate flash of this bandwidth (bytes/s), or 'phone': keep the ratios of the article's phone. "
    "Reads go through the page cache then, unless the suite says otherwise.",
)
@click.option("--emulate-latency-ns", type=click.IntRange(0), help="Emulated flash: latency per request, ns.")
@click.option("--calibration", type=click.Path(), help="Text for the importance matrix of rungs that quantize.")
@click.option("--held-out", type=click.Path(), help="Text to measure on what quantization lost.")
@click.option(
    "--eval",
    "suite_of_tasks",
    type=click.Choice(SUITES),
    help="Also judge quantized rungs by distribution and tasks of this suite (levels 3 and 4 of `workbench compare`).",
)
@click.option("--eval-limit", type=click.IntRange(1), help="Items per task for --eval.")
@click.option("--timeout", "timeout_s", type=float, help="Limit of a single run, s; a run beyond it fails its rung.")
@click.option("--fresh", is_flag=True, help="Measure again instead of resuming the run folder.")
def command(
    model: str,
    suite: Path | None,
    out: Path | None,
    json_path: Path | None,
    repeats: int | None,
    tokens: int | None,
    prompts: tuple[str, ...],
    packed: Path | None,
    draft: Path | None,
    bandwidth: str | None,
    emulate_latency_ns: int | None,
    calibration: str | None,
    held_out: str | None,
    suite_of_tasks: str | None,
    eval_limit: int | None,
    timeout_s: float | None,
    fresh: bool,
) -> None:
    """Run the ablation ladder on MODEL (a GGUF with experts, or owner/repo:file.gguf on the hub).

    Every rung runs in its own process: once fed the reference's tokens, to compare all logits with stock llama.cpp,
    then timed in interleaved repeats. Finished runs are kept in the run folder; the same command resumes an
    interrupted ladder. A rung that fails is a row that says why.

    Prints a table, then ONE JSON document as the last line. Exit code: 0; 1 when a rung failed or differs.
    """
    from workbench.models import resolve_model

    path = resolve_model(model)
    chosen = load_suite(suite) if suite else Suite()
    values: dict[str, Any] = {"repeats": repeats, "tokens": tokens, "prompts": prompts or None}
    values["drafter"] = str(draft) if draft else None
    values |= {"calibration": calibration, "held_out": held_out}
    chosen = replace(chosen, **{k: v for k, v in values.items() if v is not None})
    if bandwidth is not None or emulate_latency_ns is not None:
        base = {"io": "buffered"} | dict(chosen.base)  # the real reads must be faster than the emulated ones
        chosen = replace(chosen, flash=flash_toggles(bandwidth, emulate_latency_ns), base=base)
    perform(
        path,
        chosen,
        out or Path("runs") / f"ablate-{path.stem}",
        json_path=json_path,
        packed=packed,
        suite_of_tasks=suite_of_tasks,
        eval_limit=eval_limit,
        timeout_s=timeout_s,
        fresh=fresh,
    )


def flash_toggles(bandwidth: str | None, latency_ns: int | None) -> dict[str, int] | str:
    """Command-line emulation options → a suite's `flash`."""
    if bandwidth == PHONE:
        if latency_ns is not None:
            raise click.UsageError("--emulate-bandwidth phone chooses the latency itself")
        return PHONE
    if bandwidth is None:
        raise click.UsageError("--emulate-latency-ns needs --emulate-bandwidth")
    try:
        value = int(float(bandwidth))
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise click.UsageError(f"--emulate-bandwidth {bandwidth}: bytes per second, or 'phone'")
    return {"emulate_bandwidth_bytes_s": value, "emulate_latency_ns": latency_ns or 0}


def perform(
    model: Path,
    suite: Suite,
    folder: Path,
    *,
    json_path: Path | None = None,
    packed: Path | None = None,
    suite_of_tasks: str | None = None,
    eval_limit: int | None = None,
    timeout_s: float | None = None,
    fresh: bool = False,
    closing: str | None = None,
) -> None:
    """Run, print the table, the figure's path and the JSON document; exit 1 when a rung failed or differs."""
    from workbench.ablation.figure import save
    from workbench.ablation.ladder import run_ladder
    from workbench.ablation.results import sound, to_json
    from workbench.ablation.store import write_atomic
    from workbench.ablation.table import print_ladder

    try:
        with progress_bar() as progress:
            ladder = run_ladder(
                model,
                suite,
                folder,
                packed=packed,
                fresh=fresh,
                timeout_s=timeout_s,
                say=lambda text: click.echo(text + "\n"),
                progress=progress,
            )
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted: finished runs are in {folder}; the same command goes on from there", err=True)
        sys.exit(INTERRUPTED)
    document = ladder.document
    figures = save(document, folder)
    print_ladder(document)
    _levels(ladder, model, folder, suite_of_tasks, eval_limit)
    write_atomic(folder / "results.json", to_json(document, indent=1) + "\n")
    if ladder.reused:
        click.echo(f"\nResumed: {ladder.reused} runs were in {folder} already, {ladder.ran} were made (--fresh: all).")
    click.echo(f"\nFigure: {figures['png']} (and .pdf); data, manifest and telemetry are beside it.")
    if closing:
        click.echo(closing)
    if json_path:
        write_atomic(json_path, to_json(document, indent=1) + "\n")
    click.echo(to_json(document))
    if not sound(document["rows"]):
        sys.exit(1)


def _levels(ladder: Any, model: Path, folder: Path, suite: str | None, limit: int | None) -> None:
    """Judge every rung by the level it belongs to, and print one line each."""
    from workbench.evals.rungs import judge, lines

    document = ladder.document
    judge(
        document,
        model,
        {variant: folder / report["target"] for variant, report in document.get("quantized", {}).items()},
        suite=suite,
        limit=limit,
        root=folder / "evals",
        say=lambda text: click.echo(text, err=True),
    )
    click.echo("\nLossless, level by level")
    for line in lines(document):
        click.echo(f"  {line}")
    if document.get("size_score"):
        from workbench.evals.figure import save_size_score

        click.echo(f"  Figure: {save_size_score(document['size_score'], folder / 'size-score.png')}")


@contextlib.contextmanager
def progress_bar() -> Iterator[Any]:
    """A bar over the runs of a ladder."""
    from tqdm import tqdm

    with tqdm(total=0, unit="run", desc="ladder", file=sys.stderr, dynamic_ncols=True) as bar:

        def start(total: int) -> Any:
            bar.reset(total=total)

            def finished(label: str) -> None:
                bar.set_postfix_str(label, refresh=False)
                bar.update()

            return finished

        yield start
