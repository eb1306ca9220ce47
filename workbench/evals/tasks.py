"""Tasks: the local suite on bundled data, and named suites of lm-eval's own tasks for models from the hub.

A local task is a JSON Lines file in the repository's `evals/` (or `evals/local/`) and a YAML template there:
`_choice.yaml` for `{id, prompt, choices, gold, source}`, `_text.yaml` for `{id, text}`. An item may carry `baselines`,
a mapping of a trivial strategy to the choice it takes.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError

CHOICE, TEXT = "choice", "text"
LOCAL = "local"
_FIELDS = {CHOICE: {"id", "prompt", "choices", "gold"}, TEXT: {"id", "text"}}


class TaskError(WorkbenchError):
    """A task file is missing or malformed; the message names the file and the line."""


@dataclass(frozen=True, kw_only=True)
class HubSuite:
    """Tasks of lm-eval with their numbers of examples; they need a reachable hub.

    Attributes
    ----------
    tasks : tuple of (name, few-shot examples)
        None leaves the task's own number.
    """

    name: str
    note: str
    tasks: tuple[tuple[str, int | None], ...]


HUB_SUITES = {
    suite.name: suite
    for suite in (
        HubSuite(
            name="article",
            note="five benchmarks in the article's style (it averages five and does not name them)",
            tasks=(("mmlu", 5), ("arc_challenge", 25), ("hellaswag", 10), ("winogrande", 5), ("gsm8k", 5)),
        ),
        HubSuite(
            name="quantization",
            note="the set quantization reports use",
            tasks=(
                ("mmlu", 5),
                ("gsm8k", 5),
                ("arc_challenge", 25),
                ("hellaswag", 10),
                ("winogrande", 5),
                ("truthfulqa_mc2", 0),
                ("wikitext", 0),
            ),
        ),
    )
}


def data_folders() -> list[Path]:
    """Where local task files lie: of a checkout, else of the installation."""
    package = Path(__file__).parent
    roots = [package.parents[1] / "evals", package / "data"]
    return [folder for root in roots for folder in (root / "local", root) if folder.is_dir()]


@dataclass(frozen=True, kw_only=True)
class LocalTask:
    """One file of items.

    Attributes
    ----------
    kind : str
        `choice` or `text`.
    sha256 : str
        Over the data and the template: part of every evaluation's key.
    """

    name: str
    path: Path
    kind: str
    template: Path
    sha256: str

    @functools.cached_property
    def items(self) -> list[dict[str, Any]]:
        """The items, checked."""
        return read_items(self.path)

    @property
    def task(self) -> str:
        """Its name in lm-eval."""
        return f"les_{self.name}"

    def config(self) -> dict[str, Any]:
        """lm-eval's configuration of the task; the data is handed over, so no path depends on where one stands."""
        import yaml

        values = yaml.safe_load(self.template.read_text(encoding="utf-8"))
        keep = sorted(_FIELDS[self.kind])

        def dataset(**_: Any) -> Any:
            import datasets

            rows = [{key: item[key] for key in keep} for item in self.items]
            return datasets.DatasetDict({"test": datasets.Dataset.from_list(rows)})

        return {"task": self.task, "custom_dataset": dataset, **values}

    def facts(self) -> dict[str, Any]:
        """Items, chance, and the accuracy of trivial strategies."""
        if self.kind == TEXT:
            return {"kind": self.kind, "items": len(self.items)}
        return {"kind": self.kind, "items": len(self.items), "chance": chance(self.items), **trivial(self.items)}


