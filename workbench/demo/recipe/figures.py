"""Draw the loss curves of model and drafter.

python -m workbench.demo.recipe.figures RUNS_DIR
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    """Read `train.csv`, `validation.jsonl`, `draft.csv` in a folder; write `loss.svg` there."""
    folder = Path(sys.argv[1])
    train, draft = pd.read_csv(folder / "train.csv"), pd.read_csv(folder / "draft.csv")
    validation = pd.DataFrame(json.loads(line) for line in (folder / "validation.jsonl").read_text().splitlines())
    tokens_per_step = train["tokens"].iloc[-1] / train["step"].iloc[-1]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    left.plot(train["tokens"] / 1e6, train["loss"], label="training mix", color="0.6")
    for kind in ("story", "fact", "synthetic"):
        left.plot(validation["step"] * tokens_per_step / 1e6, validation[kind], marker="o", label=f"held-out {kind}")
    left.set(xlabel="tokens (million)", ylabel="nats per token", ylim=(0.7, 3), title="Model")
    left.legend()
    for slot in range(sum(name.startswith("agreement") for name in draft.columns)):
        right.plot(draft["step"], draft[f"agreement_{slot}"].rolling(5, min_periods=1).mean(), label=f"slot {slot + 1}")
    right.set(xlabel="step", ylabel="top-1 agreement, teacher forced", ylim=(0, 1), title="Drafter")
    right.legend()
    figure.savefig(folder / "loss.svg")


if __name__ == "__main__":
    main()
