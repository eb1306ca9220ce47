"""The notebook's side of the evaluations: `wb.compare` and `wb.eval`, as objects with DataFrames and a display."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.api import _badges
from workbench.config import RunConfig
from workbench.models import resolve_model

NOT_MEASURED = "not measured"
_COLOURS = {"lossless": "#1a7f37", "not lossless": "#b3261e", "inconclusive": "#8a6100"}
TASK_COLUMNS = (
    "items", "chance", "reference", "candidate", "lost", "won", "flips", "difference", "low", "high",
    "p_mcnemar_holm", "p_noninferior_holm", "minimum_detectable_effect", "verdict", "reason",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Comparison:
    """A judged comparison.

    Attributes
    ----------
    document : mapping
        The document that `workbench compare` prints.
    """

    document: Mapping[str, Any]

    @property
    def levels(self) -> pd.DataFrame:
        """One row per level of the ladder: `name`, `verdict`, `reason`; a level not asked for is *not measured*."""
        from workbench.evals.verdict import LEVELS

        found = {v["level"]: v for v in self.document["levels"]}
        rows = [
            {
                "level": level,
                "name": name,
                "verdict": found[level]["verdict"] if level in found else NOT_MEASURED,
                "reason": found[level]["reason"] if level in found else "not asked for",
            }
            for level, name in LEVELS.items()
        ]
        return pd.DataFrame(rows).set_index("level")

    @property
    def tasks(self) -> pd.DataFrame:
        """Level 4, one row per task; empty where it was not asked for. `difference` < 0 is a loss of accuracy."""
        rows = self.figures(4).get("tasks", [])
        return pd.DataFrame(rows, columns=["task", *TASK_COLUMNS]).set_index("task")

    @property
    def labels(self) -> list[str]:
        """What a table of this comparison must say: emulated, synthetic."""
        from workbench.evals.compare import labels

        return labels(self.document["reference"], self.document["candidate"])

    def figures(self, level: int) -> dict[str, Any]:
        """The figures a level's verdict rests on; empty where it was not asked for."""
        return next((dict(v["figures"]) for v in self.document["levels"] if v["level"] == level), {})

    def passes(self, level: int) -> bool:
        """Whether this level was judged lossless."""
        return bool(self.levels.loc[level, "verdict"] == "lossless")

    def __repr__(self) -> str:
        return str(self.levels.to_string())

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='white-space:nowrap'>{level} {row['name']}</td><td>{verdict_badge(row['verdict'])}</td>"
            f"<td style='text-align:left'>{html.escape(row['reason'])}</td></tr>"
            for level, row in self.levels.iterrows()
        )
        title = f"{self.document['candidate']['model']} against {self.document['reference']['model']}"
        head = "<tr><th>level</th><th>verdict</th><th style='text-align:left'>reason</th></tr>"
        table = f"<b>{html.escape(title)}</b>{_badges(self.labels)}<table>{head}{rows}</table>"
        tasks = self.tasks
        if len(tasks):
            shown = tasks.drop(columns=["reason", "verdict"]).assign(verdict=tasks["verdict"].map(verdict_badge))
            table += shown.to_html(float_format=lambda value: f"{value:.3g}", na_rep="–", escape=False)
        return table


@dataclass(frozen=True, repr=False)
class Scores:
    """One model's scores on a suite.

    Attributes
    ----------
    document : mapping
        The document that `workbench eval` prints.
    samples : DataFrame
        One row per item: task, item, value, chance, log-likelihoods of the choices.
    folder : Path
        Where all of it is kept.
    """

    document: Mapping[str, Any]
    samples: pd.DataFrame
    folder: Path

    @property
    def table(self) -> pd.DataFrame:
        """One row per task, with chance and the best strategy that reads no meaning; NaN is not measured."""
        rows = []
        for name, task in self.document["tasks"].items():
            trivial = task.get("trivial") or {}
            best = max(trivial, key=lambda key: trivial[key], default=None)
            rows.append(
                {
                    "task": name,
                    "items": task["items"],
                    "metric": task["metric"],
                    "score": task["score"],
                    "se": task["se"],
                    "chance": task["chance"] or None,
                    "trivial": trivial[best] if best else None,
                    "trivial_strategy": best,
                    "word_perplexity": task["metrics"].get("word_perplexity"),
                }
            )
        return pd.DataFrame(rows).set_index("task")

    @property
    def labels(self) -> list[str]:
        """What a table of these scores must say: emulated, synthetic."""
        from workbench.evals.compare import labels

        config = self.document["identity"]["config"]
        return labels({"config": config, "synthetic": self.document.get("synthetic")})

    def __repr__(self) -> str:
        return str(self.table.to_string())

    def _repr_html_(self) -> str:
        title = f"{self.document['model']} · suite {self.document['suite']}"
        table = self.table.to_html(float_format=lambda value: f"{value:.3f}", na_rep=NOT_MEASURED)
        return f"<b>{html.escape(title)}</b>{_badges(self.labels)}{table}"


