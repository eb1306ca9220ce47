"""`workbench compare`: the four levels of lossless, one verdict each."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from workbench.cli.eval import LOCAL_SUITE, SUITES, split
from workbench.cli.toggles import take_config, toggle_options
from workbench.errors import ToggleError


@click.command("compare")
@click.argument("reference")
@click.argument("candidate")
@click.option(
    "--margin",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.01,
    show_default=True,
    help="Loss that still counts as none: of accuracy (level 4), perplexity and top-1 agreement (level 3).",
)
@click.option("--levels", default="1,2,3,4", show_default=True, help="Levels to judge.")
@click.option(
    "--require",
    type=click.IntRange(1, 4),
    help="Exit with 1 unless this level is lossless; default: exit with 1 when any level is refuted.",
)
@click.option(
    "--reference-set",
    "reference_set",
    multiple=True,
    metavar="TOGGLE=VALUE",
    help="Toggle of the reference; may be given several times. Default: experts=resident.",
)
@click.option("--suite", type=click.Choice(SUITES), default=LOCAL_SUITE, show_default=True, help="Tasks of level 4.")
@click.option("--tasks", help="Only these tasks of the suite, separated by commas.")
@click.option("--limit", type=click.IntRange(1), help="Items per task.")
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder of local tasks.")
@click.option("--out", type=click.Path(path_type=Path), default="runs/evals", show_default=True, help="Store.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the JSON document here.")
@click.option("--fresh", is_flag=True, help="Compute again what the store holds.")
@toggle_options()
def command(
    reference: str,
    candidate: str,
    margin: float,
    levels: str,
    require: int | None,
    reference_set: tuple[str, ...],
    suite: str,
    tasks: str | None,
    limit: int | None,
    data: Path | None,
    out: Path,
    json_path: Path | None,
    fresh: bool,
    **values: Any,
) -> None:
    """Judge whether CANDIDATE, under the given toggles, is lossless against REFERENCE (stock, resident).

    Levels: 1 bit-exact logits, 2 greedy identity, 3 distribution, 4 tasks. Each is lossless, not lossless or
    inconclusive, with the reason. The reference is always run against itself as well: where it moves, where it is at
    chance, or where there are too few items, nothing is certified. Threads and batch sizes are made equal on both
    sides.

    Prints a table, then ONE JSON document as the last line.
    """
    from workbench.ablation.results import to_json
    from workbench.ablation.store import write_atomic
    from workbench.evals.compare import Side, compare
    from workbench.evals.harness import EvalSpec
    from workbench.models import resolve_model

    chosen = [int(level) for level in split(levels) if level.isdigit()]
    if len(chosen) != len(split(levels)):
        raise ToggleError(f"levels={levels!r}: numbers from 1 to 4, separated by commas")
    if require is not None and require not in chosen:
        raise ToggleError(f"require={require}: not among the levels {levels}")
    found = compare(
        Side(model=resolve_model(reference), config=reference_config(reference_set)),
        Side(model=resolve_model(candidate), config=take_config(values)),
        spec=EvalSpec(suite=suite, tasks=split(tasks), limit=limit, data=data),
        levels=chosen,
        margin=margin,
        root=out,
        fresh=fresh,
        say=lambda text: click.echo(text, err=True),
    )
    show(found.document)
    if json_path:
        write_atomic(json_path, to_json(found.document, indent=1) + "\n")
    click.echo(to_json(found.document))
    if not found.passes(require):
        sys.exit(1)


def reference_config(pairs: tuple[str, ...]) -> Any:
    """`toggle=value` pairs → `RunConfig`, resident unless said otherwise."""
    from workbench.ablation.rungs import check_types
    from workbench.config import RunConfig

    values: dict[str, Any] = {"experts": "resident"}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ToggleError(f"--reference-set {pair}: expected toggle=value")
        try:
            values[name.replace("-", "_")] = json.loads(text)
        except ValueError:
            values[name.replace("-", "_")] = text
    check_types(values)
    return RunConfig.from_dict(values)


def show(document: Mapping[str, Any]) -> None:
    """The ladder, then the tasks."""
    from rich.console import Console
    from rich.table import Table

    from workbench.evals.compare import labels

    console = Console()
    console = console if console.is_terminal else Console(width=140)
    title = f"{document['candidate']['model']} against {document['reference']['model']}"
    title = " · ".join([title, *labels(document["reference"], document["candidate"])])
    table = Table(title=title, title_justify="left", show_lines=True)
    for column in ("level", "verdict", "reason"):
        table.add_column(column)
    colours = {"lossless": "green", "not lossless": "bold red"}
    for level in document["levels"]:
        colour = colours.get(level["verdict"], "yellow")
        name = f"{level['level']} {level['name']}"
        table.add_row(name, f"[{colour}]{level['verdict']}[/]", level["reason"].replace("[", "\\["))
    console.print(table)
    tasks = next((v["figures"].get("tasks") for v in document["levels"] if v["level"] == 4), None)
    if tasks:
        console.print(task_table(tasks, document["margin"]))


def task_table(tasks: list[dict[str, Any]], margin: float) -> Any:
    """Level 4, a row per task."""
    from rich.table import Table

    names = ("items", "chance", "reference", "candidate", "flips", "McNemar p", "difference, 95 %",
             f"p (loss < {margin:g})", "detectable", "verdict")  # fmt: skip
    table = Table(title="Tasks (p adjusted by Holm)", title_justify="left")
    table.add_column("task")
    for name in names:
        table.add_column(name, justify="right")
    for t in tasks:
        table.add_row(
            t["task"],
            str(t["items"]),
            f"{t['chance']:.3f}",
            f"{t['reference']:.3f}",
            f"{t['candidate']:.3f}",
            f"{t['lost']}+{t['won']} = {t['flips']:.1%}",
            f"{t['p_mcnemar_holm']:.2g}",
            f"{t['difference']:+.4f} ({t['low']:+.4f} … {t['high']:+.4f})",
            f"{t['p_noninferior_holm']:.2g}" if t["beats_chance"] else "–",
            f"{t['minimum_detectable_effect']:.4f}",
            t["verdict"],
        )
    return table
