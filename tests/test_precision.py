"""The mixed-precision rung: its file, its verdict, and what people are shown; on tiny models, with the real runner."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from workbench.ablation import precision, store
from workbench.ablation.figure import save
from workbench.ablation.ladder import run_ladder
from workbench.ablation.results import sound
from workbench.ablation.rungs import DEFAULT_LADDER, Rung
from workbench.ablation.suites import Suite
from workbench.ablation.table import print_ladder
from workbench.config import RunConfig
from workbench.errors import ModelFileError
from workbench.quantize.quantize import quantize
from workbench.quantize.recipes import RecipeError, load_recipe
from workbench.session import Session
from workbench.storage.synth import SynthShape, synthesize

pytestmark = pytest.mark.native
SHAPE = SynthShape(
    n_layer=2, n_embd=256, n_ff=256, n_expert=8, n_expert_used=2, n_head=4, n_head_kv=2, n_vocab=300, n_ctx=256,
    expert_type="q8_0", dense_type="q8_0",
)  # fmt: skip
WORDS = "The fox and the hen went to the river, and the river was cold. Then the sun came out and all was well. " * 6
LADDER = (*DEFAULT_LADDER[:2], Rung(name="packed", model="packed"),
          next(rung for rung in DEFAULT_LADDER if rung.recipe == "les-mixed"))  # fmt: skip
CONFIG = RunConfig(threads=1)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Importance matrices stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model, its texts, and a finished ladder."""
    store.build_id.cache_clear()
    folder = tmp_path_factory.mktemp("precision")
    model = synthesize(folder / "tiny.gguf", SHAPE, progress=False)
    (folder / "words.txt").write_text(WORDS)
    text = str(folder / "words.txt")
    suite = Suite(rungs=LADDER, tokens=4, repeats=2, calibration=text, held_out=text)
    ladder = run_ladder(model, suite, folder / "run")
    return SimpleNamespace(model=model, text=text, suite=suite, folder=folder / "run", ladder=ladder)


def row_of(ladder: Any) -> dict[str, Any]:
    return next(row for row in ladder.document["rows"] if row["recipe"])


