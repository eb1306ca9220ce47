"""The level of every rung of an ablation ladder: scheduling, cache and layout 1, drafting 2, quantization 3 and 4."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.config import RunConfig
from workbench.evals.verdict import INCONCLUSIVE, LOSSLESS, NOT_LOSSLESS, GreedyCase, GreedyLevel, LevelVerdict
from workbench.lossless import BIT_EXACT, DIFFERS

EMULATION = ("emulate_bandwidth_bytes_s", "emulate_latency_ns", "emulate_depth")


def levels_of(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Which levels judge a row: what the rung does to the weights and to the order of tokens decides."""
    if row.get("recipe"):
        return (3, 4)
    return (2,) if row["config"].get("speculation", "off") != "off" else (1,)


def bit_exact(row: Mapping[str, Any]) -> LevelVerdict:
    """Level 1 from the ladder's own comparison of logits."""
    found = row["lossless"]
    verdict = {BIT_EXACT: LOSSLESS, DIFFERS: NOT_LOSSLESS}.get(found["verdict"], INCONCLUSIVE)
    reason = found.get("reason") or f"{found['differing']:,} of {found['compared']:,} logits differ"
    return LevelVerdict(level=1, verdict=verdict, reason=reason, figures=dict(found))


def greedy(generated: Mapping[tuple[str, int, int], Sequence[int]], reference: str, rung: str) -> LevelVerdict:
    """Level 2 from the timed runs, which generate freely: (rung, repeat, prompt) → tokens.

    The control is the reference's later repeats against its first.
    """

    def cases(name: str, repeats: Callable[[int], bool]) -> list[GreedyCase]:
        found = []
        for (who, repeat, prompt), tokens in sorted(generated.items()):
            base = generated.get((reference, 0, prompt))
            if who == name and repeats(repeat) and base is not None:
                n = min(len(base), len(tokens))
                found.append(GreedyCase(base[:n], tokens[:n], [float("nan")] * n))
        return found

    return GreedyLevel(min_prompts=1)(cases(rung, lambda r: r == 0), cases(reference, lambda r: r > 0), [], None)


def judge(
    document: dict[str, Any],
    model: Path,
    files: Mapping[str, Path],
    *,
    generated: Mapping[tuple[str, int, int], Sequence[int]] | None = None,
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
    generated
        Tokens of the timed runs; needed for drafting rungs.
    suite
        Tasks that quantized rungs are scored on; None: levels 3 and 4 stay open.
    """
    points: dict[str, dict[str, Any]] = {}
    reference = next((r["rung"] for r in document["rows"] if r["config"].get("experts") == "resident"), None)
    for row in document["rows"]:
        wanted = levels_of(row)
        if row["status"] != "ok":
            found = [_open(level, "the rung failed") for level in wanted]
        elif wanted == (1,):
            found = [bit_exact(row)]
        elif wanted == (2,):
            found = [greedy(generated or {}, reference or "", row["rung"])]
        elif suite is None or f"{row['model']}, {row['recipe']}" not in files:
            found = [_open(level, "not asked for: --eval local") for level in wanted]
        else:
            found = _quantized(row, model, files[f"{row['model']}, {row['recipe']}"], suite, limit, root, say, points)
        row["levels"] = [v.to_dict() for v in found]
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
) -> list[LevelVerdict]:
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
    return list(found.levels)


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
