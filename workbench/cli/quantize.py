"""`workbench quantize`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

INTERRUPTED = 130


@click.command()
@click.argument("model")
@click.argument("recipe")
@click.option("--out", type=click.Path(path_type=Path), help="File to write; default: MODEL-RECIPE.gguf beside you.")
@click.option("--imatrix", type=click.Path(path_type=Path), help="Importance matrix to use (GGUF; llama.cpp's too).")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Text to compute the importance matrix over; default for recipes that want one: a small bundled text.",
)
@click.option("--pack", is_flag=True, help="Write the expert-contiguous form directly, without a second copy on disk.")
@click.option("--requantize", is_flag=True, help="Accept a MODEL that is quantized beyond Q8_0: loses quality twice.")
@click.option("--threads", type=click.IntRange(0), default=0, show_default=True, help="Threads; 0 = all cores.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the report as JSON here.")
@click.option("--progress/--no-progress", default=True, help="Show progress bars.")
def command(
    model: str,
    recipe: str,
    out: Path | None,
    imatrix: Path | None,
    calibration: Path | None,
    pack: bool,
    requantize: bool,
    threads: int,
    overwrite: bool,
    json_path: Path | None,
    progress: bool,
) -> None:
    """Quantize MODEL (F16, BF16, F32 or Q8_0) by RECIPE.

    RECIPE is q8_0, q4_k_m, les-mixed (routed experts in Q3_K, the rest as Q4_K_M, with an importance matrix), or a YAML
    file of your own: `base` names one of llama.cpp's mixtures, `types` maps tensor name patterns to ggml types. The
    bytes written are those of llama.cpp's own quantizer. Importance matrices are kept in the user's cache folder.
    """
    from workbench.models import resolve_model
    from workbench.quantize.article import article_lines
    from workbench.quantize.calibrate import BUNDLED_TEXT, calibrate
    from workbench.quantize.imatrix import load_imatrix
    from workbench.quantize.quantize import quantize
    from workbench.quantize.recipes import load_recipe
    from workbench.storage.atomic import check_target

    if imatrix and calibration:
        raise click.UsageError("--imatrix and --calibration: pass one of them")
    chosen = load_recipe(recipe)
    source = resolve_model(model)
    target = out or Path(f"{source.stem}-{chosen.name}{'.packed' if pack else ''}.gguf")
    check_target(target, overwrite=overwrite)
    try:
        matrix = load_imatrix(imatrix) if imatrix else None
        if matrix is None and (calibration or chosen.imatrix):
            matrix = calibrate(source, calibration or BUNDLED_TEXT, progress=progress)
        report = quantize(
            source,
            chosen,
            target,
            imatrix=matrix,
            pack=pack,
            threads=threads,
            allow_requantize=requantize,
            progress=progress,
            overwrite=overwrite,
        )
    except KeyboardInterrupt:
        click.echo("interrupted: nothing was written", err=True)
        sys.exit(INTERRUPTED)
    for line in report.lines() + article_lines(chosen):
        click.echo(line)
    if json_path:
        json_path.write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
