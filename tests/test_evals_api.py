"""`wb.compare` and `wb.eval`: what the commands find, as DataFrames and a display that says what was not measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evals_material import SHAPE, SIZES, questions, texts

import workbench as wb
from workbench import ToggleError
from workbench.api_evals import NOT_MEASURED, TASK_COLUMNS, verdict_badge
from workbench.evals.compare import labels
from workbench.evals.tasks import TaskError
from workbench.evals.verdict import INCONCLUSIVE, LOSSLESS

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def model(tiny_file: Callable[..., Path]) -> Path:
    return tiny_file("qwen3moe", **SHAPE)


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return texts(questions(model, tmp_path_factory.mktemp("data"), n=24))


@pytest.fixture(scope="module")
def found(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> wb.Comparison:
    """The model streamed from emulated flash against itself, resident: levels 1 and 4."""
    toggles: dict[str, Any] = {"io": "buffered", "cache_slots": 2, "emulate_bandwidth_bytes_s": 10**10, **SIZES}
    return wb.compare(model, level=(1, 4), data=data, texts=6, out=tmp_path_factory.mktemp("store"), **toggles)


class TestCompare:
    def test_levels(self, found: wb.Comparison) -> None:
        assert list(found.levels["verdict"]) == [LOSSLESS, NOT_MEASURED, NOT_MEASURED, INCONCLUSIVE]
        assert found.levels.loc[2, "reason"] == "not asked for"
        assert found.passes(1)
        assert not found.passes(3)
        assert found.figures(1)["positions"] > 0
        assert found.figures(2) == {}

    def test_tasks(self, found: wb.Comparison) -> None:
        row = found.tasks.loc["les_next"]
        assert list(found.tasks.columns) == list(TASK_COLUMNS)
        assert (row["items"], row["difference"], row["verdict"]) == (24, 0.0, INCONCLUSIVE)
        assert row["reason"] == "only 24 items; 100 are needed"

    def test_display(self, found: wb.Comparison) -> None:
        page = found._repr_html_()
        for part in (LOSSLESS, INCONCLUSIVE, NOT_MEASURED):
            assert verdict_badge(part) in page
        assert ">emulated<" in page
        assert "les_next: only 24 items; 100 are needed" in page

    def test_mistakes_are_named_before_anything_runs(self, model: Path, data: Path) -> None:
        with pytest.raises(ToggleError, match="levels=\\[7\\]"):
            wb.compare(model, level=7)
        with pytest.raises(ToggleError, match="unknown toggle lanez"):
            wb.compare(model, lanez=3)
        with pytest.raises(TaskError, match="unknown local task nothing"):
            wb.compare(model, data=data, tasks=["nothing"])
        with pytest.raises(ToggleError, match="suite='nowhere'"):
            wb.eval(model, suite="nowhere")


def test_eval(model: Path, data: Path, tmp_path: Path) -> None:
    scores = wb.eval(model, data=data, limit=8, out=tmp_path, experts="resident", **SIZES)
    row = scores.table.loc["les_next"]
    assert (row["items"], row["metric"], row["chance"]) == (8, "acc", 0.25)
    assert row["score"] == scores.samples.query("task == 'les_next'")["value"].mean()
    assert scores.table.loc["les_texts", "word_perplexity"] > 1
    assert NOT_MEASURED in scores._repr_html_()  # a text has no accuracy
    assert scores.labels == []
    again = wb.eval(model, data=data, limit=8, out=tmp_path, experts="resident", **SIZES)
    assert again.folder == scores.folder
    assert again.table.equals(scores.table)


def test_labels() -> None:
    plain, emulated = ({"config": {"emulate_bandwidth_bytes_s": b}} for b in (0, 10))
    assert labels(plain, plain) == []
    assert labels(plain, emulated) == ["emulated"]
    assert labels(plain | {"synthetic": True}, emulated) == ["emulated", "synthetic"]
