"""What levels 1 to 3 rest on: logits of the same tokens, greedy continuations, collected from one model at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.config import RunConfig
from workbench.errors import RunError
from workbench.evals.distribution import position_table
from workbench.evals.prefixes import Rows
from workbench.evals.scoring import Limits, decode, greedy_tokens
from workbench.evals.tasks import CHOICE, LocalTask
from workbench.evals.verdict import GreedyCase
from workbench.session import Session


@dataclass(frozen=True, kw_only=True)
class Material:
    """Texts fed to both models.

    Attributes
    ----------
    texts : tuple of str
        Real text: random tokens misrepresent routing.
    prompts : int
        Texts whose beginnings are continued greedily.
    prompt_tokens, new_tokens, text_tokens : int
        Tokens of a beginning, of its continuation, and of a text at most.
    """

    texts: tuple[str, ...]
    prompts: int = 24
    prompt_tokens: int = 24
    new_tokens: int = 24
    text_tokens: int = 160


def material(tasks: Sequence[LocalTask], *, texts: int = 24, **sizes: int) -> Material:
    """Texts of local tasks, in turn: whole texts, and prompts with their right choice."""
    columns = []
    for task in tasks:
        items = task.items[:: max(1, len(task.items) // texts)][:texts]
        columns.append([i["prompt"] + i["choices"][i["gold"]] if task.kind == CHOICE else i["text"] for i in items])
    mixed = [column[i] for i in range(texts) for column in columns if i < len(column)][:texts]
    return Material(texts=tuple(mixed), **{"prompts": min(texts, Material(texts=()).prompts), **sizes})


@dataclass(kw_only=True)
class Evidence:
    """What one run of one model gave.

    Attributes
    ----------
    forced_logits, text_logits : Path
        float32 rows: decoding one token at a time over the reference's greedy tokens; and the texts, in batches.
    greedy : list of list of int
        Free greedy continuations, per prompt.
    side_by_side : list of list of int
        The same decoded as one batch: another batch width.
    targets, clusters : ndarray
        Next token and text of every row of `text_logits`.
    """

    n_vocab: int
    forced_logits: Path
    text_logits: Path
    greedy: list[list[int]] = field(default_factory=list)
    side_by_side: list[list[int]] = field(default_factory=list)
    width_noise: float | None = None
    targets: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    clusters: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    tokenizer: str = ""

    def rows(self, path: Path) -> np.ndarray:
        """A file of logits, mapped."""
        return np.memmap(path, dtype="<f4", mode="r").reshape(-1, self.n_vocab)

    def margins(self, n_new: int) -> list[np.ndarray]:
        """Top-1 minus top-2 logit of every greedy position, per prompt (the reference's own run)."""
        rows = self.rows(self.forced_logits)
        two = -np.partition(-rows, 1, axis=1)[:, :2]
        return list((two[:, 0] - two[:, 1]).reshape(-1, n_new))


def collect(
    model: Path, config: RunConfig, given: Material, folder: Path, name: str, *, force: Evidence | None = None
) -> Evidence:
    """Run one model over the material.

    Parameters
    ----------
    force
        The reference's evidence: its greedy tokens are fed. None: this is the reference.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limits = Limits(n_batch=config.n_batch, n_cells=config.n_ctx, n_seq=config.n_seq_max)
    with Session(model, config) as session:
        found = Evidence(
            n_vocab=session.n_vocab,
            forced_logits=folder / f"{name}-forced.f32",
            text_logits=folder / f"{name}-texts.f32",
            tokenizer=str(sorted((k, v) for k, v in session.metadata.items() if k.startswith("tokenizer.ggml"))),
        )
        if force is not None and force.n_vocab != found.n_vocab:
            raise RunError(f"the two models have {force.n_vocab} and {found.n_vocab} tokens: they cannot be compared")
        texts = [session.tokenize(text)[: min(given.text_tokens, config.n_ctx)] for text in given.texts]
        prompts = [tokens[: given.prompt_tokens] for tokens in texts[: given.prompts]]
        _greedy(session, prompts, given.new_tokens, found, force)
        if force is None:
            step = max(1, min(limits.n_seq, limits.n_cells // (given.prompt_tokens + given.new_tokens)))
            for start in range(0, len(prompts), step):
                part = prompts[start : start + step]
                found.side_by_side += greedy_tokens(session, part, [given.new_tokens] * len(part), limits)
            found.width_noise = _width_noise(session, prompts, found, limits)
        _texts(session, texts, limits, found)
    return found


def _greedy(
    session: Session, prompts: Sequence[list[int]], n_new: int, found: Evidence, force: Evidence | None
) -> None:
    """Continue freely, and, where tokens are forced, once more over those; keep the logits of the latter."""
    with found.forced_logits.open("wb") as file:
        for number, prompt in enumerate(prompts):
            free, logits = _continue(session, prompt, n_new, None)
            found.greedy.append(free)
            if force is not None and force.greedy[number] != free:
                _, logits = _continue(session, prompt, n_new, force.greedy[number])
            file.write(np.concatenate(logits).tobytes())


def _continue(session: Session, prompt: list[int], n_new: int, force: list[int] | None) -> tuple[list[int], list[Any]]:
    tokens: list[int] = []
    logits = []
    for record in session.generate(prompt, n_predict=n_new, force_tokens=force, ignore_eos=True):
        if len(session.logits):  # a verified draft chooses several tokens at once
            logits.append(session.logits)
            tokens += record.get("chosen") or [int(record["next"])]
    return tokens[:n_new], [np.concatenate(logits)[:n_new]]


def _width_noise(session: Session, prompts: Sequence[list[int]], found: Evidence, limits: Limits) -> float:
    """How far the batch width moves the margin of the two best tokens: 99th percentile over positions.

    The greedy continuations are fed as whole texts instead of token by token.
    """
    single = found.rows(found.forced_logits).reshape(len(prompts), -1, found.n_vocab)
    moves = []
    for prompt, tokens, rows in zip(prompts, found.greedy, single, strict=True):
        session.clear()
        batch = np.concatenate([*_all_logits(session, [[*prompt, *tokens[:-1]]], limits)])[len(prompt) - 1 :]
        best = np.argpartition(-rows, 1, axis=1)[:, :2]
        margins = [np.diff(np.take_along_axis(logits, best, axis=1)) for logits in (rows, batch)]
        moves.append(np.abs(margins[0] - margins[1]).ravel())
    return float(np.percentile(np.concatenate(moves), 99))


def _all_logits(session: Session, texts: Sequence[list[int]], limits: Limits) -> Iterator[np.ndarray]:
    rows = Rows.side_by_side(texts)
    return decode(session, rows, [True] * len(rows.tokens), limits)


def _texts(session: Session, texts: Sequence[list[int]], limits: Limits, found: Evidence) -> None:
    """Logits of every position that has a next token, many texts per batch."""
    wanted = [tokens for tokens in texts if len(tokens) > 1]
    with found.text_logits.open("wb") as file:
        start = 0
        while start < len(wanted):
            end, cells = start, 0
            while end < len(wanted) and end - start < limits.n_seq and cells + len(wanted[end]) <= limits.n_cells:
                cells += len(wanted[end])
                end += 1
            session.clear()
            for logits in _all_logits(session, [tokens[:-1] for tokens in wanted[start:end]], limits):
                file.write(logits.tobytes())
            start = end
    found.targets = np.array([t for tokens in wanted for t in tokens[1:]], np.int64)
    found.clusters = np.array([i for i, tokens in enumerate(wanted) for _ in tokens[1:]], np.int64)


def positions(reference: Evidence, candidate: Evidence) -> pd.DataFrame:
    """The table of level 3."""
    return position_table(
        reference.rows(reference.text_logits),
        candidate.rows(candidate.text_logits),
        reference.targets,
        reference.clusters,
    )


def cases(reference: Evidence, candidate: Sequence[Sequence[int]], n_new: int) -> list[GreedyCase]:
    """The cases of level 2."""
    return [
        GreedyCase(a, b, margins.tolist())
        for a, b, margins in zip(reference.greedy, candidate, reference.margins(n_new), strict=True)
    ]
