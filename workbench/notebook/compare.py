"""Two runs of one prompt beside each other: which tokens differ, and are the logits the same bits?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from workbench.lossless import BIT_EXACT, NOT_CHECKED, compare_hashes
from workbench.notebook.attempt import Attempt
from workbench.telemetry import Recording

EXACT, DIFFERS, OPEN = "exact", "differs", "open"
_SAMPLING = ("temperature", "top_k", "top_p", "seed")


@dataclass(frozen=True)
class Piece:
    """The text of one decode call.

    Attributes
    ----------
    start : int
        Position of its first token; 0 is the first generated one.
    ids : tuple of int
        Its tokens: several where a verified draft chose several.
    """

    text: str
    start: int
    ids: tuple[int, ...]


def pieces(records: Sequence[Mapping[str, Any]]) -> list[Piece]:
    """The generated text of `tok` records, call by call."""
    found: list[Piece] = []
    at = 0
    for record in records:
        chosen = record.get("chosen") or ([] if record.get("next") is None else [record["next"]])
        found.append(Piece(record.get("text") or "", at, tuple(int(token) for token in chosen)))
        at += len(chosen)
    return found


def differing(mine: Sequence[Piece], other: Sequence[Piece]) -> list[bool]:
    """For each piece of mine, whether a token of it differs from the other's at the same position."""
    theirs = [token for piece in other for token in piece.ids]
    return [
        any(a != b for a, b in zip(piece.ids, theirs[piece.start : piece.start + len(piece.ids)], strict=False))
        for piece in mine
    ]


@dataclass(frozen=True)
class Verdict:
    """What may be said of two runs.

    Attributes
    ----------
    kind : str
        `exact` for the positions compared, `differs`, or `open`: nothing can be said.
    """

    kind: str
    text: str


def judge(a: Attempt | None, b: Attempt | None) -> Verdict:
    """Compare the logits of two runs by their hashes, position by position; refuses what cannot be compared."""
    if a is None or b is None or a.recording is None or b.recording is None:
        return Verdict(OPEN, "Not compared: run both sides on the same prompt.")
    reason = _incomparable(a, b)
    if reason:
        return Verdict(OPEN, f"Not comparable: {reason}")
    drafts = [s for s in (a.config.speculation, b.config.speculation) if s != "off"]
    if drafts:
        return Verdict(
            OPEN,
            f"Logits not comparable: speculation {drafts[0]} verifies drafts in batches of another width. "
            f"{_tokens(a.recording, b.recording)}",
        )
    return _hashes(a.recording, b.recording, same=a.config == b.config)


def _incomparable(a: Attempt, b: Attempt) -> str | None:
    if a.model != b.model:
        return (
            f"{a.model.name} and {b.model.name} are different models; `workbench compare` judges one against the other."
        )
    if a.prompt != b.prompt:
        return "the prompts differ; run both sides on the same prompt."
    if a.config.temperature or b.config.temperature:
        differ = [name for name in _SAMPLING if getattr(a.config, name) != getattr(b.config, name)]
        if differ:
            return f"tokens are sampled differently ({', '.join(differ)})."
    return None


def _hashes(a: Recording, b: Recording, *, same: bool) -> Verdict:
    hashed_a, hashed_b = (run.tokens.dropna(subset=["logits_hash"]) for run in (a, b))
    shared = min(len(hashed_a), len(hashed_b))
    found = compare_hashes(hashed_a.head(shared), hashed_b.head(shared))
    if found.verdict == NOT_CHECKED:
        return Verdict(OPEN, f"Not compared: {found.reason} (toggles telemetry and logits_hash record them).")
    rest = ""
    if len(hashed_a) != len(hashed_b):
        rest = f" A has {len(hashed_a)} positions, B has {len(hashed_b)}: the rest is not compared."
    if same:
        rest += " Both sides have the same toggles: this compares a configuration with itself."
    if found.verdict == BIT_EXACT:
        return Verdict(
            EXACT, f"Bit-exact: the hashes of all logits are equal at all {shared} positions compared.{rest}"
        )
    threads = [run.header.get("threads") for run in (a, b)]
    if threads[0] != threads[1]:
        rest += f" Threads differ ({threads[0]} and {threads[1]}), which alone may round sums differently."
    at = found.first_differing_position
    return Verdict(
        DIFFERS,
        f"Logits differ, first at position {at} of {shared} (0 is the prediction after the prompt). "
        f"{_tokens(a, b)}{rest}",
    )


def _tokens(a: Recording, b: Recording) -> str:
    shared = min(len(a.generated), len(b.generated))
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a.generated, b.generated, strict=False)))
    if same == shared:
        return f"Tokens: the same, {shared} of {shared} compared."
    return f"Tokens: the first {same} are the same, then they differ."
