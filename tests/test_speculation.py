"""Drafting never changes what is generated, reads a verified batch's experts once, and refuses what would abort."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafters import random_drafter
from scipy.stats import kstest

from workbench import ModelFileError, RunConfig, Session, ToggleError, UnsupportedArchitectureError
from workbench.bench.draft_width import without_markov
from workbench.demo import demo_drafter

pytestmark = pytest.mark.native

PROMPT = [5, 9, 20, 31, 5, 9, 20, 44, 60, 5, 9, 20, 31, 5, 9, 20, 44, 61, 5, 9]
FLASH = {"cache_slots": 5, "lookahead": "router", "ready_first": True, "io": "buffered", "threads": 1}
ENGLISH = "Once upon a time there was a girl named Lily. Lily had a red ball. Lily took the red ball to the park. Lily"


def generate(model: Path, prompt: Any = PROMPT, n: int = 48, **toggles: Any) -> tuple[list[int], list[dict[str, Any]]]:
    """Chosen tokens and records."""
    with Session(model, **{**FLASH, **toggles}) as session:
        records = list(session.generate(prompt, n_predict=n, ignore_eos=True))
        assert session.end is not None
        assert session.end["n_generated"] == n
    chosen = [t for r in records for t in (r.get("chosen") or [r["next"]]) if t is not None]
    return chosen, records


@pytest.mark.parametrize("arch", ["qwen3moe", "qwen35moe", "qwen3next", "gpt-oss", "lfm2moe"])
@pytest.mark.parametrize("kind", ["draft-simple", "dspark"])
def test_greedy_output_is_that_of_plain_decoding(
    tiny_file: Callable[..., Path], tmp_path: Path, arch: str, kind: str
) -> None:
    """With drafters that are nearly always wrong, so that every round rolls back."""
    model = tiny_file(arch)
    dspark = kind == "dspark"
    draft = random_drafter(tmp_path / "drafter.gguf") if dspark else tiny_file("qwen3moe", seed=7)
    plain, _ = generate(model)
    chosen, records = generate(model, speculation=kind, draft_model=str(draft), draft_max=3)
    assert len(plain) == 48
    assert chosen == plain
    drafted = sum(r["drafted"] or 0 for r in records)
    assert drafted > 48
    assert sum(r["accepted"] or 0 for r in records) < drafted / 2


@pytest.mark.parametrize("arch", ["qwen35moe", "qwen3next"])
@pytest.mark.parametrize("speculation", ["off", "ngram-simple"])
def test_hybrid_targets_take_prompts_in_chunks_and_evaluate(
    tiny_file: Callable[..., Path], arch: str, speculation: str
) -> None:
    """Calls that choose no token leave the recurrent state alone."""
    model = tiny_file(arch)
    whole, _ = generate(model)
    chunked, records = generate(model, speculation=speculation, n_batch=18)
    assert [r["phase"] for r in records[:2]] == ["prefill"] * 2
    assert chunked == whole
    with Session(model, **FLASH, speculation=speculation) as session:
        logits = session.evaluate(PROMPT, range(len(PROMPT)), [0] * len(PROMPT), [True] * len(PROMPT))
    assert logits.shape == (len(PROMPT), 512)


@pytest.mark.parametrize("kind", ["ngram-simple", "ngram-mod"])
def test_repetition_is_drafted_without_a_model(demo_file: Path, kind: str) -> None:
    """A text that repeats itself, fed as if chosen: what came before is drafted and accepted."""
    with Session(demo_file, **FLASH, speculation=kind, draft_max=4) as session:
        sentence = session.tokenize(" Lily took the red ball to the park and played all day.", add_bos=False)
        records = list(session.generate(sentence * 3, force_tokens=sentence * 3, ignore_eos=True))
    assert [t for r in records for t in (r.get("chosen") or [r["next"]])] == sentence * 3
    drafted, accepted = (sum(r[key] or 0 for r in records) for key in ("drafted", "accepted"))
    assert accepted > drafted / 2 > 0
    assert len(records) < 2.5 * len(sentence)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["draft-simple", "dspark"])
@pytest.mark.parametrize("batch_invariant", [True, False])
def test_fifty_prompts_with_f16_weights_are_decoded_alike(
    tiny_file: Callable[..., Path], tmp_path: Path, kind: str, batch_invariant: bool
) -> None:
    """50 x 128 tokens, flash attention off: identical; with stock products a random model's last-bit ties part."""
    model = tiny_file("qwen3moe", dtype="f16", n_layer=2, n_expert=8)
    drafter = random_drafter(tmp_path / "drafter.gguf", target_layers=(0, 1), n_layer=1)
    options = {"speculation": kind, "draft_model": str(drafter if kind == "dspark" else model), "draft_max": 4}
    common = {**FLASH, "flash_attn": "off", "batch_invariant": batch_invariant}
    rng = np.random.default_rng(0)
    identical = accepted = 0
    with Session(model, **common) as plain, Session(model, **common, **options) as drafted:
        for _ in range(50):
            prompt = rng.integers(0, 500, size=rng.integers(4, 40)).tolist()
            wanted, gaps = [], []
            for record in plain.generate(prompt, n_predict=128, ignore_eos=True):
                wanted.append(record["next"])
                second, best = np.sort(plain.logits[0])[-2:]
                gaps.append(best - second)
            records = list(drafted.generate(prompt, n_predict=128, ignore_eos=True))
            chosen = [t for r in records for t in (r.get("chosen") or [r["next"]])]
            accepted += sum(r["accepted"] or 0 for r in records)
            identical += chosen == wanted
            if chosen != wanted:
                parting = next(i for i in range(128) if chosen[i] != wanted[i])
                assert gaps[parting] < 1e-3
    assert identical == 50 if batch_invariant else identical >= 45
    if kind == "draft-simple":
        assert accepted > 50 * 90


