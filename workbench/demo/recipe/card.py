"""Write card.json and MODEL_CARD.md from the shipped files and the recorded runs.

python -m workbench.demo.recipe.card
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gguf

DEMO = Path(__file__).parents[1]
RUNS = Path(__file__).parent / "runs"
FILES = ("demo-q8_0.gguf", "demo-draft-q8_0.gguf", "reference.npz")


def _load(name: str) -> Any:
    return json.loads((RUNS / name).read_text())


def file_facts(path: Path) -> dict[str, Any]:
    """Return sha256 and size, and for a GGUF its architecture and sizes."""
    facts: dict[str, Any] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
    if path.suffix != ".gguf":
        return facts
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    facts["architecture"] = arch
    for key in (
        "block_count",
        "embedding_length",
        "context_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "feed_forward_length",
        "target_layers",
        "block_size",
    ):
        field = reader.fields.get(f"{arch}.{key}")
        if field is not None:
            facts[key.replace("attention.", "")] = field.contents()
    facts["parameters"] = int(sum(t.n_elements for t in reader.tensors))
    facts["vocabulary"] = len(reader.fields["tokenizer.ggml.tokens"].contents())
    return facts


def thresholds(scores: dict, routing: dict, draft: dict, files: dict) -> list[dict[str, Any]]:
    """Return each aim of the recipe with its measured value."""
    trivial = max(scores["state"]["baselines"][name] for name in ("last mention", "most frequent"))
    rows = [
        ("file size, MB", "<=", 60, files["demo-q8_0.gguf"]["bytes"] / 1e6),
        ("held-out story loss, nats per token", "<=", 2.2, scores["story_text"]["nats_per_token"]),
        ("unseen arithmetic, greedy exact", ">=", 0.95, scores["arith_unseen"]["greedy_exact"]),
        ("unseen arithmetic, multiple choice", ">=", 0.95, scores["arith_unseen"]["accuracy"]),
        ("entity recall", ">=", 0.92, scores["recall"]["accuracy"]),
        ("state tracking", ">=", 0.7, scores["state"]["accuracy"]),
        ("state tracking above the best trivial guess", ">=", 0.2, scores["state"]["accuracy"] - trivial),
        ("story ending", ">=", 0.7, scores["ending"]["accuracy"]),
        (
            "cloze above the 4-gram model, open form",
            ">=",
            0.1,
            scores["cloze"]["greedy_exact"] - scores["cloze"]["ngram_exact"],
        ),
        (
            "expert load entropy, lowest layer, share of uniform",
            ">=",
            0.9,
            min(row["entropy_share"] for row in routing["layers"]),
        ),
        ("drafter tau, greedy, held-out stories", ">=", 2.3, draft["story"]["tau"]),
        ("drafter tau, greedy, all held-out documents", ">=", 2.3, draft["documents"]["tau"]),
    ]
    return [
        {
            "aim": aim,
            "relation": relation,
            "threshold": limit,
            "value": round(value, 4),
            "met": value <= limit if relation == "<=" else value >= limit,
        }
        for aim, relation, limit, value in rows
    ]


def build() -> dict[str, Any]:
    """Return the machine-readable card."""
    files = {name: file_facts(DEMO / name) for name in FILES}
    scores, routing, draft = _load("scores.json"), _load("routing.json"), _load("draft_report.json")
    return {
        "schema": 1,
        "licence": "Apache-2.0",
        "files": files,
        "aims": thresholds(scores, routing, draft, files),
        "evaluation": scores,
        "routing": routing,
        "parity": _load("parity.json"),
        "corpus": _load("corpus.json"),
        "training": _load("train.json"),
        "drafter_training": _load("draft.json"),
        "drafter": draft,
        "drafter_confidence": _load("draft_confidence.json"),
    }


def _table(header: list[str], rows: list[list[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(f"{c:.3f}" if isinstance(c, float) else str(c) for c in row) + " |" for row in lines
    )


def aims_table(card: dict) -> str:
    """Return aims against measured values."""
    return _table(
        ["aim", "threshold", "measured", "met"],
        [
            [a["aim"], f"{a['relation']} {a['threshold']}", float(a["value"]), "yes" if a["met"] else "**no**"]
            for a in card["aims"]
        ],
    )


def suite_table(card: dict) -> str:
    """Return the local suite's scores with chance and baselines."""
    rows = []
    for name, s in card["evaluation"].items():
        if name != "story_text":
            trivial = ", ".join(f"{b} {v:.3f}" for b, v in s["baselines"].items()) or "-"
            rows.append(
                [name, s["n"], s["accuracy"], s["standard_error"], s.get("greedy_exact", "-"), s["chance"], trivial]
            )
    return _table(["set", "items", "accuracy", "s.e.", "greedy exact", "chance", "trivial strategies"], rows)


