"""Sum up draft_check's lines: tau, acceptance per slot, identity with plain decoding.

python -m workbench.demo.recipe.draft_report result.jsonl
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path


def summarize(lines: list[dict]) -> dict[str, dict]:
    """Return prompts, tau (tokens per round), acceptance and identical texts, per kind and for all documents."""
    groups: dict[str, list[dict]] = defaultdict(list)
    for line in lines:
        groups[line["kind"]].append(line)
        if line["kind"] != "questions":
            groups["documents"].append(line)
    out = {}
    for kind, rows in groups.items():
        rounds = sum(r["rounds"] for r in rows)
        offered = [sum(column) for column in zip(*(r["offered"] for r in rows), strict=False)]
        accepted = [sum(column) for column in zip(*(r["accepted"] for r in rows), strict=False)]
        out[kind] = {
            "prompts": len(rows),
            "tokens": sum(r["emitted"] for r in rows),
            "rounds": rounds,
            "tau": sum(r["emitted"] for r in rows) / rounds,
            "acceptance_given_reached": [a / o if o else None for a, o in zip(accepted, offered, strict=False)],
            "acceptance": [a / rounds for a in accepted],
            "drafted_per_round": sum(r["drafted"] for r in rows) / rounds,
            "lead_at_difference_max": max((r["lead"] for r in rows if r["first_difference"] >= 0), default=None),
            "identical_texts": sum(r["first_difference"] < 0 for r in rows) / len(rows),
        }
    return out


if __name__ == "__main__":
    print(json.dumps(summarize([json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]), indent=1))