class TestLadder:
    def test_measured_never_bit_exact(self, here: SimpleNamespace) -> None:
        row = row_of(here.ladder)
        verdict = row["lossless"]
        assert (row["status"], verdict["verdict"], verdict["against"]) == ("ok", "measured", "resident (stock)")
        quality = verdict["quality"]
        assert quality["kl"]["mean"]["value"] > 0
        assert 0 <= quality["kl"]["p50"] <= quality["kl"]["p99"] <= quality["kl"]["max"]
        assert 0 < quality["top1_agreement"]["value"] <= 1
        assert quality["perplexity"] > 0
        assert verdict["positions"] == quality["positions"] > 200
        assert verdict["timed"]["verdict"] == "bit-exact"
        assert verdict["timed"]["against"] == "its own first repeat"
        assert sound(here.ladder.document["rows"])

    def test_other_rungs_stay_bit_exact(self, here: SimpleNamespace) -> None:
        others = [row for row in here.ladder.document["rows"] if not row["recipe"]]
        assert {row["lossless"]["verdict"] for row in others} == {"bit-exact"}
        assert {row["lossless"]["quality"] for row in others} == {None}

    def test_it_runs_on_the_packed_quantized_file(self, here: SimpleNamespace) -> None:
        row = row_of(here.ladder)
        baseline = next(row for row in here.ladder.document["rows"] if row["rung"] == "baseline")
        assert row["layout"] == "contiguous"
        assert row["changed"] == "recipe as given → les-mixed"
        assert row["bytes_per_token"] < 0.45 * baseline["bytes_per_token"], "3.44 bits instead of 8.5"
        files = [path.name for path in here.folder.glob("*.gguf")]
        assert sorted(name.split("-")[1].split(".")[0][:3] for name in files if "les" in name) == ["les"]
        assert all(name.endswith(".packed.gguf") for name in files), "no unpacked copy"
        report = here.ladder.document["quantized"]["packed, les-mixed"]
        assert report["expert_types"] == {"Q3_K": 6}
        assert "/" not in report["target"]
        manifest = json.loads((here.folder / "manifest.json").read_text())
        assert manifest["quantized"]["packed, les-mixed"]["file"] == report["target"]

    def test_resumes(self, here: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(precision, "measure", lambda *_, **__: pytest.fail("measured again"))
        again = run_ladder(here.model, here.suite, here.folder)
        assert again.ran == 0
        assert again.document == here.ladder.document

    def test_shown(self, here: SimpleNamespace, tmp_path: Path) -> None:
        from rich.console import Console

        console = Console(width=110, record=True, file=io.StringIO())
        print_ladder(here.ladder.document, console)
        text = console.export_text()
        for part in (
            "measured",
            "top-1",
            "What quantization lost",
            "nats",
            "perplexity",
            "bits per weight",
            "words.txt",
        ):
            assert part in text, part
        assert "inconclusive" in text, "random weights do not beat chance"
        assert save(here.ladder.document, tmp_path)["png"].exists()

    def test_a_text_too_short_is_not_checked(self, here: SimpleNamespace, tmp_path: Path) -> None:
        (tmp_path / "short.txt").write_text("Once.")
        suite = replace(here.suite, held_out=str(tmp_path / "short.txt"))
        row = row_of(run_ladder(here.model, suite, here.folder))
        assert row["status"] == "ok"
        assert row["lossless"]["verdict"] == "not checked"
        assert "too short to measure" in row["lossless"]["reason"]

    def test_a_recipe_that_fails_fails_its_rung_only(self, here: SimpleNamespace) -> None:
        suite = replace(here.suite, calibration=str(here.folder / "nowhere.txt"))
        rows = run_ladder(here.model, suite, here.folder).document["rows"]
        assert [row["status"] for row in rows] == ["ok", "ok", "ok", "failed"]
        assert "could not be quantized" in rows[-1]["error"]
        assert "nowhere.txt" in rows[-1]["error"]


class TestPlaces:
    def test_a_coarse_model_keeps_the_place_pending(self, tmp_path: Path) -> None:
        model = synthesize(tmp_path / "q4.gguf", replace(SHAPE, expert_type="q4_k"), progress=False)
        rung = precision.places(LADDER, model)[-1]
        assert rung.pending is not None
        assert rung.pending.startswith("quantized already: give the model in F32, F16, BF16 or Q8_0")

    def test_unknown_recipes_are_refused_before_anything_runs(self, here: SimpleNamespace) -> None:
        with pytest.raises(RecipeError, match="no such recipe"):
            precision.places((replace(LADDER[-1], recipe="les-mixd"),), here.model)


class TestMeasure:
    def test_equal_weights_lose_nothing(self, here: SimpleNamespace, tmp_path: Path) -> None:
        """The control: quantizing Q8_0 to Q8_0 changes no bit, so nothing may be measured."""
        quantize(here.model, load_recipe("q8_0"), tmp_path / "same.gguf", progress=False)
        verdict = precision.measure(here.model, tmp_path / "same.gguf", CONFIG, held_out=here.text, against="x")
        assert verdict.quality is not None
        assert verdict.quality["kl"]["max"] == 0.0
        assert verdict.quality["top1_agreement"]["value"] == 1.0
        assert verdict.quality["perplexity"] == verdict.quality["perplexity_reference"]
        assert verdict.verdict == "measured", "still not bit-exact: only a text was compared"

    def test_against_a_plain_computation(self, here: SimpleNamespace, tmp_path: Path) -> None:
        quantize(here.model, load_recipe("q4_k_m"), tmp_path / "q4.gguf", progress=False)
        verdict = precision.measure(here.model, tmp_path / "q4.gguf", CONFIG, held_out=here.text, against="x")
        kls, nlls, agree = [], [], []
        sizes = {"n_ctx": 256, "n_batch": 256, "n_ubatch": 256, "threads": 1, "experts": "resident"}
        with Session(here.model, **sizes) as a, Session(tmp_path / "q4.gguf", **sizes) as b:
            tokens = a.tokenize(WORDS)
            for at in range(0, len(tokens) - 255, 256):
                window = tokens[at : at + 256]
                window[: len(a.tokenize(""))] = a.tokenize("")
                p, q = (self.log_probabilities(s, window) for s in (a, b))
                for i in range(precision.CONTEXT_TOKENS, 255):
                    kls.append(float((np.exp(p[i]) * (p[i] - q[i])).sum()))
                    nlls.append(-float(q[i][window[i + 1]]))
                    agree.append(p[i].argmax() == q[i].argmax())
        assert verdict.quality is not None
        assert verdict.positions == len(kls)
        assert verdict.quality["kl"]["mean"]["value"] == pytest.approx(np.mean(kls), rel=1e-6)
        assert verdict.quality["kl"]["p99"] == pytest.approx(np.percentile(kls, 99), rel=1e-6)
        assert verdict.quality["top1_agreement"]["value"] == pytest.approx(np.mean(agree))
        assert verdict.quality["perplexity"] == pytest.approx(np.exp(np.mean(nlls)), rel=1e-6)

    @staticmethod
    def log_probabilities(session: Session, window: list[int]) -> np.ndarray:
        session.clear()
        logits = session.evaluate(window, range(256), [0] * 256, [True] * 256).astype(np.float64)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def test_another_tokenizer_is_refused(self, here: SimpleNamespace, tmp_path: Path) -> None:
        other = synthesize(tmp_path / "other.gguf", replace(SHAPE, n_vocab=400), progress=False)
        with pytest.raises((ModelFileError, ValueError)):
            precision.measure(here.model, other, CONFIG, held_out=here.text, against="x")
