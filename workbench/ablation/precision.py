"""Rungs on a quantized model: make its file, and measure what quantization lost on held-out text.

Such a rung is never bit-exact. Its verdict is measured: the divergence of its next-token distributions from those of
the model as given, both streamed through the same runtime, which the other rungs show to be bit-exact with stock.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.ablation.rungs import PACKED, Rung, Step
from workbench.config import RunConfig
from workbench.errors import ModelFileError, WorkbenchError
from workbench.lossless import MEASURED, LogitsVerdict

if TYPE_CHECKING:
    from workbench.session import Session

WINDOW_TOKENS = 256
"""Held-out text is cut into windows of so many tokens, each read from an empty context."""

CONTEXT_TOKENS = 32
"""Positions with less context than this are not scored."""

CHANCE_MARGIN_NATS = 1.0
"""A model whose loss on the text is within this of guessing has nothing that quantization could lose there."""

BUNDLED_TEXT = Path(__file__).parents[1] / "quantize" / "texts" / "held_out.txt"


def places(rungs: Sequence[Rung], model: Path) -> tuple[Rung, ...]:
    """The rungs, those with a recipe marked as pending when the model's weights are too coarse to quantize from.

    Raises
    ------
    WorkbenchError
        When a rung's recipe is unknown or wrong.
    """
    if not any(rung.recipe for rung in rungs):
        return tuple(rungs)
    from workbench.quantize.plan import PRECISE, quantizable
    from workbench.quantize.recipes import load_recipe
    from workbench.storage.gguf_file import open_gguf

    for rung in rungs:
        if rung.recipe and not rung.pending:
            load_recipe(rung.recipe)
    if quantizable(open_gguf(model)):
        return tuple(rungs)
    reason = f"quantized already: give the model in {', '.join(PRECISE[:-1])} or {PRECISE[-1]}"
    return tuple(replace(rung, pending=rung.pending or reason) if rung.recipe else rung for rung in rungs)


@dataclass(frozen=True, kw_only=True)
class QuantizedFile:
    """The file of a variant with a recipe, and the report on it (file names only)."""

    path: Path
    report: dict[str, Any]
    lines: list[str]


def quantized_file(
    step: Step, source: Path, sha256: str, folder: Path, *, calibration: str = "", say: Callable[[str], None]
) -> QuantizedFile:
    """Quantize (and pack) the model for a step, unless the folder holds the file already.

    Parameters
    ----------
    sha256
        Of the source; with the recipe and the calibration text it is part of the file's name.
    """
    from workbench.quantize import calibrate
    from workbench.quantize.plan import make_plan
    from workbench.quantize.quantize import quantize
    from workbench.quantize.recipes import load_recipe
    from workbench.quantize.report import make_report

    assert step.recipe is not None
    recipe = load_recipe(step.recipe)
    text = Path(calibration) if calibration else calibrate.BUNDLED_TEXT
    key = [sha256, recipe.to_dict(), _read(text) if recipe.imatrix else ""]
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    packed = step.model == PACKED
    target = folder / f"{source.stem}-{recipe.name}-{digest}{'.packed' if packed else ''}.gguf"
    matrix = calibrate.calibrate(source, text) if recipe.imatrix else None
    if target.exists():
        report = make_report(make_plan(source, recipe, imatrix=matrix), target, packed=packed)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        say(f"quantizing {source.name} by {recipe.name}")
        report = quantize(source, recipe, target, imatrix=matrix, pack=packed)
    report = replace(report, target=target.name)
    return QuantizedFile(path=target, report=report.to_dict(), lines=report.lines())


def measure(original: Path, quantized: Path, config: RunConfig, *, held_out: str = "", against: str) -> LogitsVerdict:
    """How far the quantized model's predictions are from the original's on held-out text, in float32.

    Parameters
    ----------
    config
        Its threads and way of reading are used; nothing is emulated.
    held_out
        A text file; empty: the bundled one.
    against
        What the verdict names as the reference.

    Raises
    ------
    WorkbenchError
        When the text is too short or a model cannot be run.
    """
    import pandas as pd

    from workbench.evals.distribution import position_table, summarize
    from workbench.session import Session

    path = Path(held_out) if held_out else BUNDLED_TEXT
    text = _read(path)
    chosen = RunConfig(
        experts="flash",
        io=config.io,
        threads=config.threads,
        n_ctx=WINDOW_TOKENS,
        n_batch=WINDOW_TOKENS,
        n_ubatch=WINDOW_TOKENS,
        telemetry="off",
        logits_hash=False,
    )
    tables = []
    with tempfile.TemporaryFile(prefix="les-logits-") as kept:
        with Session(original, chosen) as session:
            windows = _windows(session, text, path)
            for logits in _predictions(session, windows):
                kept.write(logits.tobytes())
        kept.seek(0)
        with Session(quantized, chosen) as session:
            if _windows(session, text, path) != windows:
                raise ModelFileError(f"{quantized}: another tokenizer than {original.name}")
            for number, (logits, window) in enumerate(zip(_predictions(session, windows), windows, strict=True)):
                reference = np.frombuffer(kept.read(logits.nbytes), np.float32).reshape(logits.shape)
                targets = np.array(window[CONTEXT_TOKENS + 1 :])
                tables.append(position_table(reference, logits, targets, np.full(len(targets), number)))
    table = pd.concat(tables, ignore_index=True)
    if not np.isfinite(table["kl"]).all():
        raise WorkbenchError(f"{quantized.name}: its predictions are not finite")
    loss = float(table["nll_reference"].mean())
    quality = summarize(table) | {
        "beats_chance": loss < math.log(logits.shape[1]) - CHANCE_MARGIN_NATS,
        "perplexity": float(np.exp(table["nll_candidate"].mean())),
        "text": path.name,
        "text_sha256": text_sha256(held_out),
        "window_tokens": WINDOW_TOKENS,
        "context_tokens": CONTEXT_TOKENS,
    }
    return LogitsVerdict(verdict=MEASURED, positions=len(table), against=against, quality=quality)


def text_sha256(held_out: str = "") -> str:
    """Of the held-out text (empty: the bundled one)."""
    return hashlib.sha256(_read(Path(held_out) if held_out else BUNDLED_TEXT).encode()).hexdigest()


def quality_line(quality: dict[str, Any]) -> str:
    """The figures of a measured verdict, for people."""
    kl, agreement = quality["kl"], 100 * quality["top1_agreement"]["value"]
    return (
        f"KL {kl['mean']['value']:.4f} nats (median {kl['p50']:.4f}, 95 % {kl['p95']:.3f}, 99 % {kl['p99']:.3f}, "
        f"99.9 % {kl['p99.9']:.3f}, max {kl['max']:.3f}); same top token {agreement:.1f} %; "
        f"perplexity {quality['perplexity_reference']:.3f} → {quality['perplexity']:.3f} "
        f"({100 * (quality['perplexity_ratio']['value'] - 1):+.2f} %); {quality['positions']:,} positions of "
        f"{quality['text']}"
        + ("" if quality["beats_chance"] else "; inconclusive: the model as given hardly beats chance on this text")
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _windows(session: Session, text: str, path: Path) -> list[list[int]]:
    """Token windows; each begins as the model wants a context to begin."""
    first = session.tokenize("")[:1]
    tokens = session.tokenize(text, special=False)
    length = min(WINDOW_TOKENS, len(tokens))
    if length < CONTEXT_TOKENS + 2:
        raise ModelFileError(f"{path}: only {len(tokens)} tokens: too short to measure anything on")
    cut = [tokens[at : at + length] for at in range(0, len(tokens) - length + 1, length)]
    return [first + window[len(first) :] for window in cut]


def _predictions(session: Session, windows: Sequence[Sequence[int]]) -> Iterator[np.ndarray]:
    """Logits of every window's scored positions, float32 [n, n_vocab]."""
    for window in windows:
        session.clear()
        n = len(window)
        # all positions are wanted: a last layer that computes fewer rows would take another path than stock's prefill
        logits = session.evaluate(window, range(n), [0] * n, [True] * n)
        yield logits[CONTEXT_TOKENS : n - 1]
