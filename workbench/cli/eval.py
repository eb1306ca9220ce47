"""`workbench eval`: lm-eval in process, with chance, trivial strategies and everything kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from workbench.cli.toggles import take_config, toggle_options

LOCAL_SUITE = "local"
SUITES = (LOCAL_SUITE, "article", "quantization")


@click.command("eval")
@click.argument("model")
@click.option(
    "--suite",
    type=click.Choice(SUITES),
    default=LOCAL_SUITE,
    show_default=True,
    help="local: bundled data, offline; article: five benchmarks in the article's style; quantization: the set of "
    "quantization reports (both from the hub).",
)
@click.option("--tasks", help="Only these tasks of the suite, separated by commas.")
@click.option("--limit", type=click.IntRange(1), help="Items per task.")
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder of local tasks.")
@click.option("--chat", is_flag=True, help="Wrap prompts in the model's chat template.")
@click.option("--out", type=click.Path(path_type=Path), default="runs/evals", show_default=True, help="Store.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the JSON document here.")
@click.option("--fresh", is_flag=True, help="Compute again what the store holds.")
@toggle_options()
def command(
    model: str,
    suite: str,
    tasks: str | None,
    limit: int | None,
    data: Path | None,
    chat: bool,
    out: Path,
    json_path: Path | None,
    fresh: bool,
    **values: Any,
) -> None:
    """Evaluate MODEL (a GGUF, or owner/repo:file.gguf on the hub) under any toggles.

    Results, samples and manifest are kept under a key over configuration, model SHA-256, build and tasks; the same
    command resumes an interrupted evaluation with equal scores. Sizes left at their defaults (--n-ctx, --n-batch,
    --n-ubatch, --n-seq-max) become those that suit many sequences per batch.

    Prints a table, then ONE JSON document as the last line.
    """
    from workbench.ablation.results import to_json
    from workbench.ablation.store import write_atomic
    from workbench.evals.harness import EvalSpec, evaluate
    from workbench.models import resolve_model

    spec = EvalSpec(suite=suite, tasks=split(tasks), limit=limit, data=data, chat=chat)
    found = evaluate(resolve_model(model), take_config(values), spec, root=out, fresh=fresh)
    show(found.results)
    click.echo(f"\n{'Kept from before' if found.reused else 'Kept'}: {found.folder}")
    if json_path:
        write_atomic(json_path, to_json(found.results, indent=1) + "\n")
    click.echo(to_json(found.results))


def split(names: str | None) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())


def show(results: Mapping[str, Any]) -> None:
    """The table of scores, chance and the best trivial strategy."""
    from rich.console import Console
    from rich.table import Table

    from workbench.evals.compare import labels

    shown = labels({"config": results["identity"]["config"], "synthetic": results.get("synthetic")})
    title = " · ".join([results["model"], f"suite {results['suite']}", *shown])
    table = Table(title=title, title_justify="left")
    for column in ("task", "items", "metric", "score ± SE", "chance", "best trivial strategy"):
        table.add_column(column, justify="left" if column in ("task", "metric") else "right")
    for name, task in results["tasks"].items():
        trivial = task.get("trivial") or {}
        best = max(trivial, key=lambda key: trivial[key], default=None)
        score = "see JSON" if task["score"] is None else f"{task['score']:.3f}"
        score += "" if task["se"] is None else f" ± {task['se']:.3f}"
        if task["score"] is None and "word_perplexity" in task["metrics"]:
            score = f"{task['metrics']['word_perplexity']:.2f}"
        guess = f"{task['chance']:.3f}" if task["chance"] else "–"
        line = "–" if best is None else f"{trivial[best]:.3f} ({best})"
        table.add_row(name, str(task["items"]), task["metric"] or "–", score, guess, line)
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)