def verdict_badge(verdict: str) -> str:
    """A verdict as a coloured badge; the word carries the meaning."""
    colour = _COLOURS.get(verdict, "#666")
    return (
        f'<span style="background:{colour};color:#fff;border-radius:4px;padding:0 .5em;white-space:nowrap">'
        f"{html.escape(verdict)}</span>"
    )


def compare(
    reference: str | Path,
    candidate: str | Path | None = None,
    *,
    level: int | Sequence[int] = (1, 2, 3, 4),
    reference_toggles: Mapping[str, Any] | None = None,
    margin: float = 0.01,
    texts: int = 24,
    suite: str = "local",
    tasks: Sequence[str] = (),
    limit: int | None = None,
    data: Path | str | None = None,
    out: Path | str = "runs/evals",
    fresh: bool = False,
    **toggles: Any,
) -> Comparison:
    """Judge whether a model under some toggles is lossless against a reference, level by level.

    Parameters
    ----------
    reference, candidate
        Model files, or `owner/repo:file.gguf` on the hub; without a candidate the reference's own file under the
        toggles.
    level
        1 bit-exact, 2 greedy identity, 3 distribution, 4 tasks; one or several.
    reference_toggles
        Toggles of the reference; default: `experts="resident"`, stock llama.cpp.
    margin
        Loss that still counts as none: of accuracy (level 4), perplexity and top-1 agreement (level 3).
    texts
        Texts of levels 1 to 3.
    suite, tasks, limit, data
        Level 4: suite, its tasks (empty: all), items per task, and a folder of local tasks instead of the bundled ones.
    out
        Store of evaluations; finished ones are reused.
    fresh
        Compute again what the store holds.
    **toggles
        Fields of `RunConfig` for the candidate.

    Raises
    ------
    WorkbenchError
        Before anything runs, for unknown toggles, levels and tasks; and when a model cannot be used.
    """
    from tqdm.auto import tqdm

    from workbench.evals.compare import Side
    from workbench.evals.compare import compare as judge
    from workbench.evals.evidence import material
    from workbench.evals.harness import EvalSpec
    from workbench.evals.tasks import local_tasks

    spec = _spec(suite, tasks, limit, data)
    first = RunConfig.from_dict({"experts": "resident", **(reference_toggles or {})})
    second = RunConfig.from_dict(toggles)
    chosen = (level,) if isinstance(level, int) else tuple(level)
    steps = 3 * (bool(set(chosen) & {1, 2, 3}) + (4 in chosen))  # reference, control, candidate
    with tqdm(total=steps, unit="run", desc="compare") as bar:

        def say(text: str) -> None:
            bar.set_postfix_str(text)
            bar.update(bar.n < steps)

        found = judge(
            Side(model=resolve_model(reference), config=first),
            Side(model=resolve_model(reference if candidate is None else candidate), config=second),
            spec=spec if 4 in chosen else EvalSpec(),
            given=material(replace(spec, tasks=()).local() or local_tasks(), texts=texts)
            if set(chosen) & {1, 2, 3}
            else None,
            levels=chosen,
            margin=margin,
            root=Path(out),
            fresh=fresh,
            progress=False,
            say=say,
        )
    return Comparison(found.document)


def eval(
    model: str | Path,
    *,
    suite: str = "local",
    tasks: Sequence[str] = (),
    limit: int | None = None,
    data: Path | str | None = None,
    out: Path | str = "runs/evals",
    fresh: bool = False,
    **toggles: Any,
) -> Scores:
    """Score a model on a suite under any toggles; parameters and errors are those of `compare`."""
    from workbench.evals.harness import evaluate

    config, spec = RunConfig.from_dict(toggles), _spec(suite, tasks, limit, data)
    found = evaluate(resolve_model(model), config, spec, root=Path(out), fresh=fresh, progress=True)
    return Scores(found.results, found.samples, found.folder)


def _spec(suite: str, tasks: Sequence[str], limit: int | None, data: Path | str | None) -> Any:
    from workbench.evals.harness import EvalSpec

    names = (tasks,) if isinstance(tasks, str) else tuple(tasks)
    spec = EvalSpec(suite=suite, tasks=names, limit=limit, data=Path(data) if data else None)
    spec.local()  # a wrong name or folder is an error now, not after the model has run
    return spec
