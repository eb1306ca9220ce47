"""The ladder can fail: faults put in on purpose are caught, each at its level; a sound candidate passes all four.

The model answers its own questions, so its accuracy is far above chance. Model faults change the file; a stale slot
comes from a preloaded `preadv` that now and then leaves the old bytes; the scoring fault is a wrapper of the adapter.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evals_material import SHAPE, SIZES, questions, texts

from workbench import RunConfig
from workbench.evals.compare import Comparison, Side, compare
from workbench.evals.evidence import Material
from workbench.evals.harness import EvalSpec
from workbench.evals.verdict import INCONCLUSIVE, LOSSLESS, NOT_LOSSLESS

pytestmark = [pytest.mark.native]
STREAMED = {"experts": "flash", "lookahead": "router", "ready_first": True, "cache_slots": 3, "io": "buffered"}
GIVEN = {"prompts": 20, "prompt_tokens": 12, "new_tokens": 6, "text_tokens": 64}


class Bench:
    """A model, its questions, and a store that keeps the reference's evaluation between tests."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.data = questions(model, folder / "data")
        prose = [json.loads(x)["text"] for x in (texts(folder, n=20) / "texts.jsonl").read_text().splitlines()]
        self.given = Material(texts=tuple(prose), **GIVEN)

    def compare(
        self, candidate: Path | None = None, *, levels: tuple[int, ...] = (1, 2, 3, 4), **how: Any
    ) -> Comparison:
        toggles = how.pop("toggles", {"experts": "resident"})
        return compare(
            Side(model=self.model, config=RunConfig(experts="resident", **SIZES)),
            Side(model=candidate or self.model, config=RunConfig(**toggles, **SIZES)),
            spec=EvalSpec(data=self.data),
            levels=levels,
            root=self.folder / "store",
            given=self.given,
            **how,
        )

    def edited(self, name: str, edit: Callable[[dict[str, np.ndarray]], None]) -> Path:
        """A copy of the model whose tensors `edit` changed in place."""
        import gguf

        path = self.folder / f"{name}.gguf"
        shutil.copy(self.model, path)
        edit({t.name: t.data for t in gguf.GGUFReader(path, "r+").tensors})
        return path


@pytest.fixture(scope="module")
def bench(tiny_file: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tiny_file("qwen3moe", **SHAPE), tmp_path_factory.mktemp("faults"))


def verdicts(found: Comparison) -> dict[int, str]:
    return {v.level: v.verdict for v in found.levels}


EXPERT = [f"blk.0.ffn_{kind}_exps.weight" for kind in ("gate", "up", "down")]


def substitute(tensors: dict[str, np.ndarray]) -> None:
    """Expert 2 of the first layer is computed with the weights of expert 5."""
    for name in EXPERT:
        tensors[name][2] = tensors[name][5]


def drop(tensors: dict[str, np.ndarray]) -> None:
    """Expert 2 of the first layer contributes nothing."""
    tensors[EXPERT[2]][2] = 0


def perturb(tensors: dict[str, np.ndarray]) -> None:
    """The first router's weights are off by a tenth of their size."""
    router = tensors["blk.0.ffn_gate_inp.weight"]
    router += np.random.default_rng(1).normal(scale=0.1 * router.std(), size=router.shape).astype(np.float32)


def test_a_sound_candidate_passes_every_level(bench: Bench) -> None:
    found = bench.compare(toggles=STREAMED)
    assert verdicts(found) == dict.fromkeys((1, 2, 3, 4), LOSSLESS), [v.reason for v in found.levels]
    assert found.passes(4)
    assert found.passes(None)
    task = found.level(4).figures["tasks"][0]
    assert task["reference"] > 0.9
    assert (task["chance"], task["flips"]) == (0.25, 0.0)


@pytest.mark.seeded_fault
@pytest.mark.parametrize("fault", [substitute, drop, perturb], ids=lambda f: f.__name__)
def test_a_fault_in_the_model_is_caught(bench: Bench, fault: Callable[[dict[str, np.ndarray]], None]) -> None:
    found = bench.compare(bench.edited(fault.__name__, fault))
    refuted = {level for level, verdict in verdicts(found).items() if verdict == NOT_LOSSLESS}
    assert {1, 2, 3} <= refuted
    assert verdicts(found)[4] != LOSSLESS
    assert not found.passes(1)
    assert not found.passes(None)
    if fault is not perturb:
        assert 4 in refuted


