"""`Session`: records, text, chat templates, sampling, and leaving early."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import RunConfig, RunError, Session, ToggleError
from workbench.demo import demo_model

pytestmark = pytest.mark.native

PROMPT = "Once upon a time there was a little girl named Lily. She"


def test_import_is_light() -> None:
    heavy = {"torch", "matplotlib", "seaborn", "pandas", "lm_eval", "llama_cpp"}
    code = f"import sys, workbench; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_record_per_call_and_the_same_text_as_stock(demo_file: Path) -> None:
    texts = []
    for toggles in ({"experts": "resident"}, {"lookahead": "router", "cache_slots": 8, "ready_first": True}):
        with Session(demo_file, threads=1, **toggles) as session:
            records = list(session.generate(PROMPT, n_predict=24, ignore_eos=True))
            assert [r["phase"] for r in records] == ["prefill"] + ["decode"] * 23
            assert session.end is not None
            assert session.end["text"] == "".join(r["text"] for r in records)
            texts.append(session.end["text"])
    assert texts[0] == texts[1]
    assert len(texts[0].split()) > 10


def test_tokens_come_back(demo_file: Path) -> None:
    with Session(demo_file) as session:
        tokens = session.tokenize(PROMPT)
        assert session.detokenize(tokens).decode() == PROMPT
        assert session.metadata["general.architecture"] == "qwen3moe"


def test_a_session_can_generate_again(demo_file: Path) -> None:
    with Session(demo_file, cache_slots=8, threads=1) as session:
        first = [r["next"] for r in session.generate(PROMPT, n_predict=12)]
        assert [r["next"] for r in session.generate(PROMPT, n_predict=12)] == first


def test_leaving_early_ends_the_run(demo_file: Path) -> None:
    with Session(demo_file) as session:
        for record in session.generate(PROMPT, n_predict=50):
            if record["phase"] == "decode":
                break
        assert session.end is not None
        assert session.end["reason"] == "interrupted"
        assert session.end["rc"] == 0


def test_sampling_follows_the_seed(demo_file: Path) -> None:
    def sample(seed: int) -> list[int]:
        with Session(demo_file, temperature=1.0, seed=seed, threads=1) as session:
            return [r["next"] for r in session.generate(PROMPT, n_predict=20, ignore_eos=True)]

    assert sample(3) == sample(3)
    assert sample(3) != sample(4)


def test_two_sessions_side_by_side_do_not_mix(tiny_file: Callable[..., Path]) -> None:
    a, b = tiny_file("qwen3moe"), tiny_file("qwen3moe", seed=7)
    prompt = list(range(5, 25))
    with Session(a, threads=1) as one, Session(b, threads=1) as two:
        mixed = [(x["logits_hash"], y["logits_hash"]) for x, y in zip(
            one.generate(prompt, n_predict=10), two.generate(prompt, n_predict=10), strict=True
        )]  # fmt: skip
    for model, column in ((a, 0), (b, 1)):
        with Session(model, experts="resident", threads=1) as alone:
            wanted = [r["logits_hash"] for r in alone.generate(prompt, n_predict=10)]
        assert [m[column] for m in mixed] == wanted


def test_logits_are_a_distribution_over_the_vocabulary(demo_file: Path) -> None:
    with Session(demo_file) as session:
        for record in session.generate(PROMPT, n_predict=3):
            assert session.logits.shape == (1, session.n_vocab)
            assert int(np.argmax(session.logits)) == record["next"]


def test_chat_needs_a_template(tiny_file: Callable[..., Path]) -> None:
    with Session(tiny_file("qwen3moe")) as session, pytest.raises(RunError, match="no chat template"):
        session.chat_prompt([{"role": "user", "content": "hello"}])


def test_config_and_toggles_exclude_each_other() -> None:
    with pytest.raises(ToggleError, match="not both"):
        Session(demo_model(), RunConfig(), cache_slots=3)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (([1] * 33, range(33), [0] * 33, [True] * 33), "33 tokens in one call"),
        (([], [], [], []), "0 tokens in one call"),
        (([99999], [0], [0], [True]), "token 99999 is outside the vocabulary"),
        (([1], [0], [range(1, 3)], [True]), "no sequence below n_seq_max=2"),
        (([1], [0], [range(1, 1)], [True]), "no sequence below n_seq_max=2"),
        (([1], [0], [-1], [True]), "no sequence below n_seq_max=2"),
    ],
)
def test_a_batch_that_llama_cpp_would_abort_on_is_refused(demo_file: Path, batch: Any, message: str) -> None:
    with Session(demo_file, n_ctx=256, n_batch=32, n_ubatch=32, n_seq_max=2) as session:
        with pytest.raises(ToggleError, match=message):
            session.evaluate(*batch)
        assert session.evaluate([1, 2], [0, 1], [range(2), 1], [False, True]).shape[0] == 1
