"""Evaluate one model on one suite with lm-eval, and keep what came out."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import json
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.ablation.store import build_id, machine_id
from workbench.config import RunConfig
from workbench.errors import ToggleError, WorkbenchError
from workbench.evals.store import SCHEMA, EvalStore, Journal, load, save
from workbench.evals.tasks import HUB_SUITES, LOCAL, LocalTask, local_tasks
from workbench.runner import model_sha256
from workbench.storage.gguf_file import open_gguf

PRIMARY = ("acc", "exact_match", "mc2", "word_perplexity", "f1", "bleu")
"""Metrics that can stand for a task, the first that it has."""


@dataclass(frozen=True, kw_only=True)
class EvalSpec:
    """What is evaluated.

    Attributes
    ----------
    suite : str
        `local`, or one of `HUB_SUITES`.
    tasks : tuple of str
        Tasks of the local suite; empty = all.
    limit : int or None
        Items per task.
    data : Path or None
        Folder of local tasks instead of the bundled ones.
    chat : bool
        Wrap prompts in the model's chat template.
    """

    suite: str = LOCAL
    tasks: tuple[str, ...] = ()
    limit: int | None = None
    data: Path | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        if self.suite != LOCAL and self.suite not in HUB_SUITES:
            raise ToggleError(f"suite={self.suite!r}: choose {', '.join([LOCAL, *HUB_SUITES])}")
        if self.limit is not None and self.limit < 1:
            raise ToggleError(f"limit={self.limit}: must be at least 1")

    def local(self) -> list[LocalTask]:
        """Its local tasks; none for a hub suite."""
        if self.suite != LOCAL:
            return []
        return local_tasks([self.data] if self.data else None, names=self.tasks)

    def identity(self) -> dict[str, Any]:
        """What of it scores depend on: the tasks by the hash of their data and settings."""
        import lm_eval

        if self.suite == LOCAL:
            tasks: Any = {task.task: task.sha256 for task in self.local()}
        else:
            chosen = [t for t in HUB_SUITES[self.suite].tasks if not self.tasks or t[0] in self.tasks]
            text = json.dumps([chosen, lm_eval.__version__])
            tasks = {"names": chosen, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        return {"suite": self.suite, "tasks": tasks, "limit": self.limit, "chat": self.chat}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A finished evaluation.

    Attributes
    ----------
    results : dict
        Per task: metric, score, standard error, chance, trivial strategies.
    samples : DataFrame
        One row per item: task, item, cluster, correct, chance, lls, …
    reused : bool
        It was there already.
    """

    folder: Path
    results: dict[str, Any]
    samples: pd.DataFrame
    reused: bool


def eval_config(config: RunConfig) -> RunConfig:
    """The configuration for many sequences per batch: left-at-default sizes become larger ones, telemetry is off."""
    plain = RunConfig()
    wanted = {"n_ctx": 4096, "n_batch": 1024, "n_ubatch": 1024, "n_seq_max": 64}
    changes: dict[str, Any] = {k: v for k, v in wanted.items() if getattr(config, k) == getattr(plain, k)}
    n_batch = changes.get("n_batch", config.n_batch)
    if "n_ubatch" in changes:
        changes["n_ubatch"] = n_batch
    if "n_seq_max" in changes:
        changes["n_seq_max"] = min(changes["n_seq_max"], n_batch)
    if config.threads == 0:
        changes["threads"] = max(1, (os.cpu_count() or 1) - (config.experts == "flash"))
    # a drafted round is known by its record only
    changes["telemetry"] = "off" if config.speculation == "off" else "token"
    return replace(config, logits_hash=False, **changes)


def identity_of(model: Path, config: RunConfig, spec: EvalSpec) -> dict[str, Any]:
    """Everything an evaluation's scores could depend on."""
    return {
        "config": config.to_dict(),
        "model_sha256": model_sha256(model),
        "build": build_id(),
        "machine": machine_id()["cpu"],
        **spec.identity(),
    }


def evaluate(
    model: Path,
    config: RunConfig,
    spec: EvalSpec,
    *,
    root: Path = Path("runs/evals"),
    fresh: bool = False,
    progress: bool = True,
    wrap: Any = None,
) -> Evaluation:
    """Evaluate a model, or take the evaluation from the store.

    Parameters
    ----------
    config
        Toggles; sizes left at their defaults become those of `eval_config`.
    fresh
        Compute again what the store holds.
    wrap
        Makes the lm-eval model from `SessionLM`'s arguments; for tests.

    Raises
    ------
    WorkbenchError
        When the model or a task cannot be used.
    """
    config = replace(eval_config(config), speculation="off", draft_model="", telemetry="off")  # nothing is drafted here
    identity = identity_of(model, config, spec)
    folder = EvalStore(root=root).folder(f"{model.stem}-{spec.suite}", identity)
    journal = folder / "journal.jsonl"
    if fresh:
        journal.unlink(missing_ok=True)
        (folder / "results.json").unlink(missing_ok=True)
    found = load(folder)
    if found is not None:
        return Evaluation(folder=folder, results=found[0], samples=found[1], reused=True)
    from workbench.evals.adapter import SessionLM
    from workbench.session import Session

    with Session(model, config) as session:
        lm = (wrap or SessionLM)(session, journal=Journal(journal), info={"identity": identity}, progress=progress)
        outputs = run_tasks(lm, spec)
        header = session.header
    samples = sample_table(outputs, spec)
    results = {"schema": SCHEMA, "kind": "evaluation", **_results(outputs, samples, spec)}
    synthetic = bool(open_gguf(model).get("les.synthetic", False))
    results |= {"model": model.name, "suite": spec.suite, "synthetic": synthetic, "identity": identity}
    manifest = {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "identity": identity,
        "machine": machine_id(),
        "build": header.get("build"),
        "waves": {"made": lm.journal.made, "reused": lm.journal.reused},
        "tokens": lm.n_tokens,
    }
    save(folder, results=results, samples=samples, manifest=manifest)
    return Evaluation(folder=folder, results=results, samples=samples, reused=False)