def read_items(path: Path) -> list[dict[str, Any]]:
    """Items of a JSON Lines file.

    Raises
    ------
    TaskError
        Naming the file and the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TaskError(f"{path}: {error.strerror or error}") from error
    items: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            raise TaskError(f"{path}:{number}: {error}") from error
        problem = _problem(item)
        if problem:
            raise TaskError(f"{path}:{number}: {problem}")
        items.append(item)
    if not items:
        raise TaskError(f"{path}: no items")
    repeated = [name for name, count in Counter(str(item["id"]) for item in items).items() if count > 1]
    if repeated:
        raise TaskError(f"{path}: id {repeated[0]!r} is used twice")
    if len({_kind(item) for item in items}) > 1:
        raise TaskError(f"{path}: choices and plain texts are mixed")
    return items


def _kind(item: Mapping[str, Any]) -> str:
    return TEXT if "text" in item else CHOICE


def _problem(item: Any) -> str | None:
    if not isinstance(item, dict):
        return "expected one JSON object per line"
    missing = sorted(_FIELDS[_kind(item)] - set(item))
    if missing:
        return f"lacks {', '.join(missing)}"
    if _kind(item) == TEXT:
        return None if str(item["text"]).strip() else "text is empty"
    choices, gold = item["choices"], item["gold"]
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c for c in choices):
        return "choices: expected two or more texts"
    if len(set(choices)) < len(choices):
        return "choices: one is there twice"
    if not isinstance(gold, int) or isinstance(gold, bool) or not 0 <= gold < len(choices):
        return f"gold={gold!r}: expected the number of a choice"
    return None if str(item["prompt"]).strip() else "prompt is empty"


def chance(items: Sequence[Mapping[str, Any]]) -> float:
    """Expected accuracy of guessing."""
    return sum(1 / len(item["choices"]) for item in items) / len(items)


def trivial(items: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Accuracy of strategies that read no meaning: a fixed place, the longest, the shortest, and the items' own.

    Where an item's own strategy names no choice, it is counted as guessing.
    """
    places = Counter(item["gold"] for item in items)
    found: dict[str, float] = {"most frequent place": places.most_common(1)[0][1] / len(items)}
    for name, pick in (("longest choice", max), ("shortest choice", min)):
        hits = [item["choices"].index(pick(item["choices"], key=len)) == item["gold"] for item in items]
        found[name] = sum(hits) / len(items)
    own = sorted({name for item in items for name in item.get("baselines") or {}})
    for name in own:
        shares = []
        for item in items:
            guess = (item.get("baselines") or {}).get(name)
            shares.append(1 / len(item["choices"]) if guess is None else float(guess == item["gold"]))
        found[name] = sum(shares) / len(shares)
    return {"trivial": found}


def local_tasks(folders: Sequence[Path] | None = None, *, names: Sequence[str] | None = None) -> list[LocalTask]:
    """The local suite, in the order of its names; a file in an earlier folder hides one of the same name later.

    Raises
    ------
    TaskError
        When there is none, or a wanted one is not among them.
    """
    folders = data_folders() if folders is None else folders
    files: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.jsonl")):
            files.setdefault(path.stem, path)
    if not files:
        raise TaskError(
            "no local tasks: this installation carries no evals/*.jsonl; run from a checkout or pass --data"
        )
    wanted = list(files) if not names else [name.removeprefix("les_") for name in names]
    unknown = sorted(set(wanted) - set(files))
    if unknown:
        raise TaskError(f"unknown local task {', '.join(unknown)}; known: {', '.join(sorted(files))}")
    return [_local_task(name, files[name], folders) for name in sorted(wanted)]


def _local_task(name: str, path: Path, folders: Sequence[Path]) -> LocalTask:
    kind = _kind(read_items(path)[0])
    template = next(
        (f / n for f in [*folders, *data_folders()] for n in _templates(name, kind) if (f / n).is_file()), None
    )
    if template is None:
        raise TaskError(f"{path}: no template {_templates(name, kind)[-1]} in {path.parent}")
    digest = hashlib.sha256(path.read_bytes() + b"\0" + template.read_bytes()).hexdigest()
    return LocalTask(name=name, path=path, kind=kind, template=template, sha256=digest)


def _templates(name: str, kind: str) -> tuple[str, str]:
    return f"{name}.yaml", f"_{kind}.yaml"
