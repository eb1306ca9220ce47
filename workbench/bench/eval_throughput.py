"""Log-likelihood throughput beside lm-eval's `hf` backend on the same CPU and weights, and against batch size in flash.

Tokens are those of the requests, context and continuation, before anything is shared: what a backend without sharing
would have to compute. `hf` holds the same weights in float32 and needs the dependency group `evals-test`. The weights
are the model's as LES-mixed, the files that are streamed; llama.cpp multiplies K-quants in tiles, Q8_0 experts by rows.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.ablation.stats import MedianBootstrap
from workbench.bench.common import n_threads, ratio, report
from workbench.config import RunConfig
from workbench.demo import demo_model
from workbench.errors import WorkbenchError
from workbench.evals.prefixes import PrefixTree
from workbench.session import Session

Request = tuple[None, list[int], list[int]]
BATCHES = (32, 128, 512, 1024)
HF_BATCH = 16
OURS, HF, AS_GIVEN = "les-workbench, resident", "lm-eval hf, float32", "les-workbench, resident, Q8_0"
FLASH = "flash, nothing cached"
BATCH_OF = {OURS: "1024 tokens", HF: f"{HF_BATCH} sequences", AS_GIVEN: "1024 tokens"}


def run(*, repeats: int = 3, tokens: int = 12000) -> None:
    """Score the same requests with both, interleaved; then the curve over batch sizes."""
    with tempfile.TemporaryDirectory() as scratch:
        _measure(demo_model(), _mixed(demo_model(), Path(scratch)), repeats, tokens)


def _mixed(model: Path, folder: Path) -> Path:
    from workbench.quantize.calibrate import BUNDLED_TEXT, calibrate
    from workbench.quantize.quantize import quantize
    from workbench.quantize.recipes import load_recipe

    target = folder / "les-mixed.gguf"
    quantize(model, load_recipe("les-mixed"), target, imatrix=calibrate(model, BUNDLED_TEXT), progress=False)
    return target


def _measure(given: Path, model: Path, repeats: int, tokens: int) -> None:
    resident = RunConfig(experts="resident", threads=n_threads())
    requests = _requests(model, resident, tokens)
    n_tokens = sum(len(context) + len(continuation) for _, context, continuation in requests)
    notes = [
        f"{len(requests)} requests of the local suite, {n_tokens:,} tokens; embedded model as LES-mixed, "
        f"{n_threads()} threads"
    ]
    texts = sorted({(*context, *continuation[:-1]) for _, context, continuation in requests})
    notes.append(
        f"les-workbench decodes {len(PrefixTree.of(texts).tokens):,} of them: what texts begin with in common once; "
        "hf decodes all, and pads"
    )
    cases: dict[str, Callable[[], float]] = {OURS: lambda: _ours(model, resident, requests)[0]}
    try:
        theirs = _hf(model, requests)
        cases[HF] = theirs
    except WorkbenchError as error:
        notes.append(f"hf not measured: {error}")
    cases[AS_GIVEN] = lambda: _ours(given, resident, requests)[0]
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for name in cases:
        cases[name]()  # warm-up
    for repeat in range(repeats):
        for name in list(cases)[:: 1 if repeat % 2 == 0 else -1]:
            samples[name].append(n_tokens / cases[name]())
    rows = [_row(name, BATCH_OF[name], None, s, None) for name, s in samples.items()]
    speeds: dict[int, list[float]] = {n_batch: [] for n_batch in BATCHES}
    read_bytes: dict[int, float] = {}
    for repeat in range(repeats):
        for n_batch in BATCHES[:: 1 if repeat % 2 == 0 else -1]:
            config = RunConfig(experts="flash", lookahead="router", ready_first=True)
            seconds, read_bytes[n_batch] = _ours(model, config, requests, n_batch)
            speeds[n_batch].append(n_tokens / seconds)
    for n_batch in BATCHES:
        rows.append(_row(FLASH, f"{n_batch} tokens", n_batch, speeds[n_batch], read_bytes[n_batch] / 1e6 / n_tokens))
    found = ratio(samples[OURS], samples[HF]) if HF in samples else None
    report("eval_throughput", found, 3.0, rows, notes, samples=samples)


def _row(case: str, batch: str, n_batch: int | None, speeds: list[float], mb_token: float | None) -> dict[str, Any]:
    """A row of the table, and of the record that the figure is drawn from."""
    found = MedianBootstrap()(speeds)
    row: dict[str, Any] = {"case": case, "batch": batch, "n_batch": n_batch}
    return row | {"tok/s": found.value, "low": found.low, "high": found.high, "MB read/token": mb_token}


def _requests(model: Path, config: RunConfig, tokens: int) -> list[Request]:
    """Items of the local choice tasks in turn, as token ids, about `tokens` tokens in all."""
    from workbench.evals.adapter import SessionLM
    from workbench.evals.tasks import CHOICE, local_tasks

    tasks = [task for task in local_tasks() if task.kind == CHOICE]
    found: list[Request] = []
    total = 0
    with _open(model, config) as session:
        lm = SessionLM(session, progress=False)
        for number in range(max(len(task.items) for task in tasks)):
            for item in (task.items[number] for task in tasks if number < len(task.items)):
                for choice in item["choices"]:
                    context, continuation = lm._encode_pair(item["prompt"], choice)
                    found.append((None, context, continuation))
                    total += len(context) + len(continuation)
                if total >= tokens:
                    return found
    return found


def _open(model: Path, config: RunConfig, n_batch: int = BATCHES[-1]) -> Session:
    from workbench.evals.harness import eval_config

    config = replace(eval_config(config), n_batch=n_batch, n_ubatch=n_batch, n_seq_max=min(64, n_batch))
    return Session(model, replace(config, telemetry="token"))


def _ours(model: Path, config: RunConfig, requests: list[Request], n_batch: int = BATCHES[-1]) -> tuple[float, float]:
    """Seconds of scoring (loading not counted), and bytes read from flash meanwhile."""
    from workbench.evals.adapter import SessionLM

    with _open(model, config, n_batch) as session:
        lm = SessionLM(session, progress=False)
        before = session.bytes_read
        start = time.perf_counter()
        lm._loglikelihood_tokens(requests, disable_tqdm=True)
        return time.perf_counter() - start, session.bytes_read - before


def _hf(model: Path, requests: list[Request]) -> Callable[[], float]:
    """A function that scores with lm-eval's hf backend and returns the seconds."""
    from workbench.bench.hf_twin import twin

    weights = twin(model)
    import torch
    from lm_eval.models.huggingface import HFLM
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    torch.set_num_threads(n_threads())
    words = Tokenizer(models.WordLevel({"<|end|>": 0}, unk_token="<|end|>"))  # requests are token ids already
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|end|>")
    lm = HFLM(pretrained=weights, tokenizer=tokenizer, batch_size=HF_BATCH, device="cpu", max_length=512)
    texts = [((str(i), str(i)), context, continuation) for i, (_, context, continuation) in enumerate(requests)]

    def seconds() -> float:
        start = time.perf_counter()
        lm._loglikelihood_tokens(texts, disable_tqdm=True)
        return time.perf_counter() - start

    return seconds
