"""The first step of the lossless ladder: are two runs' logits the same bits, position by position?

A check that could not be made says so and why; it never reads as a pass.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

BIT_EXACT, DIFFERS, NOT_CHECKED, MEASURED = "bit-exact", "differs", "not checked", "measured"
SAME_TOKENS, NEAR_TIE = "same tokens", "near-tie"
_CHUNK_LOGITS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class LogitsVerdict:
    """Outcome of one comparison.

    Attributes
    ----------
    verdict : str
        `bit-exact`, `differs` or `not checked`; `measured` where weights differ on purpose: see `quality`; where drafts
        are verified in batches, `same tokens`, or `near-tie` if they part where two logits are nearly equal.
    compared, differing : int
        Logits compared and those with other bits (for hashes: positions).
    positions : int
        Positions compared.
    max_abs_diff : float or None
        Largest absolute difference of two logits; None when not known (hashes, unchecked).
    first_differing_position : int or None
        0 is the prediction after the prompt.
    against : str
        What the candidate was compared with.
    reason : str or None
        Why nothing was checked.
    quality : dict or None
        What a measured verdict is made of: divergence, agreement and perplexity on held-out text.
    """

    verdict: str
    compared: int = 0
    differing: int = 0
    positions: int = 0
    max_abs_diff: float | None = None
    first_differing_position: int | None = None
    against: str = "reference"
    reason: str | None = None
    quality: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields (an infinite difference becomes None: `differing` still tells)."""
        values = asdict(self)
        if self.max_abs_diff is not None and not math.isfinite(self.max_abs_diff):
            values["max_abs_diff"] = None
        return values


def not_checked(reason: str, *, against: str = "reference") -> LogitsVerdict:
    """The verdict of a comparison that could not be made."""
    return LogitsVerdict(verdict=NOT_CHECKED, reason=reason, against=against)


def compare_logits(
    reference_path: Path | str, candidate_path: Path | str, n_vocab: int, *, against: str = "reference"
) -> LogitsVerdict:
    """Compare two files of float32 logits, rows of `n_vocab`, bit by bit and in constant memory.

    Nothing is certified (`not checked`, with the reason) when a file is missing or empty, lengths differ, a row is
    incomplete, a value is NaN, the reference is constant in every row, or both names are one file.
    """
    paths = Path(reference_path), Path(candidate_path)
    reason = _unusable(*paths, n_vocab)
    if reason:
        return not_checked(reason, against=against)
    reference, candidate = (np.memmap(path, dtype="<f4", mode="r").reshape(-1, n_vocab) for path in paths)
    differing, largest, first, flat = 0, 0.0, None, True
    step = max(1, _CHUNK_LOGITS // n_vocab)
    for start in range(0, len(reference), step):
        a, b = reference[start : start + step], candidate[start : start + step]
        for path, rows in zip(paths, (a, b), strict=True):
            if np.isnan(rows).any():
                return not_checked(f"NaN among the logits of {path.name}", against=against)
        flat = flat and bool((a.max(axis=1) == a.min(axis=1)).all())
        unequal = a.view("<u4") != b.view("<u4")
        if unequal.any():
            differing += int(unequal.sum())
            largest = max(largest, float(np.abs(a[unequal].astype(np.float64) - b[unequal]).max()))
            first = start + int(unequal.any(axis=1).argmax()) if first is None else first
    if flat:
        return not_checked("the reference's logits are constant: equality would prove nothing", against=against)
    return LogitsVerdict(
        verdict=DIFFERS if differing else BIT_EXACT,
        compared=reference.size,
        differing=differing,
        positions=len(reference),
        max_abs_diff=largest,
        first_differing_position=first,
        against=against,
    )


def _unusable(reference: Path, candidate: Path, n_vocab: int) -> str | None:
    row_bytes = 4 * n_vocab
    for path in (reference, candidate):
        if not path.is_file():
            return f"{path.name} is missing"
    if os.path.samefile(reference, candidate):
        return "both are the same file"
    sizes = reference.stat().st_size, candidate.stat().st_size
    if 0 in sizes:
        return "zero positions were recorded"
    for path, size in zip((reference, candidate), sizes, strict=True):
        if size % row_bytes:
            return f"{path.name} ends inside a row of {n_vocab} logits"
    if sizes[0] != sizes[1]:
        return f"lengths differ: {sizes[0] // row_bytes} and {sizes[1] // row_bytes} positions"
    return None


def compare_hashes(reference: pd.DataFrame, candidate: pd.DataFrame, *, against: str = "reference") -> LogitsVerdict:
    """Compare the `logits_hash` of two token tables (`Recording.tokens`), matched by phase and index.

    `compared` counts positions. A difference after the first may only mean that another token was fed.
    """
    keys = ["phase", "i"]
    a, b = (table.dropna(subset=["logits_hash"]).set_index(keys)["logits_hash"] for table in (reference, candidate))
    if not len(a) or not len(b):
        return not_checked("zero positions were hashed", against=against)
    if not a.index.equals(b.index):
        return not_checked(f"lengths differ: {len(a)} and {len(b)} hashed positions", against=against)
    unequal = (a != b).to_numpy(dtype=bool)
    return LogitsVerdict(
        verdict=DIFFERS if unequal.any() else BIT_EXACT,
        compared=len(a),
        differing=int(unequal.sum()),
        positions=len(a),
        first_differing_position=int(unequal.argmax()) if unequal.any() else None,
        against=against,
    )


def combine(verdicts: list[LogitsVerdict], *, against: str = "reference") -> LogitsVerdict:
    """One verdict for several prompts: bit-exact only if each is; positions count through the prompts in order."""
    if not verdicts:
        return not_checked("nothing was compared", against=against)
    unchecked = next((v for v in verdicts if v.verdict == NOT_CHECKED), None)
    differs = any(v.verdict == DIFFERS for v in verdicts)
    if unchecked is not None and not differs:
        return not_checked(unchecked.reason or "", against=against)
    first, seen = None, 0
    for verdict in verdicts:
        if first is None and verdict.first_differing_position is not None:
            first = seen + verdict.first_differing_position
        seen += verdict.positions
    diffs = [v.max_abs_diff for v in verdicts if v.max_abs_diff is not None]
    return LogitsVerdict(
        verdict=DIFFERS if differs else BIT_EXACT,
        compared=sum(v.compared for v in verdicts),
        differing=sum(v.differing for v in verdicts),
        positions=seen,
        max_abs_diff=max(diffs) if diffs else None,
        first_differing_position=first,
        against=against,
    )
