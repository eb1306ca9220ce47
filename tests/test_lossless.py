"""Logits and hashes compared bit by bit; nothing unchecked may read as a pass."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from recordings import flash_run, recording, resident_run, token

from workbench import lossless
from workbench.lossless import LogitsVerdict, combine, compare_hashes, compare_logits, not_checked

N_VOCAB = 16


@pytest.fixture
def logits(tmp_path: Path):
    values = np.random.default_rng(0).normal(size=(10, N_VOCAB)).astype("<f4")

    def write(name: str, edit=None) -> Path:
        changed = values.copy()
        if edit:
            changed = edit(changed)
        path = tmp_path / name
        changed.astype("<f4").tofile(path)
        return path

    return write


def put(row: int, column: int, value: float):
    def edit(values: np.ndarray) -> np.ndarray:
        values[row, column] = value
        return values

    return edit


class TestLogits:
    def test_bit_exact(self, logits) -> None:
        verdict = compare_logits(logits("a"), logits("b"), N_VOCAB, against="stock")
        assert verdict == LogitsVerdict(
            verdict="bit-exact", compared=160, differing=0, positions=10, max_abs_diff=0.0, against="stock"
        )

    @pytest.mark.parametrize("chunk", [1, 3 * N_VOCAB, 1 << 22])
    def test_differences_are_counted_across_chunks(self, logits, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
        monkeypatch.setattr(lossless, "_CHUNK_LOGITS", chunk)

        def edit(values: np.ndarray) -> np.ndarray:
            values[4, 2] += 0.5
            values[9, 0] -= 2.0
            return values

        verdict = compare_logits(logits("a"), logits("b", edit), N_VOCAB)
        assert (verdict.verdict, verdict.differing, verdict.first_differing_position) == ("differs", 2, 4)
        assert verdict.max_abs_diff == pytest.approx(2.0)

    def test_one_bit_is_a_difference(self, logits) -> None:
        def edit(values: np.ndarray) -> np.ndarray:
            values.view("<u4")[7, 7] ^= 1
            return values

        verdict = compare_logits(logits("a"), logits("b", edit), N_VOCAB)
        assert (verdict.verdict, verdict.differing, verdict.first_differing_position) == ("differs", 1, 7)

    def test_signed_zero_is_a_difference(self, logits) -> None:
        verdict = compare_logits(logits("a", put(0, 0, 0.0)), logits("b", put(0, 0, -0.0)), N_VOCAB)
        assert (verdict.verdict, verdict.max_abs_diff) == ("differs", 0.0)

    def test_equal_infinities_are_equal(self, logits) -> None:
        edit = put(0, 0, -np.inf)
        assert compare_logits(logits("a", edit), logits("b", edit), N_VOCAB).verdict == "bit-exact"

    def test_infinite_difference_is_json(self, logits) -> None:
        verdict = compare_logits(logits("a"), logits("b", put(0, 0, np.inf)), N_VOCAB)
        assert verdict.verdict == "differs"
        assert json.loads(json.dumps(verdict.to_dict(), allow_nan=False))["max_abs_diff"] is None

    @pytest.mark.parametrize(
        ("reference", "candidate", "reason"),
        [
            (None, lambda v: v[:-1], "lengths differ: 10 and 9"),
            (None, lambda v: v[:0], "zero positions"),
            (None, lambda v: v.ravel()[:-3], "inside a row"),
            (None, put(3, 3, np.nan), "NaN among the logits of b"),
            (put(3, 3, np.nan), put(3, 3, np.nan), "NaN among the logits of a"),
            (np.zeros_like, np.zeros_like, "constant"),
        ],
    )
    def test_refusals(self, logits, reference, candidate, reason: str) -> None:
        verdict = compare_logits(logits("a", reference), logits("b", candidate), N_VOCAB)
        assert verdict.verdict == "not checked"
        assert verdict.reason is not None
        assert reason in verdict.reason

    def test_missing_and_same_file(self, logits, tmp_path: Path) -> None:
        a = logits("a")
        assert compare_logits(tmp_path / "none", a, N_VOCAB).reason == "none is missing"
        assert compare_logits(a, tmp_path / "none", N_VOCAB).reason == "none is missing"
        (tmp_path / "link").symlink_to(a)
        assert compare_logits(a, tmp_path / "link", N_VOCAB).reason == "both are the same file"


class TestHashes:
    def test_equal_and_different(self) -> None:
        a, records = recording(flash_run()).tokens, flash_run()
        verdict = compare_hashes(a, recording(records).tokens)
        assert (verdict.verdict, verdict.compared, verdict.max_abs_diff) == ("bit-exact", 3, None)
        records[3]["logits_hash"] = "0" * 15 + "f"
        verdict = compare_hashes(a, recording(records).tokens)
        assert (verdict.verdict, verdict.differing, verdict.first_differing_position) == ("differs", 1, 2)

    def test_rungs_of_other_kinds_compare(self) -> None:
        assert compare_hashes(recording(flash_run()).tokens, recording(resident_run()).tokens).verdict == "bit-exact"

    def test_refusals(self) -> None:
        a, records = recording(flash_run()).tokens, flash_run()
        for record in records[1:-1]:
            record["logits_hash"] = None
        assert compare_hashes(a, recording(records).tokens).reason == "zero positions were hashed"
        longer = recording([*flash_run()[:-1], token(2, "decode", 40, 50)]).tokens
        assert "lengths differ: 3 and 4" in (compare_hashes(a, longer).reason or "")


class TestCombine:
    def test_all_must_be_exact(self) -> None:
        exact = LogitsVerdict(verdict="bit-exact", compared=10, positions=5, max_abs_diff=0.0)
        differs = LogitsVerdict(
            verdict="differs", compared=10, positions=5, differing=2, max_abs_diff=0.5, first_differing_position=1
        )
        assert combine([exact, exact]).compared == 20
        both = combine([exact, differs])
        assert (both.verdict, both.differing, both.max_abs_diff, both.first_differing_position) == (
            "differs",
            2,
            0.5,
            6,
        )
        assert combine([exact, not_checked("why")]) == not_checked("why")
        assert combine([not_checked("why"), differs]).verdict == "differs"
        assert combine([]).verdict == "not checked"
