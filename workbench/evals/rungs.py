"""The level of every rung of an ablation ladder: scheduling, cache and layout 1, drafting 2, quantization 3 and 4."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.config import RunConfig
from workbench.evals.verdict import INCONCLUSIVE, LOSSLESS, NOT_LOSSLESS, DistributionLevel, LevelVerdict
from workbench.lossless import BIT_EXACT, DIFFERS, SAME_TOKENS

EMULATION = ("emulate_bandwidth_bytes_s", "emulate_latency_ns", "emulate_depth")


def levels_of(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Which levels judge a row: what the rung does to the weights and to the order of tokens decides."""
    drafts = row["config"].get("speculation", "off") != "off"
    return ((2,) if drafts else ()) + ((3, 4) if row.get("recipe") else ()) or (1,)


def compared(level: int, row: Mapping[str, Any]) -> LevelVerdict:
    """Level 1 or 2 from the ladder's own comparison: logits, or for a drafting rung tokens, and logits where it can.

    Equal logits are equal tokens. A near-tie that batched numerics turned decides nothing.
    """
    found = row["lossless"]
    known = {BIT_EXACT: LOSSLESS, DIFFERS: NOT_LOSSLESS} | ({SAME_TOKENS: LOSSLESS} if level == 2 else {})
    what = "tokens" if level == 2 and found["verdict"] != BIT_EXACT else "logits"
    reason = found.get("reason") or f"{found['differing']:,} of {found['compared']:,} {what} differ"
    if level == 2 and found.get("against"):
        reason += f", against {found['against']}"
    return LevelVerdict(
        level=level, verdict=known.get(found["verdict"], INCONCLUSIVE), reason=reason, figures=dict(found)
    )


def measured_loss(row: Mapping[str, Any]) -> LevelVerdict:
    """Level 3 from the loss that the ladder measured on held-out text: without a control it refutes, or stays open."""
    quality = row["lossless"].get("quality")
    if quality is None or quality["kl"]["mean"]["low"] is None:
        return _open(3, "not asked for: --eval local")
    found = DistributionLevel().limits(quality)
    if found.verdict == NOT_LOSSLESS:
        return found
    return replace(
        found, verdict=INCONCLUSIVE, reason=f"no control, {quality['texts']} texts (--eval local): {found.reason}"
    )


def judge(
    document: dict[str, Any],
    model: Path,
    files: Mapping[str, Path],
    *,
    suite: str | None = None,
    limit: int | None = None,
    root: Path = Path("runs/evals"),
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Add `levels` to every row of a ladder's document, and `size_score` where models of other sizes were scored.

    Parameters
    ----------
    files
        Files of quantized variants, by the row's `model, recipe`.
    suite
        Tasks that quantized rungs are scored on; None: level 4 stays open, and level 3 can only be refuted.
    """
    points: dict[str, dict[str, Any]] = {}
    of_file: dict[str, tuple[LevelVerdict, ...]] = {}  # levels 3 and 4, once per variant
    for row in document["rows"]:
        wanted = levels_of(row)
        variant = f"{row['model']}, {row['recipe']}"
        if row["status"] != "ok":
            row["levels"] = [_open(level, "the rung failed").to_dict() for level in wanted]
            continue
        if row["recipe"] and variant not in of_file:
            if suite is not None and variant in files:
                of_file[variant] = _quantized(row, model, files[variant], suite, limit, root, say, points)
            else:
                of_file[variant] = (measured_loss(row), _open(4, "not asked for: --eval local"))
        found = [compared(level, row) for level in wanted if level < 3]
        row["levels"] = [v.to_dict() for v in (*found, *(of_file[variant] if row["recipe"] else ()))]
    if points:
        document["size_score"] = list(points.values())


def _open(level: int, reason: str) -> LevelVerdict:
    return LevelVerdict(level=level, verdict=INCONCLUSIVE, reason=reason)


def _quantized(
    row: Mapping[str, Any],
    model: Path,
    file: Path,
    suite: str,
    limit: int | None,
    root: Path,
    say: Callable[[str], None],
    points: dict[str, dict[str, Any]],
) -> tuple[LevelVerdict, ...]:
    from workbench.evals.compare import Side, compare
    from workbench.evals.harness import EvalSpec

    config = RunConfig.from_dict({k: v for k, v in row["config"].items() if k not in EMULATION})
    found = compare(
        Side(model=model, config=RunConfig(experts="resident", threads=config.threads)),
        Side(model=file, config=RunConfig(experts="flash", io=config.io, threads=config.threads)),
        spec=EvalSpec(suite=suite, limit=limit),
        levels=(3, 4),
        root=root,
        say=lambda text: say(f"{row['rung']}: {text}"),
    )
    pooled = found.level(4).figures["pooled"]
    for name, key, path in (("as given", "reference", model), (row["rung"], "candidate", file)):
        points[name] = size_score(name, path.stat().st_size, pooled[key], pooled["items"])
    return tuple(found.levels)


def size_score(name: str, file_bytes: int, score: float, items: int) -> dict[str, Any]:
    """A point of the size-score figure: accuracy over all items and its 95 % interval (Wilson, for scores near 1)."""
    z2 = 1.96**2 / items
    centre = (score + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * score * (1 - score) + z2 * z2 / 4) / (1 + z2)
    found = {"name": name, "file_bytes": file_bytes, "items": items, "score": score}
    return found | {"low": centre - half, "high": centre + half}


def lines(document: Mapping[str, Any]) -> list[str]:
    """One line per rung and level, then size against score."""
    out = [
        f"{row['rung']}: level {v['level']} ({v['name']}) {v['verdict']}: {v['reason']}"
        for row in document["rows"]
        for v in row.get("levels", ())
    ]
    for point in document.get("size_score", ()):
        out.append(
            f"size against score: {point['name']}: {point['file_bytes'] / 1e6:.1f} MB, {point['score']:.3f} "
            f"({point['low']:.3f}–{point['high']:.3f}, {point['items']} items)"
        )
    return out
