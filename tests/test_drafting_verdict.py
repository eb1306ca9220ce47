"""A drafted rung that generates other tokens: the control tells a near-tie from an error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from workbench import RunConfig, Session
from workbench.ablation.drafting import Plain, compare_tokens
from workbench.lossless import DIFFERS, NEAR_TIE, SAME_TOKENS

pytestmark = pytest.mark.native

PROMPT = "Once upon a time there was a little fox who lived at the edge of a quiet forest. One morning the fox"
CONFIG = RunConfig(threads=1, io="buffered", cache_slots=24, speculation="dspark", draft_max=3, draft_model="a.gguf")


@pytest.fixture(scope="module")
def plain(demo_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Plain:
    with Session(demo_file, threads=1, io="buffered", cache_slots=24) as session:
        rows, tokens = [], []
        for record in session.generate(PROMPT, n_predict=160, ignore_eos=True):
            tokens.append(record["next"])
            rows.append(session.logits[-1])
    logits = tmp_path_factory.mktemp("plain") / "logits.f32"
    np.asarray(rows, "<f4").tofile(logits)
    n_vocab = len(rows[0])
    return Plain(tokens=tokens, logits=logits, n_vocab=n_vocab, model=demo_file, config=CONFIG, prompt=PROMPT)


def parting(plain: Plain, at: int) -> list[int]:
    """A generation that takes the second best token at `at`."""
    row = np.fromfile(plain.logits, "<f4").reshape(-1, plain.n_vocab)[at]
    return [*plain.tokens[:at], int(np.argsort(row)[-2]), *plain.tokens[at + 1 :]]


def margins(plain: Plain) -> np.ndarray:
    two = np.sort(np.fromfile(plain.logits, "<f4").reshape(-1, plain.n_vocab), axis=1)[:, -2:]
    return two[:, 1] - two[:, 0]


def test_equal_tokens_need_no_control(plain: Plain) -> None:
    assert compare_tokens(plain, list(plain.tokens)).verdict == SAME_TOKENS
    assert not plain._gaps


@pytest.mark.seeded_fault
def test_a_clear_choice_that_was_missed_is_an_error(plain: Plain) -> None:
    at = int(margins(plain).argmax())
    verdict = compare_tokens(plain, parting(plain, at))
    assert verdict.verdict == DIFFERS
    assert verdict.first_differing_position == at
    assert "batches of 2 to 4 tokens move that by up to" in str(verdict.reason)


def test_the_control_measures_what_batch_width_moves(plain: Plain) -> None:
    at = int(margins(plain).argmin())
    other = parting(plain, at)
    gap, *moved = plain.gaps(at, other[at])
    assert gap == pytest.approx(float(margins(plain)[at]), abs=1e-6)
    assert len(moved) == 3
    most = max(abs(m - gap) for m in moved)
    assert 0 < most < 2  # Q8_0: wider batches run other kernels
    assert compare_tokens(plain, other).verdict == (NEAR_TIE if gap <= most else DIFFERS)


def test_without_wider_kernels_nothing_is_a_near_tie(plain: Plain) -> None:
    at = int(margins(plain).argmin())
    other = parting(plain, at)
    gap = float(margins(plain)[at])
    still = Plain(**{k: v for k, v in vars(plain).items() if k != "_gaps"}, _gaps={(at, other[at]): (gap, gap, gap)})
    assert compare_tokens(still, other).verdict == DIFFERS