def logits_of(model: Path, prompt: Any, n: int, **toggles: Any) -> np.ndarray:
    """The logits every token was chosen from, float32 [n, n_vocab]."""
    with Session(model, **{**FLASH, **toggles}) as session:
        return np.concatenate([session.logits for _ in session.generate(prompt, n_predict=n, ignore_eos=True)])


@pytest.mark.parametrize("dtype", ["f16", "q8_0", "q4_k", "f32"])
@pytest.mark.parametrize("arch", ["qwen3moe", "gpt-oss", "qwen35moe", "qwen3next", "lfm2moe"])
def test_batch_invariant_products_make_drafts_bit_exact(
    tiny_file: Callable[..., Path], tmp_path: Path, arch: str, dtype: str
) -> None:
    model = tiny_file(arch, dtype=dtype)
    options = {"speculation": "dspark", "draft_model": str(random_drafter(tmp_path / "d.gguf")), "draft_max": 4}
    plain = logits_of(model, PROMPT, 40, batch_invariant=True)
    drafted = logits_of(model, PROMPT, 40, batch_invariant=True, **options)
    assert plain.shape == drafted.shape
    assert np.array_equal(plain.view("<u4"), drafted.view("<u4"))


def test_the_embedded_model_drafts_bit_for_bit(demo_file: Path) -> None:
    options = {"speculation": "dspark", "draft_model": str(demo_drafter())}
    plain = logits_of(demo_file, ENGLISH, 128, batch_invariant=True)
    drafted = logits_of(demo_file, ENGLISH, 128, batch_invariant=True, **options)
    assert np.array_equal(plain.view("<u4"), drafted.view("<u4"))
    stock = logits_of(demo_file, ENGLISH, 128, **options)
    assert stock.shape != plain.shape or not np.array_equal(stock.view("<u4"), plain.view("<u4"))  # so it does matter


