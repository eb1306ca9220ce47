"""`workbench demo`: the ladder on the embedded model, under an emulated phone flash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from workbench.ablation.suites import PHONE, Suite

DEMO = Suite(
    name="demo-ladder",
    note="the embedded model under an emulated phone flash",
    tokens=64,
    repeats=5,
    base={"io": "buffered"},  # the real reads must be faster than the emulated ones: from the page cache
    flash=PHONE,
    drafter="embedded",
    model="embedded",
)


@click.command("demo")
@click.option("--out", type=click.Path(path_type=Path), default="runs/demo", show_default=True, help="Run folder.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the JSON document here.")
@click.option("--repeats", type=click.IntRange(1), default=DEMO.repeats, show_default=True, help="Timed repeats.")
@click.option("--tokens", type=click.IntRange(2), default=DEMO.tokens, show_default=True, help="Tokens generated.")
@click.option("--fresh", is_flag=True, help="Measure again instead of resuming the run folder.")
def command(out: Path, json_path: Path | None, fresh: bool, **sizes: Any) -> None:
    """Run the ablation ladder on the embedded model.

    Measures this machine's compute first and chooses an emulated flash that keeps the ratios of the article's phone;
    every figure made under it is labelled emulated. Prints a table, then ONE JSON document as the last line.
    """
    from workbench.cli.ablate import perform
    from workbench.demo import demo_model

    perform(
        demo_model(),
        replace(DEMO, **sizes),
        out,
        json_path=json_path,
        fresh=fresh,
        closing="On your own model: workbench ablate MODEL.gguf (--emulate-bandwidth phone emulates the flash)",
    )
