"""Scores against lm-eval's own `hf` backend on the same weights; needs torch (dependency group `evals-test`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from evals_material import SHAPE, SIZES, WORDS

from workbench import Session

pytestmark = [pytest.mark.native, pytest.mark.slow]
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def byte_tokenizer(session: Session) -> Any:
    """One token per byte, as in the tiny model's file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = {chr(b): b for b in (*range(33, 127), *range(161, 173), *range(174, 256))}
    rest = [b for b in range(256) if b not in symbols.values()]
    symbols |= {chr(256 + i): b for i, b in enumerate(rest)}
    tokenizer = Tokenizer(models.BPE(vocab={**symbols, "<|end|>": session.n_vocab - 1}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


@pytest.fixture(scope="module")
def both(tiny_file: Callable[..., Path]) -> Iterator[tuple[Any, Any]]:
    from lm_eval.models.huggingface import HFLM

    from workbench.bench.hf_twin import twin
    from workbench.evals.adapter import SessionLM

    path = tiny_file("qwen3moe", **SHAPE)
    with Session(path, experts="flash", cache_slots=4, telemetry="off", logits_hash=False, **SIZES) as session:
        tokenizer = byte_tokenizer(session)
        assert tokenizer.encode("a lamp, é") == session.tokenize("a lamp, é")
        hf = HFLM(pretrained=twin(path), tokenizer=tokenizer, batch_size=4, device="cpu", max_length=512)
        yield SessionLM(session, progress=False), hf


def ask(lm: Any, method: str, arguments: list[tuple[Any, ...]]) -> Any:
    return getattr(lm, method)([SimpleNamespace(args=a) for a in arguments], disable_tqdm=True)


def test_loglikelihoods_are_equal_within_float_noise(both: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(4)
    asked = [(" ".join(rng.choice(WORDS, 1 + i % 9)), " " + str(rng.choice(WORDS))) for i in range(40)]
    asked += [(asked[0][0], tail) for tail in (" a", "x", " moon under")] + [("", "river")]
    ours, theirs = (ask(lm, "loglikelihood", asked) for lm in both)
    assert [o[0] for o in ours] == pytest.approx([t[0] for t in theirs], abs=0.03)
    assert [o[1] for o in ours] == [t[1] for t in theirs]


def test_rolling_is_equal_within_float_noise(both: tuple[Any, Any]) -> None:
    texts = [(" ".join(WORDS * k),) for k in (1, 4, 12)]  # the last is longer than the context
    ours, theirs = (ask(lm, "loglikelihood_rolling", texts) for lm in both)
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_greedy_text_is_equal(both: tuple[Any, Any]) -> None:
    options = {"until": [" "], "max_gen_toks": 10, "do_sample": False}
    asked = [(" ".join(WORDS[:k]), options) for k in range(2, 8)]
    ours, theirs = (ask(lm, "generate_until", asked) for lm in both)
    assert ours == theirs
