"""The embedded model: the file is the one its card describes, and it computes what the card says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from workbench.demo import demo_model

ROOT = Path(__file__).parents[1]
EVALS = ROOT / "evals" / "local"
N_LOSSY_TOP1 = 0.9


@pytest.fixture(scope="module")
def folder() -> Path:
    return demo_model().parent


@pytest.fixture(scope="module")
def card(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "card.json").read_text())


@pytest.fixture(scope="module")
def reader() -> gguf.GGUFReader:
    return gguf.GGUFReader(demo_model())


@pytest.fixture(scope="module")
def model() -> Any:
    from workbench.demo.recipe.scoring import GgufModel

    return GgufModel(demo_model())


class TestCard:
    def test_every_file_has_the_hash_and_size_of_the_card(self, folder: Path, card: dict[str, Any]) -> None:
        assert card["files"]
        for name, facts in card["files"].items():
            data = (folder / name).read_bytes()
            assert len(data) == facts["bytes"], name
            assert hashlib.sha256(data).hexdigest() == facts["sha256"], name

    def test_shape_is_the_one_of_the_file(self, card: dict[str, Any], reader: gguf.GGUFReader) -> None:
        facts = card["files"]["demo-q8_0.gguf"]
        for key in ("block_count", "embedding_length", "context_length", "expert_count", "expert_used_count"):
            assert reader.fields[f"qwen3moe.{key}"].contents() == facts[key], key
        assert sum(int(t.n_elements) for t in reader.tensors) == facts["parameters"]

    def test_page_is_rendered_from_the_card(self, folder: Path, card: dict[str, Any]) -> None:
        from workbench.demo.recipe.card import RUNS, render

        template = (RUNS.parent / "card_template.md").read_text()
        assert (folder / "MODEL_CARD.md").read_text() == render(card, template, (RUNS / "samples.md").read_text())

    def test_aims_follow_from_the_measured_values(self, card: dict[str, Any]) -> None:
        from workbench.demo.recipe.card import thresholds

        again = thresholds(card["evaluation"], card["routing"], card["drafter"], card["files"])
        assert again == card["aims"]
        assert all(aim["met"] for aim in again)

    def test_suite_has_the_items_that_were_scored(self, card: dict[str, Any]) -> None:
        for name, scores in card["evaluation"].items():
            lines = (EVALS / f"{name}.jsonl").read_text().splitlines()
            assert len(lines) == scores["n"] >= 500, name


class TestShape:
    def test_is_a_mixture_of_experts_in_every_layer(self, reader: gguf.GGUFReader) -> None:
        layers = reader.fields["qwen3moe.block_count"].contents()
        names = {t.name for t in reader.tensors}
        assert layers >= 8
        assert all(f"blk.{i}.ffn_down_exps.weight" in names for i in range(layers))

    def test_routing_is_sparse(self, reader: gguf.GGUFReader) -> None:
        assert reader.fields["qwen3moe.expert_count"].contents() >= 24
        assert reader.fields["qwen3moe.expert_used_count"].contents() <= 4

    def test_every_k_quant_applies(self, reader: gguf.GGUFReader) -> None:
        rows = {t.name: int(t.shape[0]) for t in reader.tensors if len(t.shape) > 1}
        assert {name: n for name, n in rows.items() if n % 256} == {}

    def test_context_mask_token_and_size(self, reader: gguf.GGUFReader) -> None:
        assert reader.fields["qwen3moe.context_length"].contents() >= 512
        mask = reader.fields["tokenizer.ggml.mask_token_id"].contents()
        assert reader.fields["tokenizer.ggml.tokens"].contents()[mask] == "<|mask|>"
        assert demo_model().stat().st_size <= 60_000_000


class TestDrafter:
    def test_belongs_to_the_model(self, folder: Path, reader: gguf.GGUFReader) -> None:
        draft = gguf.GGUFReader(folder / "demo-draft-q8_0.gguf")
        assert draft.fields["general.architecture"].contents() == "dflash"
        assert draft.fields["tokenizer.ggml.tokens"].contents() == reader.fields["tokenizer.ggml.tokens"].contents()
        width = reader.fields["qwen3moe.embedding_length"].contents()
        assert draft.fields["dflash.embedding_length"].contents() == width

    def test_taps_exist_and_none_is_past_the_last_layer(self, folder: Path, reader: gguf.GGUFReader) -> None:
        draft = gguf.GGUFReader(folder / "demo-draft-q8_0.gguf")
        taps = draft.fields["dflash.target_layers"].contents()
        assert all(0 <= tap < reader.fields["qwen3moe.block_count"].contents() for tap in taps)

    def test_has_its_heads(self, folder: Path) -> None:
        draft = gguf.GGUFReader(folder / "demo-draft-q8_0.gguf")
        names = {t.name for t in draft.tensors}
        assert {"markov_w1.weight", "markov_w2.weight", "conf_proj.weight", "conf_proj.bias"} <= names
        assert draft.fields["dflash.has_confidence_head"].contents() is True


@pytest.mark.native
class TestComputes:
    def test_logits_are_near_full_precision(self, model: Any, folder: Path) -> None:
        from workbench.demo.recipe.scoring import log_softmax

        kept = np.load(folder / "reference.npz")
        agree = []
        for number, prompt in enumerate(kept["prompts"]):
            tokens = model.tokenize(str(prompt), bos=True)
            assert tokens == kept[f"tokens_{number}"].tolist()
            model.forget()
            p, q = log_softmax(kept[f"logits_{number}"]), log_softmax(model.logits(tokens))
            assert (np.exp(p) * (p - q)).sum(-1).mean() < 0.002
            agree += list(p.argmax(-1) == q.argmax(-1))
        assert np.mean(agree) > N_LOSSY_TOP1

    @pytest.mark.parametrize(("name", "least"), [("arith_unseen", 0.95), ("recall", 0.92), ("state", 0.7)])
    def test_scores_hold_on_the_first_items(self, model: Any, name: str, least: float) -> None:
        from workbench.demo.recipe.evaluate import multiple_choice

        items = [json.loads(line) for line in (EVALS / f"{name}.jsonl").read_text().splitlines()[:24]]
        assert multiple_choice(model, items, greedy=False)["accuracy"] >= least

    def test_story_loss_holds_on_the_first_texts(self, model: Any) -> None:
        from workbench.demo.recipe.evaluate import story_loss

        items = [json.loads(line) for line in (EVALS / "story_text.jsonl").read_text().splitlines()[:5]]
        assert story_loss(model, items)["nats_per_token"] <= 2.2