@pytest.mark.seeded_fault
def test_a_small_fault_is_caught_by_bits_alone(bench: Bench) -> None:
    """One weight of one expert, changed by one part in a million: only level 1 can see it, and it does."""

    def nudge(tensors: dict[str, np.ndarray]) -> None:
        tensors[EXPERT[2]][1, 3, 5] *= np.float32(1.000001)

    found = bench.compare(bench.edited("nudge", nudge), levels=(1, 2, 3))
    assert verdicts(found)[1] == NOT_LOSSLESS
    assert verdicts(found)[3] == LOSSLESS


@pytest.mark.seeded_fault
def test_a_token_off_by_one_in_scoring_is_caught_by_the_tasks(bench: Bench) -> None:
    """The model is untouched, so levels 1 to 3 hold; scores of the wrong token are at chance."""
    from workbench.evals.adapter import SessionLM

    class OffByOne(SessionLM):
        def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **kwargs: Any) -> Any:
            shifted = [(key, context[:-1], context[-1:] + target[:-1]) for key, context, target in requests]
            return super()._loglikelihood_tokens(shifted, disable_tqdm=disable_tqdm)

    found = bench.compare(toggles=STREAMED | {"cache_slots": 4}, wrap=OffByOne)
    assert verdicts(found) == {1: LOSSLESS, 2: LOSSLESS, 3: LOSSLESS, 4: NOT_LOSSLESS}
    assert found.level(4).figures["tasks"][0]["candidate"] < 0.4


@pytest.mark.seeded_fault
def test_a_reference_at_chance_certifies_nothing(bench: Bench) -> None:
    """Both sides score the wrong token: equal scores, to the bit, and yet nothing is shown."""
    folder = bench.folder / "shuffled"
    folder.mkdir(exist_ok=True)
    items = [json.loads(line) for line in (bench.data / "next.jsonl").read_text().splitlines()]
    for number, item in enumerate(items):
        item["gold"] = number % 4
    (folder / "next.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    side = Side(model=bench.model, config=RunConfig(experts="resident", **SIZES))
    found = compare(side, side, spec=EvalSpec(data=folder), levels=(4,), root=bench.folder / "store")
    assert verdicts(found) == {4: INCONCLUSIVE}
    assert "at chance" in found.level(4).reason


STALE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/uio.h>
typedef ssize_t (*reader)(int, const struct iovec *, int, off_t);
static atomic_int calls;
static ssize_t stale(const char * name, int fd, const struct iovec * iov, int n, off_t at) {
    size_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += iov[i].iov_len;
    if (bytes >= 65536 && atomic_fetch_add(&calls, 1) % 40 == 39) return (ssize_t) bytes; /* says it read, did not */
    return ((reader) dlsym(RTLD_NEXT, name))(fd, iov, n, at);
}
ssize_t preadv(int fd, const struct iovec * iov, int n, off_t at) { return stale("preadv", fd, iov, n, at); }
ssize_t preadv64(int fd, const struct iovec * iov, int n, off_t at) { return stale("preadv64", fd, iov, n, at); }
"""


@pytest.mark.seeded_fault
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs a C compiler and LD_PRELOAD")
def test_a_stale_slot_is_caught(bench: Bench, tmp_path: Path) -> None:
    source, shim = tmp_path / "stale.c", tmp_path / "stale.so"
    source.write_text(STALE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(source), "-ldl"], check=True)
    command = [
        sys.executable, "-c", "from workbench.cli import main; main()", "compare", str(bench.model), str(bench.model),
        "--levels", "1,2,3", "--data", str(bench.data), "--out", str(tmp_path / "store"), "--cache-slots", "2",
        "--io", "buffered", *(x for k, v in SIZES.items() for x in (f"--{k.replace('_', '-')}", str(v))),
    ]  # fmt: skip
    codes = {}
    for name, environment in (("sound", {}), ("stale", {"LD_PRELOAD": str(shim)})):
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
        assert done.stdout, done.stderr
        document = json.loads(done.stdout.splitlines()[-1])
        codes[name] = done.returncode, [v["verdict"] for v in document["levels"]]
    assert codes["sound"] == (0, [LOSSLESS] * 3)
    assert codes["stale"][0] == 1
    assert codes["stale"][1][0] == NOT_LOSSLESS
