"""The runtime against stock llama.cpp, bit by bit, and what it reads, keeps and predicts on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import split

from workbench import ModelFileError, Session

pytestmark = pytest.mark.native

PROMPT = [3, 77, 150, 9, 200, 31, 45, 111, 64, 5, 99, 250, 17, 8, 130, 77, 31, 12, 240, 100, 41, 42, 43]
N = 20
MODELS = [
    ("qwen3moe", {}),
    ("qwen3moe", {"dtype": "q4_k"}),
    ("qwen3moe", {"dtype": "q8_0", "scales": True}),
    ("olmoe", {"dtype": "q8_0"}),
    ("gpt-oss", {}),
    ("gpt-oss", {"dtype": "mxfp4"}),
    ("qwen35moe", {"dtype": "q8_0", "fused": False}),
    ("qwen35moe", {"dtype": "q4_k", "fused": True}),
    *((arch, {}) for arch in ("qwen2moe", "qwen3next", "deepseek2", "glm4moe", "bailingmoe2", "granitemoe")),
    *((arch, {}) for arch in ("hunyuan-moe", "llama", "ernie4_5-moe", "dots1", "minimax-m2", "lfm2moe")),
]
IDS = ["-".join([arch, *(f"{k}={v}" for k, v in how.items())]) for arch, how in MODELS]
TOGGLES: dict[str, dict[str, Any]] = {
    "baseline": {"lanes": 1},
    "buffered": {"io": "buffered"},
    "lookahead": {"lookahead": "router"},
    "ready-first": {"ready_first": True},
    "small cache": {"cache_slots": 2, "lookahead": "router", "ready_first": True},
    "wide": {"cache_slots": 6, "lookahead": "router", "lookahead_width": 2.0, "ready_first": True},
    "all cached": {"cache_slots": 16},
    "emulated": {"lookahead": "router", "emulate_bandwidth_bytes_s": 2_000_000_000, "emulate_latency_ns": 20_000},
}

_reference: dict[tuple[str, int], tuple[list[int], np.ndarray]] = {}


def decoded(model: Path, *, force: list[int] | None = None, **toggles: Any) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Records and logits [N, n_vocab] of a run."""
    with Session(model, **{"threads": 1, **toggles}) as session:
        records, rows = [], []
        for record in session.generate(PROMPT, n_predict=N, force_tokens=force, ignore_eos=True):
            records.append(record)
            if len(session.logits):
                rows.append(session.logits)
        records.append(session.end)
    return records, np.concatenate(rows)


def reference(model: Path, n_batch: int = 512) -> tuple[list[int], np.ndarray]:
    """Stock resident: greedy tokens and logits."""
    key = (str(model), n_batch)
    if key not in _reference:
        records, logits = decoded(model, experts="resident", n_batch=n_batch)
        _reference[key] = [r["next"] for r in records[:-1] if r["next"] is not None], logits
    return _reference[key]


def assert_bit_exact(logits: np.ndarray, wanted: np.ndarray) -> None:
    assert logits.shape == wanted.shape
    assert np.isfinite(wanted).all()
    assert np.ptp(wanted) > 0.1
    assert (logits.view(np.uint32) == wanted.view(np.uint32)).all()


@pytest.mark.parametrize("toggles", TOGGLES.values(), ids=TOGGLES.keys())
@pytest.mark.parametrize(("arch", "how"), MODELS[:8], ids=IDS[:8])
def test_bit_exact(tiny_file: Callable[..., Path], arch: str, how: dict[str, Any], toggles: dict[str, Any]) -> None:
    model = tiny_file(arch, **how)
    tokens, wanted = reference(model)
    _, logits = decoded(model, force=tokens, **toggles)
    assert_bit_exact(logits, wanted)


@pytest.mark.parametrize(("arch", "how"), MODELS[8:], ids=IDS[8:])
def test_bit_exact_on_further_architectures(tiny_file: Callable[..., Path], arch: str, how: dict[str, Any]) -> None:
    model = tiny_file(arch, **how)
    tokens, wanted = reference(model)
    _, logits = decoded(model, force=tokens, **TOGGLES["small cache"])
    assert_bit_exact(logits, wanted)


@pytest.mark.parametrize("toggles", TOGGLES.values(), ids=TOGGLES.keys())
@pytest.mark.parametrize(("arch", "how"), [MODELS[1], MODELS[5], MODELS[7]], ids=[IDS[1], IDS[5], IDS[7]])
def test_bit_exact_from_a_packed_file(
    tiny_file: Callable[..., Path],
    packed_file: Callable[..., Path],
    arch: str,
    how: dict[str, Any],
    toggles: dict[str, Any],
) -> None:
    tokens, wanted = reference(tiny_file(arch, **how))
    records, logits = decoded(packed_file(arch, **how), force=tokens, **toggles)
    assert_bit_exact(logits, wanted)
    assert records[0]["bytes"] > 0


