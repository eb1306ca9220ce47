"""The ladder of a recorded run as the rows that several figures draw, and the article's beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from workbench.figures.reported import article
from workbench.figures.runs import NotMeasured, RecordedRun, Runs
from workbench.figures.sheet import MEASURED, REPORTED

SCORE_HOW = "workbench ablate MODEL --eval local --out RUNS/NAME"
LADDER_HOW = "workbench demo --out RUNS/NAME, or workbench ablate MODEL --out RUNS/NAME"
AS_GIVEN = "as given"


def choose_ladder(runs: Runs, figure: str) -> RecordedRun:
    """The recorded ladder to draw: one that climbs from a baseline by several kinds of toggles.

    Raises
    ------
    NotMeasured
        When there is none with a measured speed.
    """
    found = runs.choose(figure, (r for r in runs.ladders if _climbs(r)), lambda r: len(r.rows))
    if found is None:
        raise NotMeasured("no recorded ladder", LADDER_HOW)
    return found


def _climbs(run: RecordedRun) -> bool:
    configs = [row["config"] for row in run.rows if row.get("decode_tok_s") is not None]
    read = [c for c in configs if c.get("experts") == "flash"]
    detailed = any(c.get("telemetry") in ("layer", "io") for c in configs)
    return not detailed and {"off", "router"} <= {c.get("lookahead", "off") for c in read}


def article_ladder() -> pd.DataFrame:
    """Columns `rung`, `tok_s`, `speedup`, `how`."""
    rungs = article()["ladder"]["rungs"]
    rows = [r | {"speedup": r["tok_s"] / rungs[0]["tok_s"], "how": REPORTED} for r in rungs]
    return pd.DataFrame(rows)


def score_points(runs: Runs, ladder: RecordedRun) -> tuple[RecordedRun | None, list[dict[str, Any]]]:
    """Scores of this ladder's model and of its quantized forms, with what each was quantized by.

    Returns
    -------
    run, points
        The run that holds them (its own, or another of the same model) and `name`, `recipe`, `score`, `low`, `high`,
        `items`, `file_bytes` of each; None and nothing when no recorded run scored this model.
    """
    sha256 = ladder.document["model"].get("sha256")
    same = [r for r in runs.scored if (r.document.get("model") or {}).get("sha256") == sha256]
    found = next((r for r in same if r.folder == ladder.folder), same[-1] if same else None)
    return found, [] if found is None else recipes_of(found.document)


def recipes_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The points of `size_score`, each with its `recipe` (None: the model as given)."""
    recipe = {row["rung"]: row.get("recipe") for row in document.get("rows", ()) if "rung" in row}
    return [
        dict(p) | {"recipe": None if p["name"] == AS_GIVEN else recipe.get(p["name"]) or p["name"]}
        for p in document["size_score"]
    ]


_COLUMNS = ("rung", "tok_s", "tok_s_low", "tok_s_high", "speedup", "peak_mb", "experts", "recipe", "contended", "how")


def measured_rows(run: RecordedRun) -> pd.DataFrame:
    """Columns `rung`, `tok_s` with bounds, `speedup`, `peak_bytes`, …, `how`: rungs with a measured speed."""
    rows = [
        {
            "rung": row["rung"],
            "tok_s": row["decode_tok_s"],
            "tok_s_low": row["decode_tok_s_low"],
            "tok_s_high": row["decode_tok_s_high"],
            "speedup": row["speedup"],
            "peak_mb": None if row["peak_bytes"] is None else row["peak_bytes"] / 1e6,
            "experts": row["config"].get("experts"),
            "recipe": row.get("recipe"),
            "contended": "contended" in row["labels"],
            "how": MEASURED,
        }
        for row in run.rows
        if row["decode_tok_s"] is not None
    ]
    return pd.DataFrame(rows, columns=None if rows else list(_COLUMNS))


def repeats_text(run: RecordedRun) -> str:
    """What bars and error bars are."""
    document = run.document
    return (
        f"medians of {document['repeats']} interleaved repeats of {document['tokens']} tokens; error bars: 95 % "
        f"bootstrap intervals of the median"
    )
