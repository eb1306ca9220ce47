"""The recipe's parts that run without an accelerator: tasks, worlds, hold-out, cleaning, weights, layout."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workbench.demo.recipe import evalsets, people, states, synthetic, tasks
from workbench.demo.recipe.clean import END_OF_TEXT, clean_answer
from workbench.demo.recipe.draft_report import summarize
from workbench.demo.recipe.ngram import WordModel
from workbench.demo.recipe.overlap import hash_set, hits
from workbench.errors import UnsupportedArchitectureError
from workbench.session import Session
from workbench.storage.gguf_file import open_gguf

EVALS = Path(__file__).parents[1] / "evals" / "local"
STEPS = 200


class TestTasks:
    @pytest.mark.parametrize("source", [*tasks.GENERATORS[2:], states.carry, states.swap, states.nested])
    def test_answers_are_stable_and_never_among_the_wrong_ones(self, source) -> None:  # type: ignore[no-untyped-def]
        for seed in range(50):
            item = source(random.Random(seed))
            assert item == source(random.Random(seed))
            assert item.answer not in item.wrong

    def test_sums_are_right(self) -> None:
        for seed in range(200):
            item = tasks.arithmetic(random.Random(seed))
            a, b = map(int, item.split_key.replace("+", " ").replace("-", " ").split())
            assert int(item.answer) == (a + b if "+" in item.split_key else a - b)

    def test_hold_out_ignores_the_wording(self) -> None:
        plain = tasks.Item("arith", "What is 3 + 4?", "7", [], "3+4")
        worded = tasks.Item("arith", "How much is 4 plus 3?", "7", [], "3+4")
        assert tasks.held_out(plain) == tasks.held_out(worded)

    def test_a_tenth_of_the_sums_is_held_out(self) -> None:
        rng = random.Random(0)
        share = np.mean([tasks.held_out(tasks.arithmetic(rng)) for _ in range(3000)])
        assert 0.05 < share < 0.15


class TestStates:
    def test_carried_things_move_with_their_bearer(self) -> None:
        moved = 0
        for seed in range(300):
            item = states.carry(random.Random(seed))
            moved += item.answer != item.baselines["beside the asked"]
        assert moved > 60

    @pytest.mark.parametrize("name", ["last mention", "most frequent", "beside the asked"])
    def test_trivial_strategies_fail_on_the_suite(self, name: str) -> None:
        items = [json.loads(line) for line in (EVALS / "state.jsonl").read_text().splitlines()]
        assert np.mean([item["baselines"].get(name) == item["gold"] for item in items]) < 0.4


class TestHoldOut:
    def test_ngram_overlap_is_found_whatever_the_punctuation(self) -> None:
        text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
        known = hash_set([text])
        assert len(hits("Well, " + text.replace(" ", ", ") + "!", known)) == 2
        assert len(hits(text.replace("seven", "7"), known)) == 0

    def test_training_documents_hold_no_evaluated_question(self) -> None:
        sets = evalsets.question_sets()
        evaluated = hash_set(item["prompt"][3:-3] for items in sets.values() for item in items)
        rng = random.Random(1)
        asked = [synthetic.synthetic_document(rng, evaluated) for _ in range(300)]
        questions = {item["prompt"][3:-3] for items in sets.values() for item in items}
        assert not any(question in document for document in asked for question in questions)

    def test_suite_on_disk_is_the_one_the_recipe_builds(self) -> None:
        for name, items in evalsets.question_sets().items():
            kept = [json.loads(line) for line in (EVALS / f"{name}.jsonl").read_text().splitlines()]
            assert [item["prompt"] for item in kept] == [item["prompt"] for item in items]

    def test_biographies_agree_with_the_base(self) -> None:
        rng = random.Random(2)
        item = people.person_fact(rng)
        name, key = item.split_key.split("|")
        assert people.PEOPLE[name][key] == item.answer

    def test_document_ends_with_the_end_of_text(self) -> None:
        assert synthetic.synthetic_document(random.Random(3), hash_set([])).endswith(END_OF_TEXT)


class TestCleaning:
    STORY = (
        "Mia had a small boat. She took it to the lake one morning. The wind was strong and the water was cold. "
        "A duck swam past and looked at her. She laughed, rowed home, and told her father about every wave, every "
        "cloud and the brave duck that had kept her company all the way."
    )

    def test_keeps_a_story(self) -> None:
        assert clean_answer(self.STORY, "story", finished=True) == self.STORY

    def test_cuts_an_unfinished_answer_at_its_last_sentence(self) -> None:
        assert clean_answer(self.STORY + " And then she", "story", finished=False) == self.STORY

    @pytest.mark.parametrize(
        "text", ["too short", STORY + " http://x", " ".join(["the cat sat"] * 40), STORY + " 日本"]
    )
    def test_drops_the_rest(self, text: str) -> None:
        assert clean_answer(text, "story", finished=True) is None


class TestBaselines:
    def test_ngram_model_backs_off(self) -> None:
        model = WordModel(["the cat sat on the mat", "the cat sat on the mat", "a dog ran"])
        assert model.best(["sat", "on", "the"]) == "mat"
        assert model.score(["sat", "on", "the"], "mat") == 1.0
        assert 0 < model.score(["zebra", "the"], "cat") < model.score(["the"], "cat") <= 1
        assert model.score(["the"], "unknown") == 0

    def test_tau_counts_the_bonus_token(self) -> None:
        line = {"kind": "story", "rounds": 2, "emitted": 5, "drafted": 4, "first_difference": -1, "lead": 0.0}
        report = summarize([{**line, "offered": [2, 2], "accepted": [2, 1]}])
        assert report["story"]["tau"] == 2.5
        assert report["documents"]["acceptance_given_reached"] == [1.0, 0.5]


class TestWeights:
    def test_two_levels_keep_sixteen_bits_and_the_first_is_q8_0(self, tmp_path: Path) -> None:
        torch = pytest.importorskip("torch")
        import gguf

        from workbench.demo.recipe.weights import load_levels, save_levels

        torch.manual_seed(0)
        layer = torch.nn.Linear(64, 32)
        save_levels(layer, tmp_path)
        wanted = layer.weight.detach().numpy()
        assert np.abs(load_levels(tmp_path)["weight"] - wanted).max() < 2e-5
        for part in tmp_path.glob("level2.*"):
            part.unlink()
        kind = gguf.GGMLQuantizationType.Q8_0
        q8_0 = gguf.quants.dequantize(gguf.quants.quantize(wanted, kind), kind)
        assert np.abs(load_levels(tmp_path)["weight"] - q8_0).max() < 1e-3


PYTORCH_NAMES = {
    "attn_norm": "attn_norm",
    "attn_q": "wq",
    "attn_k": "wk",
    "attn_v": "wv",
    "attn_output": "wo",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "ffn_norm": "ffn_norm",
    "ffn_gate_inp": "router",
    "ffn_down_exps": "down",
}


def edited(path: Path, to: Path, edits: dict[str, tuple[float, float]]) -> Path:
    """Copy an F32 model; tensors whose name a pattern finds become factor × values + offset."""
    to.write_bytes(path.read_bytes())
    for shard, tensor in open_gguf(to).tensors():
        for pattern, (factor, offset) in edits.items():
            if re.search(pattern, tensor.name):
                at = shard.header.data_start + tensor.offset
                values = np.memmap(to, np.float32, "r+", at, (tensor.n_bytes // 4,))
                values[:] = np.float32(factor) * values + np.float32(offset)
                values.flush()
    return to


def accepted_share(target: Path, drafter: Path) -> float:
    """Share of the drafted tokens that greedy decoding accepts on two prompts of the recipe's kind."""
    drafted = accepted = 0
    toggles = {"experts": "resident", "speculation": "dspark", "draft_model": str(drafter), "threads": 1}
    for prompt in ("Tell me a story about a small dog", "Explain how rain is made"):
        with Session(target, **toggles) as session:
            for record in session.generate(prompt, n_predict=40, ignore_eos=True):
                drafted, accepted = drafted + (record["drafted"] or 0), accepted + (record["accepted"] or 0)
    return accepted / drafted