@pytest.mark.parametrize("threads", [1, 2])
def test_bit_exact_with_a_chunked_prompt_and_threads(tiny_file: Callable[..., Path], threads: int) -> None:
    model = tiny_file("qwen3moe", dtype="q4_k")
    tokens, wanted = reference(model, n_batch=7)
    records, logits = decoded(model, force=tokens, n_batch=7, threads=threads, **TOGGLES["small cache"])
    assert [r["n_tokens"] for r in records if r.get("phase") == "prefill"] == [7, 7, 7, 2]
    assert_bit_exact(logits, wanted)


def test_bit_exact_from_shards(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    model = tiny_file("qwen3moe", dtype="q4_k")
    tokens, wanted = reference(model)
    shards = split(model, tmp_path, 3)
    records, logits = decoded(shards[0], force=tokens, **TOGGLES["wide"])
    assert_bit_exact(logits, wanted)
    assert records[0]["bytes"] > 0
    shards[2].unlink()
    with pytest.raises(ModelFileError, match=shards[2].name):
        Session(shards[0])


def test_bit_exact_for_sequences_side_by_side(tiny_file: Callable[..., Path]) -> None:
    model = tiny_file("qwen3moe", dtype="q8_0")
    prompts = [PROMPT[:9], PROMPT[4:16], PROMPT[2:5]]

    def run(**toggles: Any) -> list[np.ndarray]:
        with Session(model, n_seq_max=3, n_ctx=256, threads=1, **toggles) as session:
            flat = [(t, p, s, p == len(x) - 1) for s, x in enumerate(prompts) for p, t in enumerate(x)]
            out = [session.evaluate(*map(list, zip(*flat, strict=True)))]
            for step in range(6):
                positions = [len(x) + step for x in prompts]
                out.append(session.evaluate([9 + step, 70 + step, 33], positions, [0, 1, 2], [True] * 3))
        return out

    for logits, wanted in zip(run(**TOGGLES["wide"]), run(experts="resident"), strict=True):
        assert wanted.shape == (3, 512)
        assert_bit_exact(logits, wanted)


@pytest.mark.parametrize(("arch", "how"), MODELS, ids=IDS)
def test_the_control_predictor_is_never_wrong(tiny_file: Callable[..., Path], arch: str, how: dict[str, Any]) -> None:
    records, _ = decoded(tiny_file(arch, **how), lookahead="control")
    total = sum(r["recall_total"] for r in records[:-1])
    assert total >= 4 * 4 * (N - 1)
    assert sum(r["recall_hit"] for r in records[:-1]) == total


def test_a_wider_prediction_finds_more(tiny_file: Callable[..., Path]) -> None:
    def recall(width: float) -> float:
        records, _ = decoded(tiny_file("qwen3moe"), lookahead="router", lookahead_width=width)
        return sum(r["recall_hit"] for r in records[:-1]) / sum(r["recall_total"] for r in records[:-1])

    assert 0.3 < recall(1.0) < recall(2.0) <= recall(4.0) == 1.0


def test_baseline_reads_every_needed_matrix_once(tiny_file: Callable[..., Path]) -> None:
    records, _ = decoded(tiny_file("qwen3moe", dtype="q4_k"), lanes=1, io="buffered")
    for r in records[:-1]:
        assert r["hits"] == 0
        assert r["reads"] == 3 * r["lookups"]
        assert r["bytes"] == r["lookups"] * 3 * 256 * 256 // 256 * 144
        assert r["recall_total"] is None
    assert {r["lookups"] for r in records[:-1] if r["phase"] == "decode"} == {5 * 4}


def test_a_packed_expert_is_one_read_and_neighbours_merge(packed_file: Callable[..., Path]) -> None:
    records, _ = decoded(packed_file("qwen3moe", dtype="q4_k"), telemetry="io")
    decode = [r for r in records[:-1] if r["phase"] == "decode"]
    assert sum(r["bytes"] for r in decode) == sum(r["lookups"] for r in decode) * 110592
    assert all(r["reads"] <= r["lookups"] for r in decode)
    merged = [q for r in decode for q in r["ios"] if len(q["experts"]) > 1]
    assert merged
    for q in merged:
        assert q["experts"] == list(range(q["experts"][0], q["experts"][-1] + 1))
        assert q["bytes"] == len(q["experts"]) * 110592


def test_the_cache_is_lru_per_layer(tiny_file: Callable[..., Path]) -> None:
    c = 6
    records, _ = decoded(tiny_file("qwen3moe"), cache_slots=c, telemetry="layer")
    recent: dict[int, list[int]] = {}
    for r in records[:-1]:
        for layer in r["layers"]:
            uses = [e for row in layer["routed"] for e in reversed(row)]
            needed = list(dict.fromkeys(reversed(uses)))[::-1]
            held = recent.setdefault(layer["layer"], [])
            if r["phase"] == "decode":
                assert layer["hits"] == len(set(needed) & set(held)), (r["i"], layer["layer"])
            recent[layer["layer"]] = ([e for e in held if e not in needed] + needed)[-c:]
    assert sum(r["evictions"] for r in records[:-1]) > 0


def test_a_full_cache_reads_an_expert_once(tiny_file: Callable[..., Path]) -> None:
    records, _ = decoded(tiny_file("qwen3moe", dtype="q4_k"), cache_slots=16, io="buffered", telemetry="layer")
    touched = {(x["layer"], e) for r in records[:-1] for x in r["layers"] for row in x["routed"] for e in row}
    assert sum(r["bytes"] for r in records[:-1]) == len(touched) * 110592
    assert sum(r["evictions"] for r in records[:-1]) == 0


def test_without_ready_first_a_layer_is_one_wave_after_its_reads(tiny_file: Callable[..., Path]) -> None:
    records, _ = decoded(tiny_file("qwen3moe"), telemetry="io", lanes=1)
    for r in (r for r in records[:-1] if r["phase"] == "decode"):
        assert {x["waves"] for x in r["layers"]} == {1}
        assert all(q["source"] == "demand" for q in r["ios"])
        for before, after in zip(r["ios"], r["ios"][1:], strict=False):
            assert after["start_ns"] >= before["end_ns"]


def test_ready_first_computes_while_others_are_read(tiny_file: Callable[..., Path]) -> None:
    slow = {"emulate_bandwidth_bytes_s": 50_000_000, "emulate_latency_ns": 100_000, "io": "buffered"}
    records, _ = decoded(tiny_file("qwen3moe", dtype="q4_k"), telemetry="layer", ready_first=True, lanes=1, **slow)
    assert max(x["waves"] for r in records[:-1] if r["phase"] == "decode" for x in r["layers"]) >= 3


def test_prefetch_moves_reads_before_their_layer_and_demand_goes_first(tiny_file: Callable[..., Path]) -> None:
    slow = {"emulate_bandwidth_bytes_s": 100_000_000, "emulate_latency_ns": 50_000, "io": "buffered"}
    records, _ = decoded(tiny_file("qwen3moe", dtype="q4_k"), telemetry="io", lookahead="router", lanes=1, **slow)
    decode = [r for r in records[:-1] if r["phase"] == "decode"]
    assert sum(r["prefetch_used"] for r in decode) > 0
    for r in decode:
        begins = {x["layer"]: x["t0_ns"] for x in r["layers"]}
        for q in r["ios"]:
            if q["source"] == "prefetch":
                assert q["queue_ns"] < begins[q["layer"]]
        demand = [q for q in r["ios"] if q["source"] == "demand"]
        ahead = [q for q in r["ios"] if q["source"] == "prefetch"]
        for q in demand:  # no prefetch starts while a demand read of an earlier moment waits
            assert not any(q["queue_ns"] < p["start_ns"] < q["start_ns"] for p in ahead)


def test_emulated_flash_takes_its_time(tiny_file: Callable[..., Path]) -> None:
    bandwidth, latency = 200_000_000, 150_000
    emulate = {"emulate_bandwidth_bytes_s": bandwidth, "emulate_latency_ns": latency, "io": "buffered"}
    records, _ = decoded(tiny_file("qwen3moe", dtype="q4_k"), telemetry="io", lanes=3, **emulate)
    reads = [q for r in records[:-1] for q in r["ios"]]
    for q in reads:
        assert q["end_ns"] - q["start_ns"] >= latency + q["bytes"] * 1e9 / bandwidth - 1
    span = max(q["end_ns"] for q in reads) - min(q["start_ns"] for q in reads)
    assert span >= sum(q["bytes"] for q in reads) * 1e9 / bandwidth


def test_every_decoded_token_has_a_record_and_a_hash(tiny_file: Callable[..., Path]) -> None:
    model = tiny_file("qwen3moe")
    (stock, wanted), (flash, _) = decoded(model, experts="resident"), decoded(model)
    assert len(wanted) == N
    assert [r["logits_hash"] for r in stock[:-1]] == [r["logits_hash"] for r in flash[:-1]]
    assert len({r["logits_hash"] for r in flash[:-1]}) == N
    assert stock[1]["bytes"] is None
    assert flash[-1]["reason"] == "length"
    assert flash[-1]["n_decode"] == N - 1


def test_the_arena_is_what_the_slots_need(tiny_file: Callable[..., Path]) -> None:
    with Session(tiny_file("qwen3moe", dtype="q4_k"), cache_slots=3, n_batch=1, n_ctx=64) as session:
        header = session.header
    assert header["slots"] == 5 * 3 + 4
    assert header["arena_bytes"] == header["slots"] * (header["arena_bytes"] // header["slots"])
    assert header["arena_bytes"] // header["slots"] < 110592 + 3 * 4096 + 4096
