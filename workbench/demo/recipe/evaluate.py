"""Score a GGUF on the local evaluation suite and print one table and one JSON line.

python -m workbench.demo.recipe.evaluate MODEL.gguf evals --out scores.json
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from pathlib import Path

from workbench.demo.recipe.scoring import GgufModel

SETS = ("arith_unseen", "recall", "state", "person", "ending", "ending_hard", "cloze")


def _read(path: Path, limit: int | None) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()[:limit]]


def trivial_accuracy(items: list[dict]) -> dict[str, float]:
    """Return the accuracy of each trivial strategy; where it has no guess among the choices it counts as chance."""
    names = sorted({name for item in items for name in item["baselines"]})
    return {
        name: sum(
            float(item["baselines"][name] == item["gold"]) if name in item["baselines"] else 1 / len(item["choices"])
            for item in items
        )
        / len(items)
        for name in names
    }


def multiple_choice(model: GgufModel, items: list[dict], *, greedy: bool) -> dict:
    """Return accuracy by total and by per-token log-likelihood, chance, baselines, and greedy exact match."""
    right_sum = right_mean = right_greedy = ngram = 0
    by_source: dict[str, list[int]] = defaultdict(list)
    for item in items:
        scores = model.choice_scores(item["prompt"], item["choices"])
        order = range(len(scores))
        total = max(order, key=lambda i: scores[i][0])
        mean = max(order, key=lambda i: scores[i][0] / scores[i][1])
        right_sum += total == item["gold"]
        right_mean += mean == item["gold"]
        by_source[item["source"]].append(mean == item["gold"])
        if greedy:
            wanted = model.tokenize(item["choices"][item["gold"]], bos=False)
            prompt = model.tokenize(item["prompt"], bos=True)[-(model.n_ctx - len(wanted)) :]
            right_greedy += model.generate(prompt, len(wanted), stop=set()) == wanted
        ngram += item.get("ngram_word") == item["choices"][item["gold"]].strip()
    n = len(items)
    accuracy = right_mean / n
    result = {
        "n": n,
        "accuracy": accuracy,
        "accuracy_total": right_sum / n,
        "standard_error": math.sqrt(accuracy * (1 - accuracy) / n),
        "chance": sum(1 / len(item["choices"]) for item in items) / n,
        "baselines": trivial_accuracy(items),
        "by_source": {name: [sum(marks) / len(marks), len(marks)] for name, marks in by_source.items()},
    }
    if greedy:
        result["greedy_exact"] = right_greedy / n
    if "ngram_word" in items[0]:
        result["ngram_exact"] = ngram / n
    return result


def story_loss(model: GgufModel, items: list[dict]) -> dict:
    """Return mean nats per token and bits per byte of whole documents."""
    nats, n_tokens, n_bytes = 0.0, 0, 0
    for item in items:
        tokens = model.tokenize(item["text"], bos=True)[: model.n_ctx]
        nats += float(model.token_losses(tokens).sum())
        n_tokens += len(tokens) - 1
        n_bytes += len(model.text(tokens[1:]).encode())
    return {
        "n": len(items),
        "tokens": n_tokens,
        "nats_per_token": nats / n_tokens,
        "bits_per_byte": nats / math.log(2) / n_bytes,
    }


def main() -> None:
    """Evaluate every set that is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("evals", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=int, help="items per set")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    model = GgufModel(args.model, n_threads=args.threads)
    results: dict[str, dict] = {}
    for name in SETS:
        began = time.time()
        results[name] = multiple_choice(
            model, _read(args.evals / f"{name}.jsonl", args.limit), greedy=name not in ("ending", "ending_hard")
        )
        score = results[name]
        print(
            f"{name:14} accuracy {score['accuracy']:.3f} greedy {score.get('greedy_exact', math.nan):.3f}"
            f" chance {score['chance']:.3f} best baseline {max(score['baselines'].values(), default=math.nan):.3f}"
            f" ({time.time() - began:.0f} s)",
            flush=True,
        )
    results["story_text"] = story_loss(model, _read(args.evals / "story_text.jsonl", args.limit))
    print(f"story_text     {results['story_text']}")
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
