"""Evaluations are kept and found again; no two configurations share scores; the two commands end to end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from evals_material import SHAPE, SIZES, questions, texts

from workbench import RunConfig, ToggleError
from workbench.cli import cli
from workbench.cli.compare import reference_config
from workbench.evals import rungs
from workbench.evals.compare import Side, compare, matched
from workbench.evals.harness import EvalSpec, Evaluation, eval_config, evaluate
from workbench.evals.store import EvalStore, Journal
from workbench.evals.verdict import INCONCLUSIVE, LOSSLESS, NOT_LOSSLESS


@pytest.fixture(scope="module")
def model(tiny_file: Callable[..., Path]) -> Path:
    return tiny_file("qwen3moe", **SHAPE)


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return texts(questions(model, tmp_path_factory.mktemp("data"), n=24))


def run(model: Path, data: Path, root: Path, *, limit: int | None = None, **toggles: Any) -> Evaluation:
    config = RunConfig(**{"experts": "resident", **SIZES, **toggles})
    return evaluate(model, config, EvalSpec(data=data, limit=limit), root=root, progress=False)


class TestJournal:
    def test_keeps_and_survives_a_torn_line(self, tmp_path: Path) -> None:
        path = tmp_path / "j.jsonl"
        Journal(path).put("a", [1.5, True])
        path.write_text(path.read_text() + '["b", [2')
        again = Journal(path)
        assert (again.get("a"), again.get("b")) == ([1.5, True], None)
        again.put("b", 3)
        assert Journal(path).get("b") == 3

    def test_floats_come_back_to_the_bit(self, tmp_path: Path) -> None:
        value = -123.456789012345678 / 3
        Journal(tmp_path / "j.jsonl").put("a", value)
        assert Journal(tmp_path / "j.jsonl").get("a") == value


def test_keys_follow_everything_that_counts() -> None:
    base = {"config": {"lanes": 1}, "model_sha256": "a", "build": "b", "tasks": {"t": "c"}}
    others = [
        base | {k: v} for k, v in (("config", {"lanes": 2}), ("model_sha256", "x"), ("build", "x"), ("tasks", {}))
    ]
    assert len({EvalStore.key(x) for x in [base, *others]}) == 5


@pytest.mark.native
class TestEvaluate:
    def test_results_samples_and_manifest(self, model: Path, data: Path, tmp_path: Path) -> None:
        found = run(model, data, tmp_path)
        task = found.results["tasks"]["les_next"]
        assert (task["items"], task["metric"], task["chance"]) == (24, "acc", 0.25)
        assert task["score"] > 0.9
        assert set(task["trivial"]) >= {"first", "most frequent place"}
        text = found.results["tasks"]["les_texts"]
        assert text["score"] is None
        samples = found.samples[found.samples["task"] == "les_texts"]
        total = sum(lls[0] for lls in samples["lls"])
        assert text["metrics"]["word_perplexity"] == pytest.approx(math.exp(-total / samples["words"].sum()))
        manifest = json.loads((found.folder / "manifest.json").read_text())
        assert manifest["identity"]["model_sha256"]
        assert manifest["identity"]["config"]["experts"] == "resident"
        assert pd.read_parquet(found.folder / "samples.parquet")["task"].nunique() == 2

        again = run(model, data, tmp_path)
        assert again.reused
        assert again.results == json.loads(json.dumps(found.results))

    def test_no_two_configurations_share_a_folder(self, model: Path, data: Path, tmp_path: Path) -> None:
        runs = [
            run(model, data, tmp_path, limit=6),
            run(model, data, tmp_path, limit=6, experts="flash"),
            run(model, data, tmp_path, limit=5),
        ]
        assert len({found.folder for found in runs}) == 3
        assert not any(found.reused for found in runs)
        a, b, _ = (found.samples for found in runs)
        assert [list(x) for x in a["lls"]] == [list(x) for x in b["lls"]]

    def test_samples_are_those_of_the_items(self, model: Path, data: Path, tmp_path: Path) -> None:
        """Accuracy from the file, the scores and nothing else."""
        found = run(model, data, tmp_path)
        items = [json.loads(line) for line in (data / "next.jsonl").read_text().splitlines()]
        own = found.samples[found.samples["task"] == "les_next"].set_index("item")
        right = [int(own.loc[i["id"], "predicted"]) == i["gold"] for i in items]
        assert own["value"].mean() == sum(right) / len(right)


class TestSizes:
    def test_sizes_left_alone_become_larger_and_given_ones_stay(self) -> None:
        found = eval_config(RunConfig(n_batch=32))
        assert (found.n_batch, found.n_ubatch, found.n_seq_max, found.n_ctx) == (32, 32, 32, 4096)
        assert eval_config(RunConfig()).n_batch == 1024

    def test_both_sides_get_equal_threads_and_sizes(self) -> None:
        a, b = matched(
            Side(model=Path("a"), config=RunConfig(experts="resident")),
            Side(model=Path("b"), config=RunConfig(threads=1)),
        )
        assert (a.config.threads, b.config.threads) == (1, 1)
        with pytest.raises(ToggleError, match="threads: reference has 2, candidate 1"):
            matched(
                Side(model=Path("a"), config=RunConfig(experts="resident", threads=2)),
                Side(model=Path("b"), config=RunConfig(threads=1)),
            )

    def test_suites_and_levels_are_checked(self) -> None:
        with pytest.raises(ToggleError, match="suite='none'"):
            EvalSpec(suite="none")
        side = Side(model=Path("a"), config=RunConfig())
        with pytest.raises(ToggleError, match="levels=\\[5\\]"):
            compare(side, side, levels=(5,))

    def test_toggles_of_the_reference(self) -> None:
        assert reference_config(()).experts == "resident"
        assert reference_config(("experts=flash", "cache-slots=4")).cache_slots == 4
        for wrong in ("experts", "lanes=many", "nothing=1"):
            with pytest.raises(ToggleError):
                reference_config((wrong,))


def options(**values: Any) -> list[str]:
    return [x for k, v in (SIZES | values).items() for x in (f"--{k.replace('_', '-')}", str(v))]


@pytest.mark.native
class TestCommands:
    def test_eval(self, model: Path, data: Path, tmp_path: Path) -> None:
        target = tmp_path / "e.json"
        arguments = ["eval", str(model), "--data", str(data), "--limit", "8", "--out", str(tmp_path / "s"), "--json",
                     str(target), *options(experts="flash")]  # fmt: skip
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        document = json.loads(result.stdout.splitlines()[-1])
        assert document == json.loads(target.read_text())
        assert document["tasks"]["les_next"]["items"] == 8
        assert "chance" in result.output
        assert "Kept from before" in CliRunner().invoke(cli, arguments).output

    def test_compare_says_what_is_required(self, model: Path, data: Path, tmp_path: Path) -> None:
        """Few items certify no task: level 1 may be required, level 4 may not."""
        common = ["compare", str(model), str(model), "--data", str(data), "--out", str(tmp_path / "s"), *options()]
        good = CliRunner().invoke(cli, [*common, "--levels", "1,4", "--require", "1"], catch_exceptions=False)
        assert good.exit_code == 0, good.output
        document = json.loads(good.stdout.splitlines()[-1])
        assert [v["verdict"] for v in document["levels"]] == [LOSSLESS, INCONCLUSIVE]
        assert "only 24 items" in document["levels"][1]["reason"]
        assert CliRunner().invoke(cli, [*common, "--levels", "4", "--require", "4"]).exit_code == 1
        assert CliRunner().invoke(cli, [*common, "--levels", "4"]).exit_code == 0


def row(rung: str, verdict: str = "bit-exact", **more: Any) -> dict[str, Any]:
    found = {"verdict": verdict, "reason": None, "differing": 3, "compared": 9}
    return {"rung": rung, "status": "ok", "model": "native", "recipe": None, "lossless": found,
            "config": {"experts": "resident", "threads": 1}, **more}  # fmt: skip


class TestRungs:
    def judged(self, *rows: dict[str, Any], **how: Any) -> dict[str, Any]:
        document = {"rows": list(rows)}
        rungs.judge(document, Path("m.gguf"), how.pop("files", {}), **how)
        return document

    def test_scheduling_cache_and_layout_are_level_1(self) -> None:
        document = self.judged(row("a"), row("b", "differs"), row("c", "not checked"), row("d", status="failed"))
        found = [(v["level"], v["verdict"]) for r in document["rows"] for v in r["levels"]]
        assert found == [(1, LOSSLESS), (1, NOT_LOSSLESS), (1, INCONCLUSIVE), (1, INCONCLUSIVE)]
        assert "3 of 9 logits differ" in rungs.lines(document)[1]

    @pytest.mark.parametrize(
        ("verdict", "level"),
        [("bit-exact", LOSSLESS), ("same tokens", LOSSLESS), ("differs", NOT_LOSSLESS), ("near-tie", INCONCLUSIVE)],
    )
    def test_drafting_is_level_2(self, verdict: str, level: str) -> None:
        drafting = row("draft", verdict, config={"experts": "flash", "speculation": "dspark"})
        (found,) = self.judged(drafting)["rows"][0]["levels"]
        assert (found["level"], found["verdict"]) == (2, level)

    def test_drafting_on_a_quantized_file_is_both(self) -> None:
        drafting = row("draft", recipe="x", config={"experts": "flash", "speculation": "dspark"})
        found = self.judged(drafting)["rows"][0]["levels"]
        assert [(v["level"], v["verdict"]) for v in found] == [(2, LOSSLESS), (3, INCONCLUSIVE), (4, INCONCLUSIVE)]

    def test_quantization_waits_for_a_suite(self) -> None:
        found = self.judged(row("q", "measured", recipe="x"))["rows"][0]["levels"]
        assert [(v["level"], v["verdict"]) for v in found] == [(3, INCONCLUSIVE), (4, INCONCLUSIVE)]

    @pytest.mark.parametrize(("kl", "verdict"), [(0.04, NOT_LOSSLESS), (0.001, INCONCLUSIVE)])
    def test_a_measured_loss_refutes_but_certifies_nothing(self, kl: float, verdict: str) -> None:
        """The ladder's own texts have no control beside them."""
        lossless = {"verdict": "measured", "reason": None, "quality": {
            "texts": 6, "kl": {"mean": {"value": kl, "low": kl / 2, "high": kl * 2}},
            "top1_agreement": {"value": 0.999, "low": 0.995, "high": 1.0},
            "perplexity_ratio": {"value": 1.0, "low": 0.999, "high": 1.001}}}  # fmt: skip
        found = self.judged(row("q", recipe="x") | {"lossless": lossless})["rows"][0]["levels"]
        assert [(v["level"], v["verdict"]) for v in found] == [(3, verdict), (4, INCONCLUSIVE)]
        drafting = row("d", recipe="x", config={"experts": "flash", "speculation": "dspark"})
        found = self.judged(row("q", recipe="x") | {"lossless": lossless}, drafting)["rows"][1]["levels"]
        assert [(v["level"], v["verdict"]) for v in found] == [(2, LOSSLESS), (3, verdict), (4, INCONCLUSIVE)]

    @pytest.mark.native
    def test_quantization_is_levels_3_and_4(
        self, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import workbench.evals.harness as harness
        from workbench.evals import tasks

        for module in (harness, tasks):
            monkeypatch.setattr(
                module,
                "local_tasks",
                lambda folders=None, names=None, real=tasks.local_tasks: real([data], names=names),
            )
        document = {"rows": [row("q", "measured", recipe="x")]}
        rungs.judge(document, model, {"native, x": model}, suite="local", root=tmp_path)
        found = document["rows"][0]["levels"]
        assert [v["level"] for v in found] == [3, 4]
        assert found[0]["verdict"] == LOSSLESS
        assert [p["name"] for p in document["size_score"]] == ["as given", "q"]
        assert any("size against score" in line for line in rungs.lines(document))


@pytest.mark.parametrize(("score", "low", "high"), [(1.0, 0.9630, 1.0), (0.0, 0.0, 0.0370), (0.5, 0.4038, 0.5962)])
def test_intervals_of_scores_stay_within_0_and_1(score: float, low: float, high: float) -> None:
    """Wilson's interval for 100 items, from tables."""
    found = rungs.size_score("a", 1, score, 100)
    assert (found["low"], found["high"]) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert 0 <= found["low"] <= found["high"] <= 1


def test_the_size_score_figure_repeats_itself(tmp_path: Path) -> None:
    from workbench.evals.figure import save_size_score

    points = [
        {"name": n, "file_bytes": b, "score": 0.8, "low": 0.7, "high": 0.85, "items": 90}
        for n, b in (("a", 10**7), ("b", 10**6))
    ]
    a, b = (save_size_score(points, tmp_path / f"{i}.png").read_bytes() for i in range(2))
    assert a == b