def test_batch_invariant_logits_do_not_depend_on_the_batch(demo_file: Path) -> None:
    with Session(demo_file, **FLASH, flash_attn="off", batch_invariant=True) as session:
        tokens = session.tokenize(ENGLISH * 4)[:96]

        def rows(width: int) -> np.ndarray:
            session.clear()
            parts = [range(start, min(start + width, len(tokens))) for start in range(0, len(tokens), width)]
            return np.concatenate(
                [session.evaluate([tokens[i] for i in p], p, [0] * len(p), [True] * len(p)) for p in parts]
            )

        single = rows(1)
        for width in (2, 5, 32, 96):
            assert np.array_equal(single.view("<u4"), rows(width).view("<u4")), width


@pytest.mark.slow
def test_sampled_tokens_follow_the_target(tiny_file: Callable[..., Path]) -> None:
    """Over 10,000 tokens drawn with drafting: their ranks in the target's own distributions are uniform."""
    model = tiny_file("qwen3moe", n_layer=2, n_expert=8)
    rng = np.random.default_rng(1)
    sampled = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    options = {"speculation": "draft-simple", "draft_model": str(model), "draft_max": 3}
    places, accepted = [], 0
    with Session(model, **FLASH) as plain:
        for seed in range(1, 81):
            with Session(model, **FLASH, **sampled, **options, seed=seed) as drafted:
                records = list(drafted.generate(PROMPT, n_predict=128, ignore_eos=True))
            tokens = [t for r in records for t in (r.get("chosen") or [r["next"]])]
            accepted += sum(r["accepted"] or 0 for r in records)
            for step, _ in enumerate(plain.generate(PROMPT, force_tokens=tokens, ignore_eos=True)):
                p = np.exp(plain.logits[0] - plain.logits[0].max())
                p /= p.sum()
                below = p[: tokens[step]].sum()
                places.append(below + rng.random() * p[tokens[step]])
    assert len(places) >= 10_000
    assert accepted > 100
    assert kstest(places, "uniform").pvalue > 1e-3


def test_the_embedded_drafter_pays_in_rounds_and_without_its_markov_head_less(demo_file: Path, tmp_path: Path) -> None:
    story = "Once upon a time there was a little fox who lived at the edge of a quiet forest. One morning the fox"

    def rounds(drafter: Path) -> int:
        options = {"speculation": "dspark", "draft_model": str(drafter), "draft_max": 4}
        chosen, records = generate(demo_file, story, n=96, **options)
        assert chosen[:24] == plain[:24]
        return sum(r["phase"] == "decode" for r in records)

    plain, _ = generate(demo_file, story, n=96)
    with_head = rounds(demo_drafter())
    assert with_head < 95 / 1.8
    assert rounds(without_markov(demo_drafter(), tmp_path / "no-markov.gguf")) > with_head


def test_a_perfect_drafter_is_always_accepted(demo_file: Path) -> None:
    plain, _ = generate(demo_file, ENGLISH)
    chosen, records = generate(demo_file, ENGLISH, speculation="draft-simple", draft_model=str(demo_file), draft_max=3)
    rounds = [r for r in records if r["phase"] == "decode"]
    assert sum(r["accepted"] for r in rounds) >= 0.9 * sum(r["drafted"] for r in rounds) > 20
    assert len(rounds) < 20
    assert chosen[:16] == plain[:16]  # batch width changes kernels: later near-ties may differ


def test_sampling_stays_exact(demo_file: Path) -> None:
    sampled = {"temperature": 1.0, "seed": 5}
    plain, _ = generate(demo_file, ENGLISH, n=32, **sampled)
    options = {"speculation": "draft-simple", "draft_model": str(demo_file), "draft_max": 3}
    chosen, records = generate(demo_file, ENGLISH, n=32, **options, **sampled)
    assert chosen[:12] == plain[:12]
    assert sum(r["drafted"] or 0 for r in records) > 0


def test_a_verified_batch_reads_the_union_of_its_experts_once(demo_file: Path) -> None:
    options = {"cache_slots": 0, "lookahead": "off", "ready_first": False, "draft_max": 4}
    _, records = generate(demo_file, ENGLISH, speculation="draft-simple", draft_model=str(demo_file), **options)
    rounds = [r for r in records if r["phase"] == "decode" and r["drafted"] == 4]
    assert rounds
    for r in rounds:
        assert r["n_tokens"] == 5
        assert r["reads"] == 3 * r["lookups"]
        assert 8 * 4 < r["lookups"] < 5 * 4 * 8
    assert all(r["draft_ns"] > 0 and r["inject_ns"] >= 0 for r in rounds)


