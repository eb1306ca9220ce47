"""The lm-eval adapter: scores against plain one-at-a-time decoding, batching, sharing, resuming, chat, generation.

What exactly is equal: scores are equal to the bit for equal requests and sizes, whatever the toggles, the state of the
expert cache, or an interruption. Another batch size uses kernels of another width: equal within float noise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from evals_material import SHAPE, SIZES, WORDS
from hypothesis import given
from hypothesis import strategies as st

from workbench import RunError, Session, ToggleError
from workbench.evals.prefixes import PrefixTree
from workbench.evals.scoring import Limits, fit, plan, token_scores
from workbench.evals.store import Journal

pytestmark = pytest.mark.native
NOISE = 0.02  # nats over a few tokens: keys and values are kept in half precision


@pytest.fixture(scope="module")
def model(tiny_file: Callable[..., Path]) -> Path:
    return tiny_file("qwen3moe", **SHAPE)


def open_session(model: Path, **toggles: Any) -> Session:
    return Session(model, **{"experts": "resident", "telemetry": "off", "logits_hash": False, **SIZES, **toggles})


@pytest.fixture(scope="module")
def session(model: Path) -> Iterator[Session]:
    with open_session(model) as opened:
        yield opened


def adapter(session: Session, **how: Any) -> Any:
    from workbench.evals.adapter import SessionLM

    return SessionLM(session, progress=False, **how)


def ask(lm: Any, method: str, arguments: list[tuple[Any, ...]]) -> Any:
    return getattr(lm, method)([SimpleNamespace(args=a) for a in arguments], disable_tqdm=True)


def requests(n: int = 40) -> list[tuple[str, str]]:
    """Contexts of many lengths, some with several continuations of one and of more tokens, some with one."""
    rng = np.random.default_rng(3)
    found = []
    for i in range(n):
        context = " ".join(rng.choice(WORDS, 1 + i % 17))
        found += [(context, " " + w) for w in rng.choice(WORDS, 1 + i % 4, replace=False)]
        if i % 5 == 0:
            found += [(context, "x"), (context, "yz")]
    return found


def one_by_one(session: Session, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
    """The definition: decode context and continuation alone, score the rows of the continuation."""
    scores = []
    for context, continuation in pairs:
        session.clear()
        tokens = [*context, *continuation][:-1]
        rows = session.evaluate(tokens, range(len(tokens)), [0] * len(tokens), [True] * len(tokens))
        values, greedy = token_scores(rows[-len(continuation) :], continuation)
        scores.append((float(values.sum()), bool(greedy.all())))
    return scores


class TestLoglikelihood:
    def test_equals_decoding_each_alone(self, session: Session) -> None:
        lm, asked = adapter(session), requests()
        pairs = [lm._encode_pair(*r) for r in asked]
        wanted = one_by_one(session, pairs)
        found = ask(lm, "loglikelihood", asked)
        assert [f[0] for f in found] == pytest.approx([w[0] for w in wanted], abs=NOISE)
        assert [f[1] for f in found] == [w[1] for w in wanted]

    @pytest.mark.parametrize(
        "toggles",
        [
            {"experts": "flash"},
            {"experts": "flash", "lookahead": "router", "ready_first": True, "cache_slots": 4, "io": "buffered"},
            {"experts": "flash", "cache_slots": 8, "lanes": 1},
        ],
        ids=["on demand", "all", "cache"],
    )
    def test_equal_to_the_bit_under_every_toggle_and_cache_state(
        self, model: Path, session: Session, toggles: dict[str, Any]
    ) -> None:
        wanted = ask(adapter(session), "loglikelihood", requests())
        with open_session(model, **toggles) as other:
            assert ask(adapter(other), "loglikelihood", requests()) == wanted  # cold cache
            ask(adapter(other), "loglikelihood", requests(7))
            assert ask(adapter(other), "loglikelihood", requests()) == wanted  # warm, other experts in it

    @pytest.mark.parametrize("sizes", [(64, 64, 4), (512, 512, 64), (256, 1024, 2)])
    def test_within_noise_at_other_batch_sizes(
        self, model: Path, session: Session, sizes: tuple[int, int, int]
    ) -> None:
        wanted = ask(adapter(session), "loglikelihood", requests())
        n_batch, n_ctx, n_seq = sizes
        with open_session(model, n_batch=n_batch, n_ubatch=n_batch, n_ctx=max(n_ctx, 256), n_seq_max=n_seq) as other:
            found = ask(adapter(other), "loglikelihood", requests())
        assert [f[0] for f in found] == pytest.approx([w[0] for w in wanted], abs=NOISE)

    @pytest.mark.parametrize("dtype", ["f16", "q8_0"])
    def test_exact_products_make_the_batch_size_irrelevant(self, tiny_file: Callable[..., Path], dtype: str) -> None:
        """Sequences side by side stay as many: they decide where in the shared cache keys lie."""
        model = tiny_file("qwen3moe", **{**SHAPE, "dtype": dtype})
        found = []
        for n_batch in (32, 128, 512):
            sizes = {"n_batch": n_batch, "n_ubatch": n_batch, "n_ctx": 1024, "n_seq_max": 16}
            with open_session(model, batch_invariant=True, flash_attn="off", **sizes) as session:
                found.append(ask(adapter(session), "loglikelihood", requests()))
        assert found[0] == found[1] == found[2]

    def test_order_of_requests_does_not_matter(self, session: Session) -> None:
        asked = requests()
        wanted = ask(adapter(session), "loglikelihood", asked)
        turned = ask(adapter(session), "loglikelihood", asked[::-1])
        assert turned[::-1] == wanted

    def test_long_contexts_are_cut_from_the_left(self, session: Session) -> None:
        lm = adapter(session, max_length=32)
        pairs = [(list(range(60, 120)), [1, 2, 3]), (list(range(60, 91)), [4])]
        found = lm._loglikelihood_tokens([(None, *pair) for pair in pairs], disable_tqdm=True)
        wanted = one_by_one(session, [((c + t)[-33:][: -len(t)], t) for c, t in pairs])
        assert [f[0] for f in found] == pytest.approx([w[0] for w in wanted], abs=NOISE)

    @pytest.mark.parametrize("arch", ["gpt-oss", "deepseek2", "qwen35moe", "qwen3next", "lfm2moe"])
    @pytest.mark.parametrize("n_batch", [16, 256])
    def test_shared_beginnings_whatever_the_memory(
        self, tiny_file: Callable[..., Path], arch: str, n_batch: int
    ) -> None:
        """Windows, latent attention, recurrent states: a beginning is shared by texts of the same call and of later."""
        rng = np.random.default_rng(5)
        whole = rng.integers(3, 250, 40).tolist()
        contexts = [whole[:n] for n in (24, 24, 30, 40)] + [[*whole[:20], 7, 8]]
        pairs = [(c, rng.integers(3, 250, 1 + i).tolist()) for c in contexts for i in range(4)]
        sizes = {"n_batch": n_batch, "n_ubatch": n_batch, "n_seq_max": 16}
        model = tiny_file(arch, dtype="f32", n_ctx=512, n_expert=8, n_expert_used=8)  # no near tie moves a choice
        with open_session(model, **sizes) as session:
            found = adapter(session)._loglikelihood_tokens([(None, *p) for p in pairs], disable_tqdm=True)
        with open_session(model) as session:
            wanted = one_by_one(session, pairs)
        assert [f[0] for f in found] == pytest.approx([w[0] for w in wanted], abs=NOISE)

    def test_empty_context_and_continuation(self, session: Session) -> None:
        lm = adapter(session)
        assert ask(lm, "loglikelihood", [("", "ab")])[0][0] == pytest.approx(
            one_by_one(session, [([lm.prefix_token_id], lm.tok_encode("ab"))])[0][0], abs=NOISE
        )
        assert lm._loglikelihood_tokens([(None, [1, 2], [])], disable_tqdm=True) == [(0.0, True)]

    def test_a_space_that_trails_the_context_moves_to_the_continuation(self, session: Session) -> None:
        lm = adapter(session)
        assert lm._encode_pair("ab ", "c") == lm._encode_pair("ab", " c")

    def test_a_token_across_the_join_is_scored_alone(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        lm = adapter(session)
        monkeypatch.setattr(lm, "tok_encode", lambda text, **_: [7] if text in ("ab", "a") else [8])
        assert lm._encode_pair("a", "b") == ([7], [8])


class TestPlan:
    limits = Limits(n_batch=64, n_cells=100, n_seq=6)

    def test_every_request_once_and_within_limits(self) -> None:
        rng = np.random.default_rng(1)
        asked = [(tuple(rng.integers(0, 3, rng.integers(1, 30)).tolist()),
                  tuple(rng.integers(0, 9, rng.integers(1, 9)).tolist())) for _ in range(200)]  # fmt: skip
        waves = plan(asked, self.limits)
        assert sorted(r.place for w in waves for r in w.requests) == list(range(200))
        for wave in waves:
            assert wave.n_tokens == len({t[: i + 1] for t in wave.texts for i in range(len(t))})
            assert wave.n_tokens <= (25 if len(wave.texts) > 1 else 100)
            assert len(wave.texts) <= 6
            for r in wave.requests:
                context, continuation = asked[r.place]
                assert (r.start, r.continuation) == (len(context) - 1, continuation)
                assert wave.texts[r.text][: r.start + len(continuation)] == context + continuation[:-1]

    def test_what_texts_begin_with_is_decoded_once(self) -> None:
        asked = [((1, 2, 3), (4, 5)), ((1, 2, 3), (4, 6)), ((1, 2), (3,)), ((1, 2, 7), (8, 9, 5)), ((9,), (1, 2))]
        (wave,) = plan(asked, self.limits)
        assert wave.texts == ((1, 2, 3, 4), (1, 2, 7, 8, 9), (9, 1))
        tree = PrefixTree.of(wave.texts)
        assert tree.tokens == [1, 2, 3, 4, 7, 8, 9, 9, 1]
        assert tree.positions == [0, 1, 2, 3, 2, 3, 4, 0, 1]
        assert tree.sequences == [range(0, 2)] * 2 + [range(0, 1)] * 2 + [range(1, 2)] * 3 + [range(2, 3)] * 2
        assert tree.paths == [[0, 1, 2, 3], [0, 1, 4, 5, 6], [7, 8]]

    @given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), min_size=1, max_size=9))
    def test_a_row_belongs_to_the_texts_that_pass_through_it(self, texts: list[tuple[int, ...]]) -> None:
        tree = PrefixTree.of(sorted(texts))
        for text, path in zip(sorted(texts), tree.paths, strict=True):
            assert tuple(tree.tokens[row] for row in path) == text
            assert [tree.positions[row] for row in path] == list(range(len(text)))
        for row, sequences in enumerate(tree.sequences):
            assert list(sequences) == [i for i, path in enumerate(tree.paths) if row in path]
        assert len(tree.tokens) == len({t[: i + 1] for t in texts for i in range(len(t))})

    def test_keys_tell_waves_apart(self) -> None:
        a, b = plan([((1,), (2,))], self.limits)[0], plan([((1,), (3,))], self.limits)[0]
        assert a.key(self.limits) != b.key(self.limits)
        assert a.key(self.limits) != a.key(Limits(n_batch=32, n_cells=100, n_seq=6))

    def test_a_continuation_beyond_the_context_is_an_error(self) -> None:
        with pytest.raises(ToggleError, match="exceeds the context of 4"):
            fit([1], [2] * 5, 4)


class TestRolling:
    def test_windows_add_up(self, session: Session) -> None:
        text = " ".join(WORDS * 3)
        lm = adapter(session, max_length=50)
        tokens = lm.tok_encode(text)
        found = ask(lm, "loglikelihood_rolling", [(text,), ("ab",)])
        wanted, start = 0.0, 0
        while start < len(tokens):
            end = min(start + 50, len(tokens))
            context = [lm.prefix_token_id] if start == 0 else tokens[max(0, end - 51) : start]
            wanted += one_by_one(session, [(context, tokens[start:end])])[0][0]
            start = end
        assert found[0] == pytest.approx(wanted, abs=0.1)
        assert found[1] == pytest.approx(one_by_one(session, [([lm.prefix_token_id], [97, 98])])[0][0], abs=NOISE)


class TestGenerate:
    def test_equals_generating_alone(self, session: Session) -> None:
        lm = adapter(session)
        prompts = [" ".join(WORDS[: 3 + i]) for i in range(5)]
        options = {"until": [], "max_gen_toks": 12, "do_sample": False}
        found = ask(lm, "generate_until", [(p, options) for p in prompts])
        with open_session(session.model_path) as alone:
            for prompt, text in zip(prompts, found, strict=True):
                tokens = [r["next"] for r in alone.generate(alone.tokenize(prompt), n_predict=12)]
                tokens = [t for t in tokens if not alone.is_end(t)]
                assert text == alone.detokenize(tokens).decode(errors="replace")

    def test_stops_at_the_stop_string(self, session: Session) -> None:
        lm = adapter(session)
        whole = ask(lm, "generate_until", [("the river", {"until": [], "max_gen_toks": 20})])[0]
        mark = whole[4:6]
        assert ask(lm, "generate_until", [("the river", {"until": [mark], "max_gen_toks": 20})]) == [
            whole[: whole.index(mark)]
        ]

    def test_sampling_is_refused(self, session: Session) -> None:
        with pytest.raises(ToggleError, match="only greedy"):
            ask(adapter(session), "generate_until", [("a", {"until": [], "do_sample": True, "temperature": 0.7})])


class TestResume:
    def test_an_interrupted_evaluation_ends_with_equal_scores(
        self, model: Path, session: Session, tmp_path: Path
    ) -> None:
        wanted = ask(adapter(session), "loglikelihood", requests())
        path = tmp_path / "journal.jsonl"
        broken = adapter(session, journal=Journal(path))
        put, calls = broken.journal.put, []

        def die(key: str, value: Any) -> None:
            put(key, value)
            calls.append(key)
            if len(calls) == 2:
                raise KeyboardInterrupt

        broken.journal.put = die
        with pytest.raises(KeyboardInterrupt):
            ask(broken, "loglikelihood", requests())
        path.write_text(path.read_text() + '["torn')  # a crash in the middle of a line
        again = adapter(session, journal=Journal(path))
        assert ask(again, "loglikelihood", requests()) == wanted
        assert again.journal.reused == 2
        third = adapter(session, journal=Journal(path))
        assert ask(third, "loglikelihood", requests()) == wanted
        assert (third.journal.made, third.n_tokens) == (0, 0)


class TestTexts:
    def test_chat_template_of_the_file(self, demo_file: Path) -> None:
        with open_session(demo_file) as demo:
            lm = adapter(demo)
            history = [{"role": "user", "content": "hello"}]
            text = lm.apply_chat_template(history)
            assert "hello" in text
            assert lm.apply_chat_template(history, add_generation_prompt=False) in text
            assert lm.chat_template(True) == demo.metadata["tokenizer.chat_template"]
            assert lm.chat_template(False) is None
            assert lm.tok_encode(text).count(demo.bos) <= 1

    def test_no_template_is_an_error(self, session: Session) -> None:
        with pytest.raises(RunError, match="no chat template"):
            adapter(session).apply_chat_template([{"role": "user", "content": "hello"}])

    def test_one_bos(self, demo_file: Path) -> None:
        with open_session(demo_file) as demo:
            lm = adapter(demo, add_bos=True)
            assert demo.bos is not None
            begun = lm.tok_encode("hello there")
            assert begun[0] == demo.bos
            assert begun.count(demo.bos) == 1
            bos_text = json.loads(json.dumps(demo.metadata))  # as a template would write it
            assert lm.tok_encode("hello", add_special_tokens=False)[0] != demo.bos
            assert bos_text["tokenizer.ggml.bos_token_id"] == str(demo.bos)

    def test_sizes_are_checked(self, model: Path) -> None:
        with Session(model, experts="resident") as small, pytest.raises(ToggleError, match="needs n_ctx"):
            adapter(small)