def run_tasks(lm: Any, spec: EvalSpec) -> list[dict[str, Any]]:
    """lm-eval's own results, one document per number of examples.

    Raises
    ------
    WorkbenchError
        When a hub task cannot be loaded.
    """
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    calls: list[tuple[list[Any], int | None]] = []
    if spec.suite == LOCAL:
        calls.append(([task.config() for task in spec.local()], None))
        manager = TaskManager(include_defaults=False)
    else:
        chosen = [t for t in HUB_SUITES[spec.suite].tasks if not spec.tasks or t[0] in spec.tasks]
        calls += [([n for n, s in chosen if s == shots], shots) for shots in sorted({s or 0 for _, s in chosen})]
        manager = TaskManager()
    outputs = []
    with _quiet(bars=getattr(lm, "progress", True)):
        for tasks, shots in calls:
            try:
                output = simple_evaluate(
                    model=lm,
                    tasks=tasks,
                    num_fewshot=shots,
                    limit=spec.limit,
                    bootstrap_iters=0,
                    log_samples=True,
                    apply_chat_template=spec.chat,
                    task_manager=manager,
                )
            except (OSError, ConnectionError) as error:
                raise WorkbenchError(
                    f"suite {spec.suite}: its data could not be loaded from the hub ({error})"
                ) from error
            if not output or not output.get("results"):
                raise WorkbenchError(f"suite {spec.suite}: lm-eval returned no results")
            outputs.append(output)
    expected = {task.task for task in spec.local()}
    missing = expected - {name for output in outputs for name in output["results"]}
    if missing:
        raise WorkbenchError(f"lm-eval skipped {', '.join(sorted(missing))}")
    return outputs


class _quiet:
    """Keep lm-eval's and datasets' chatter off the terminal; without `bars` also lm-eval's progress bars."""

    def __init__(self, bars: bool) -> None:
        self._stderr = contextlib.nullcontext() if bars else contextlib.redirect_stderr(io.StringIO())

    def __enter__(self) -> None:
        import lm_eval.evaluator as evaluator

        self._git_hash = evaluator.get_git_commit_hash
        evaluator.get_git_commit_hash = str  # it asks git about the folder one stands in, and git complains aloud
        self._stderr.__enter__()
        self._levels = {n: logging.getLogger(n).level for n in ("lm_eval", "lm-eval", "datasets")}
        for name in self._levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, *error: Any) -> None:
        import lm_eval.evaluator as evaluator

        evaluator.get_git_commit_hash = self._git_hash
        self._stderr.__exit__(None, None, None)
        self._warnings.__exit__(None, None, None)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)


def sample_table(outputs: Sequence[Mapping[str, Any]], spec: EvalSpec) -> pd.DataFrame:
    """One row per item of every task, in the order of tasks and items."""
    facts = {task.task: task for task in spec.local()}
    rows = []
    for output in outputs:
        for task, samples in sorted(output["samples"].items()):
            for sample in sorted(samples, key=lambda s: s["doc_id"]):
                rows.append(_sample(task, sample, facts.get(task)))
    return pd.DataFrame(rows)


def _sample(task: str, sample: Mapping[str, Any], local: LocalTask | None) -> dict[str, Any]:
    metric = next((m for m in PRIMARY if m in sample), None)
    value = sample[metric] if metric else None
    responses = sample["filtered_resps"]
    lls = [float(r[0]) for r in responses] if responses and isinstance(responses[0], (list, tuple)) else []
    item = local.items[sample["doc_id"]] if local else {}
    words = None
    if isinstance(value, (list, tuple)):  # rolling: (log-likelihood, weight)
        lls, words = [float(value[0])], float(value[1])
    choices = item.get("choices") or lls
    return {
        "task": task,
        "item": str(item.get("id", sample["doc_id"])),
        "cluster": str(item.get("document") or item.get("id", sample["doc_id"])),
        "metric": metric,
        "value": float(value) if isinstance(value, (int, float)) else None,
        "words": words,
        "chance": 1 / len(choices) if len(choices) > 1 else 0.0,
        "lls": lls,
        "predicted": int(pd.Series(lls).argmax()) if len(lls) > 1 else -1,
        "answer": responses[0] if responses and isinstance(responses[0], str) else None,
        "doc_hash": sample.get("doc_hash"),
    }


def _results(outputs: Sequence[Mapping[str, Any]], samples: pd.DataFrame, spec: EvalSpec) -> dict[str, Any]:
    facts = {task.task: task.facts() for task in spec.local()}
    tasks: dict[str, Any] = {}
    for output in outputs:
        for name in output["samples"]:
            own = samples[samples["task"] == name]
            metrics = {
                key.removesuffix(",none"): value
                for key, value in output["results"][name].items()
                if isinstance(value, (int, float)) and not isinstance(value, bool)
            }
            values = own["value"].dropna()
            n = len(own)
            score = float(values.mean()) if len(values) else None
            se = float(values.std(ddof=1) / n**0.5) if len(values) > 1 else None
            tasks[name] = {"items": n, "metric": own["metric"].iloc[0], "score": score, "se": se, "metrics": metrics}
            tasks[name] |= {
                "chance": float(own["chance"].mean()),
                **{k: v for k, v in facts.get(name, {}).items() if k != "items"},
            }
    scored = [t["score"] for t in tasks.values() if t["score"] is not None]
    return {"tasks": tasks, "mean_score": sum(scored) / len(scored) if scored else None}