def test_adaptive_width_stays_within_the_limit_and_still_exact(demo_file: Path) -> None:
    plain, _ = generate(demo_file, ENGLISH, n=64)
    options = {"speculation": "draft-simple", "draft_model": str(demo_file), "draft_max": 3, "draft_adaptive": True}
    chosen, records = generate(demo_file, ENGLISH, n=64, **options)
    widths = {r["drafted"] for r in records if r["phase"] == "decode"}
    assert 0 in widths  # the first round is plain; the rest depends on the clock
    assert widths <= {0, 1, 2, 3}
    assert chosen[:16] == plain[:16]


@pytest.mark.parametrize(
    ("drafter", "toggles", "names"),
    [
        ({"n_embd": 128}, {}, "hidden size 128, the target has 256"),
        ({"n_vocab": 600}, {}, "600 tokens, the target 512"),
        ({"target_layers": (1, 5)}, {}, "taps layer 5 of a target with 5 layers"),
        ({"markov": False}, {}, "not a DSpark drafter"),
        ({"mask": False}, {}, "no mask token"),
        ({"confidence": False}, {"draft_min_p": 0.5}, "no confidence head"),
        ({"block_size": 4}, {"draft_max": 7}, "trained for blocks of 4"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(
    tiny_file: Callable[..., Path], tmp_path: Path, drafter: dict[str, Any], toggles: dict[str, Any], names: str
) -> None:
    path = random_drafter(tmp_path / "drafter.gguf", **drafter)
    with pytest.raises((ModelFileError, ToggleError), match=names):
        generate(tiny_file("qwen3moe"), n=4, speculation="dspark", draft_model=str(path), **toggles)


def test_an_architecture_without_taps_is_refused(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    path = random_drafter(tmp_path / "drafter.gguf")
    with pytest.raises(UnsupportedArchitectureError, match="'olmoe' exposes no layer inputs"):
        generate(tiny_file("olmoe"), n=4, speculation="dspark", draft_model=str(path))


def test_batches_too_small_for_a_recurrent_state_are_refused(tiny_file: Callable[..., Path]) -> None:
    """llama.cpp would abort. A second job is refused as well, instead of running undrafted."""
    with Session(tiny_file("qwen35moe"), **FLASH, speculation="ngram-simple", n_batch=17) as session:
        for _ in range(2):
            with pytest.raises(ToggleError, match=r"n_ubatch=17: .* at least 18"):
                list(session.generate(PROMPT, n_predict=4))


def test_a_missing_or_broken_drafter_is_refused(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    model = tiny_file("qwen3moe")
    with pytest.raises(ModelFileError, match=r"none\.gguf"):
        generate(model, n=4, speculation="dspark", draft_model=str(tmp_path / "none.gguf"))
    (tmp_path / "junk.gguf").write_bytes(b"junk" * 100)
    with pytest.raises(ModelFileError, match=r"junk\.gguf.*GGUF"):
        generate(model, n=4, speculation="draft-simple", draft_model=str(tmp_path / "junk.gguf"))


@pytest.mark.parametrize(
    ("toggles", "names"),
    [
        ({"speculation": "dspark"}, "needs draft_model"),
        ({"speculation": "ngram-mod", "draft_model": "x.gguf"}, "draft_model contradicts"),
        ({"draft_max": 3}, "draft_max=3 needs speculation"),
        ({"draft_adaptive": True}, "needs speculation"),
        ({"speculation": "telepathy"}, "choose one of"),
    ],
)
def test_contradictory_drafting_toggles(toggles: dict[str, Any], names: str) -> None:
    with pytest.raises(ToggleError, match=names):
        RunConfig(**toggles)
