"""Measure the routing: load entropy, and how well the next layer's experts can be foreseen.

python -m workbench.demo.recipe.routing LEVELS tokenizer.json evals --out routing.json
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from workbench.demo.recipe.model import DemoModel
from workbench.demo.recipe.weights import load_into, load_levels


def windows(tokenizer: Tokenizer, evals: Path, n_ctx: int, n_story: int, n_question: int) -> Tensor:
    """Return token windows [n, n_ctx] of held-out stories, then of the suite's questions with their answers."""
    stories = [json.loads(line)["text"] for line in (evals / "story_text.jsonl").read_text().splitlines()]
    questions = []
    for name in ("arith_unseen", "recall", "state", "person"):
        items = [json.loads(line) for line in (evals / f"{name}.jsonl").read_text().splitlines()]
        questions += [item["prompt"] + item["choices"][item["gold"]] for item in items[:200]]
    rows = []
    for texts, n, end in ((stories, n_story, [0]), (questions, n_question, tokenizer.encode("\n").ids)):
        stream = [token for text in texts for token in [*tokenizer.encode(text).ids, *end]]
        rows += [stream[i * n_ctx : (i + 1) * n_ctx] for i in range(n)]
    return torch.tensor(rows)


def _share(truth: Tensor, guess: Tensor) -> float:
    """Return the share of true experts [..., k] that are among the guessed [..., m]."""
    return (truth[..., None] == guess[..., None, :]).any(-1).float().mean().item()


@torch.no_grad()
def measure(model: DemoModel, ids: Tensor) -> list[dict[str, float | int | None]]:
    """Return one row per layer; predictions of layer l come from the router input of layer l - 1."""
    k, n_expert = model.shape.n_expert_used, model.shape.n_expert
    _, routing, _ = model.body(ids)
    rows: list[dict[str, float | int | None]] = []
    for layer, route in enumerate(routing):
        chosen = route.chosen.view(*ids.shape, k)
        load = torch.bincount(chosen.reshape(-1), minlength=n_expert).float()
        p = load / load.sum()
        entropy = -(p * p.clamp_min(1e-12).log2()).sum().item()
        frequent = torch.bincount(chosen[::2].reshape(-1), minlength=n_expert).argsort(descending=True)
        row: dict[str, float | int | None] = {
            "layer": layer,
            "entropy_bits": entropy,
            "entropy_share": entropy / math.log2(n_expert),
            "max_load": p.max().item() * n_expert,
            "min_load": p.min().item() * n_expert,
            "previous_token": _share(chosen[:, 1:], chosen[:, :-1]),
            "static_top_k": _share(chosen[1::2], frequent[:k]),
            "static_top_2k": _share(chosen[1::2], frequent[: 2 * k]),
            "lookahead_top_k": None,
            "lookahead_top_2k": None,
        }
        if layer > 0:
            guess = F.linear(routing[layer - 1].router_input.float(), model.layers[layer].router)
            order = guess.topk(2 * k, -1).indices.view(*ids.shape, 2 * k)
            row["lookahead_top_k"] = _share(chosen, order[..., :k])
            row["lookahead_top_2k"] = _share(chosen, order)
        rows.append(row)
    return rows


def main() -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("levels", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("evals", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stories", type=int, default=16)
    parser.add_argument("--questions", type=int, default=8)
    args = parser.parse_args()
    model = DemoModel(dtype=torch.float32, grouped=False)
    load_into(model, load_levels(args.levels))
    ids = windows(Tokenizer.from_file(str(args.tokenizer)), args.evals, model.shape.n_ctx, args.stories, args.questions)
    rows = measure(model, ids)
    for row in rows:
        print(
            " ".join(
                f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )
    args.out.write_text(json.dumps({"tokens": ids.numel(), "layers": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