def routing_table(card: dict) -> str:
    """Return entropy and predictability of every layer."""
    return _table(
        [
            "layer",
            "entropy, share of uniform",
            "max load",
            "lookahead top-4",
            "lookahead top-8",
            "previous token",
            "static top-4",
            "static top-8",
        ],
        [
            [
                r["layer"],
                r["entropy_share"],
                r["max_load"],
                "-" if r["lookahead_top_k"] is None else r["lookahead_top_k"],
                "-" if r["lookahead_top_2k"] is None else r["lookahead_top_2k"],
                r["previous_token"],
                r["static_top_k"],
                r["static_top_2k"],
            ]
            for r in card["routing"]["layers"]
        ],
    )


def drafter_table(card: dict) -> str:
    """Return tau and acceptance of every slot."""
    return _table(
        [
            "text",
            "prompts",
            "tau",
            "accepted slot 1 … 6, given that it was reached",
            "texts identical to plain decoding",
        ],
        [
            [
                kind,
                r["prompts"],
                r["tau"],
                " ".join("-" if a is None else f"{a:.2f}" for a in r["acceptance_given_reached"]),
                r["identical_texts"],
            ]
            for kind, r in card["drafter"].items()
        ],
    )


def render(card: dict, template: str, samples: str) -> str:
    """Fill the template's `<!-- name -->` lines."""
    model, training, story = card["files"]["demo-q8_0.gguf"], card["training"], card["evaluation"]["story_text"]
    cut, full = card["drafter_confidence"]["documents"], card["drafter"]["documents"]
    drafter, corpus, parity = card["files"]["demo-draft-q8_0.gguf"], card["corpus"], card["parity"]
    values = {
        "aims": aims_table(card),
        "suite": suite_table(card),
        "routing": routing_table(card),
        "drafter": drafter_table(card),
        "samples": samples.strip(),
        "sha": "\n".join(f"- `{n}`: {f['bytes']:,} bytes, sha256 `{f['sha256']}`" for n, f in card["files"].items()),
    }
    streams, share = corpus["streams"], corpus["hold_out"]["sharing_a_13_gram"] / corpus["hold_out"]["candidates"]
    text = template.format(
        parameters=model["parameters"] / 1e6,
        draft_parameters=drafter["parameters"] / 1e6,
        teacher_tokens=streams["train_teacher"]["tokens"] / 1e6,
        teacher_documents=streams["train_teacher"]["documents"],
        synthetic_tokens=streams["train_synthetic"]["tokens"] / 1e6,
        raw=corpus["raw"],
        kept=sum(corpus["kept"].values()),
        teacher_epochs=training["epochs"]["teacher"],
        synthetic_epochs=training["epochs"]["synthetic"],
        steps=training["steps"],
        tokens=training["tokens"] / 1e6,
        seconds=training["seconds"],
        nats=story["nats_per_token"],
        bpb=story["bits_per_byte"],
        overlap=share,
        held=corpus["hold_out"]["held_out"],
        losses=", ".join(f"{k} {v:.3f}" for k, v in training["validation"].items()),
        torch=training["torch"],
        draft_steps=card["drafter_training"]["steps"],
        draft_tokens=card["drafter_training"]["self_written_tokens"] / 1e6,
        draft_seconds=card["drafter_training"]["seconds"],
        f32=parity["f32_max_abs_difference"],
        kl=parity["q8_0_mean_kl"],
        cut_drafted=cut["drafted_per_round"],
        cut_share=(cut["tau"] - 1) / cut["drafted_per_round"],
        cut_tau=cut["tau"],
        full_share=(full["tau"] - 1) / full["drafted_per_round"],
        full_tau=full["tau"],
        lead=max(r["lead_at_difference_max"] or 0.0 for r in card["drafter"].values()),
        texts=parity["tokenizer_texts"],
        mismatches=parity["tokenizer_mismatches"],
        cloze=card["evaluation"]["cloze"]["greedy_exact"],
        ngram=card["evaluation"]["cloze"]["ngram_exact"],
    )
    for name, value in values.items():
        text = text.replace(f"<!-- {name} -->", value)
    return text


def main() -> None:
    """Write both cards."""
    card = build()
    (DEMO / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    template = (Path(__file__).parent / "card_template.md").read_text()
    (DEMO / "MODEL_CARD.md").write_text(render(card, template, (RUNS / "samples.md").read_text()))
    for aim in card["aims"]:
        print(aim)


if __name__ == "__main__":
    main()
