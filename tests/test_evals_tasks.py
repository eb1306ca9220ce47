"""Local tasks and suites: every shipped file is sound, every mistake is named with file and line."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.ablation import precision
from workbench.evals.tasks import CHOICE, HUB_SUITES, TEXT, TaskError, chance, data_folders, local_tasks, trivial
from workbench.evals.verdict import LEVELS
from workbench.quantize import calibrate

SHIPPED = local_tasks()
ITEM = {"id": "a", "prompt": "Q", "choices": [" x", " yy"], "gold": 1, "source": "here"}


def write(folder: Path, *items: Any, name: str = "t") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in items))
    return folder


@pytest.mark.parametrize("task", SHIPPED, ids=lambda task: task.name)
def test_shipped_task(task: Any) -> None:
    assert len(task.items) >= 500
    facts = task.facts()
    if task.kind == CHOICE:
        assert facts["chance"] == pytest.approx(0.25, abs=0.01)
        places = [item["gold"] for item in task.items]
        assert {"most frequent place", "longest choice", "shortest choice"} <= set(facts["trivial"])
        assert max(places.count(p) for p in set(places)) / len(places) < 0.35
        prompts = [(item["prompt"], tuple(item["choices"])) for item in task.items]
        assert len(set(prompts)) == len(prompts)


def test_the_suite_covers_what_it_must() -> None:
    names = {task.name for task in SHIPPED}
    assert {"recall", "state", "arith_unseen", "ending", "cloze"} <= names
    assert {task.kind for task in SHIPPED} == {CHOICE, TEXT}


@pytest.mark.parametrize("task", SHIPPED, ids=lambda task: task.name)
def test_place_and_length_give_nothing_away(task: Any) -> None:
    """What reads the words (overlap, n-grams) may do well: it is reported beside the scores."""
    if task.kind == CHOICE:
        found = task.facts()["trivial"]
        assert max(found[name] for name in ("most frequent place", "longest choice", "shortest choice")) < 0.4


def shingles(text: str, n: int = 8) -> set[tuple[str, ...]]:
    """Runs of `n` words, without case and punctuation."""
    words = re.findall(r"[a-z0-9']+", text.lower())
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def item_texts(task: Any) -> Iterator[str]:
    for item in task.items:
        yield from [item["text"]] if task.kind == TEXT else [item["prompt"] + choice for choice in item["choices"]]


@pytest.mark.parametrize("task", SHIPPED, ids=lambda task: task.name)
def test_nothing_is_judged_on_what_it_was_calibrated_on(task: Any) -> None:
    """Calibration text, held-out text and evaluation items share no run of eight words."""
    calibration = shingles(calibrate.BUNDLED_TEXT.read_text(encoding="utf-8"))
    held_out = shingles(precision.BUNDLED_TEXT.read_text(encoding="utf-8"))
    assert min(len(calibration), len(held_out)) > 1000
    assert not calibration & held_out
    shared = {run for text in item_texts(task) for run in shingles(text) & (calibration | held_out)}
    assert not shared


def test_lm_eval_loads_every_shipped_task() -> None:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_defaults=False)
    for task in SHIPPED:
        config = task.config()
        found = manager.load([config])["tasks"][task.task]
        assert len(found.test_docs()) == len(task.items)
        doc = found.test_docs()[3]
        if task.kind == CHOICE:
            item = task.items[3]
            assert found.doc_to_text(doc) == item["prompt"]
            assert found.doc_to_choice(doc) == item["choices"]
            assert found.doc_to_target(doc) == item["gold"]
            arguments = [i.args for i in found.construct_requests(doc, item["prompt"], metadata=("t", 0, 1))]
            assert arguments == [(item["prompt"], choice) for choice in item["choices"]]
        else:
            assert found.doc_to_target(doc) == task.items[3]["text"]


@pytest.mark.parametrize("suite", HUB_SUITES.values(), ids=lambda suite: suite.name)
def test_hub_suites_name_tasks_that_lm_eval_has(suite: Any) -> None:
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "tasks"
    known = set()
    for part in ("mmlu/default", "arc", "hellaswag", "winogrande", "gsm8k", "truthfulqa", "wikitext"):
        for path in (folder / part).glob("*.yaml"):
            known |= {
                line.partition(":")[2].strip()
                for line in path.read_text().splitlines()
                if line.startswith(("task:", "group:"))
            }
    assert {name for name, _ in suite.tasks} <= known


def test_the_article_averages_five() -> None:
    assert len(HUB_SUITES["article"].tasks) == 5
    assert len(LEVELS) == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"t\.jsonl:2: "),
        ([], "expected one JSON object"),
        ({"id": "b", "prompt": "Q"}, "lacks choices, gold"),
        (ITEM | {"id": "b", "gold": 2}, "gold=2"),
        (ITEM | {"id": "b", "gold": True}, "gold=True"),
        (ITEM | {"id": "b", "choices": [" x"]}, "two or more"),
        (ITEM | {"id": "b", "choices": [" x", " x"]}, "one is there twice"),
        (ITEM | {"id": "b", "prompt": " "}, "prompt is empty"),
        (ITEM, "'a' is used twice"),
        ({"id": "b", "text": "plain"}, "mixed"),
        ({"id": "b", "text": " "}, "text is empty"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        local_tasks([write(tmp_path / "d", ITEM, line)])


def test_missing_tasks_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no local tasks"):
        local_tasks([tmp_path])
    with pytest.raises(TaskError, match="unknown local task other; known: t"):
        local_tasks([write(tmp_path / "d", ITEM)], names=["other"])


def test_an_earlier_folder_wins_and_names_may_carry_the_prefix(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", ITEM), write(tmp_path / "b", ITEM, ITEM | {"id": "b"})
    assert len(local_tasks([first, second])[0].items) == 1
    assert local_tasks([first], names=["les_t"])[0].task == "les_t"


def test_the_hash_follows_data_and_template(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", ITEM)
    plain = local_tasks([folder])[0]
    (folder / "t.yaml").write_text(plain.template.read_text() + "\n# mine\n")
    own = local_tasks([folder])[0]
    assert own.template == folder / "t.yaml"
    write(folder, ITEM, ITEM | {"id": "b"})
    assert len({plain.sha256, own.sha256, local_tasks([folder])[0].sha256}) == 3


def test_chance_and_trivial_strategies() -> None:
    items = [
        ITEM | {"baselines": {"last": 1}},
        ITEM | {"choices": ["long one", "b", "c", "d"], "gold": 0, "baselines": {}},
    ]
    assert chance(items) == pytest.approx((1 / 2 + 1 / 4) / 2)
    found = trivial(items)["trivial"]
    assert found == {
        "most frequent place": 0.5,
        "longest choice": 1.0,
        "shortest choice": 0.0,
        "last": pytest.approx((1 + 1 / 4) / 2),
    }


def test_data_lies_in_the_checkout() -> None:
    assert any((folder / "_choice.yaml").is_file() for folder in data_folders())