@pytest.mark.native
class TestDrafterOfAnyTarget:
    def test_llama_cpp_shows_what_the_pytorch_target_computes(
        self, tiny_file: Callable[..., Path], tmp_path: Path
    ) -> None:
        torch = pytest.importorskip("torch")
        from workbench.demo.recipe.draft_target import GgufTarget, embedding_and_head, tensor
        from workbench.demo.recipe.model import DemoModel, Shape

        # the PyTorch model has no biases and no scales
        path = edited(tiny_file("qwen3moe"), tmp_path / "target.gguf", {r"\.bias$": (0, 0), r"\.scale$": (0, 1)})
        file = open_gguf(path)
        shape = Shape(n_vocab=512, n_layer=5, n_head=4, n_expert=16, n_ctx=256, rms_eps=1e-5)
        weights = {"embedding": tensor(file, "token_embd.weight"), "output_norm": tensor(file, "output_norm.weight")}
        for i in range(shape.n_layer):
            for name, ours in PYTORCH_NAMES.items():
                weights[f"layers.{i}.{ours}"] = tensor(file, f"blk.{i}.{name}.weight")
            halves = [tensor(file, f"blk.{i}.ffn_{kind}_exps.weight") for kind in ("gate", "up")]
            weights[f"layers.{i}.gate_up"] = np.concatenate(halves, 1)
        model = DemoModel(shape, dtype=torch.float32, grouped=False)
        model.load_state_dict({name: torch.tensor(values) for name, values in weights.items()})
        ids = [7 * i % 512 for i in range(150)]  # more than one batch
        with GgufTarget(path, (1, 3, 4), n_rows=1, length=256, threads=1) as target:
            features, logits = target.read(ids)
        with torch.no_grad():
            final, _, inputs = model.body(torch.tensor([ids]))
            wanted = torch.cat([inputs[tap] for tap in target.taps], -1)[0].numpy()
            wanted_logits = (final[0] @ embedding_and_head(file)[1].T).numpy()
        for seen, right in ((features, wanted), (logits, wanted_logits)):
            assert np.linalg.norm(seen - right) < 5e-3 * np.linalg.norm(right)

    @pytest.mark.slow
    def test_training_from_a_gguf_raises_acceptance(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        pytest.importorskip("torch")
        pytest.importorskip("tokenizers")
        from workbench.demo.recipe import draft_export, draft_train

        # layers that add little: the last token nearly decides the next
        quiet = {r"attn_output\.weight|ffn_down_exps": (0.1, 0)}
        target = edited(tiny_file("gpt-oss"), tmp_path / "target.gguf", quiet)
        sizes = "--texts 4 --rows 16 --length 80 --batch 8 --anchors 8 --layers 1 --keep 512 --threads 1"
        shares = []
        for steps in (0, STEPS):
            arguments = [str(tmp_path / "draft"), "--target", str(target), *sizes.split(), "--steps", str(steps)]
            draft_train.main(arguments)
            drafter = tmp_path / f"{steps}.gguf"
            draft_export.main([str(tmp_path / "draft"), str(drafter), "--target", str(target)])
            shares.append(accepted_share(target, drafter))
        assert shares[1] > 1.5 * shares[0] > 0

    def test_a_target_without_taps_is_refused(self, tiny_file: Callable[..., Path]) -> None:
        pytest.importorskip("torch")
        from workbench.demo.recipe.draft_target import target_shape

        with pytest.raises(UnsupportedArchitectureError, match="olmoe has no taps"):
            target_shape(open_gguf(tiny_file("olmoe")))
