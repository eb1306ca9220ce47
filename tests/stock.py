"""Plain llama.cpp through its bindings: does it load a file, and what does it route and compute?"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import workbench  # noqa: F401  (makes llama_cpp use our libraries)

# isort: split
import llama_cpp

_TOPK = re.compile(r"ffn_moe_topk-(\d+)")


class GgmlTensor(ctypes.Structure):
    """`struct ggml_tensor`, up to the name."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


@dataclass(frozen=True)
class Trace:
    """A greedy run, one token per call: tokens and logits by position, routed experts by layer (tokens x k)."""

    tokens: list[int]
    logits: np.ndarray
    routed: dict[int, np.ndarray]


@contextlib.contextmanager
def quiet() -> Iterator[list[str]]:
    """Keep llama.cpp's log from stderr and yield its lines."""
    lines: list[str] = []

    @llama_cpp.llama_log_callback
    def note(_level: int, text: bytes, _: int) -> None:
        lines.append(text.decode(errors="replace"))

    llama_cpp.llama_log_set(note, None)
    try:
        yield lines
    finally:
        llama_cpp.llama_log_set(_to_nowhere, None)


@llama_cpp.llama_log_callback
def _to_nowhere(_level: int, _text: bytes, _: int) -> None:
    pass


def load(path: Path) -> int | None:
    """A model on the CPU, or None when llama.cpp refuses the file."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = False  # where a CPU has AMX, weights would be repacked for other kernels
    with quiet():
        return llama_cpp.llama_model_load_from_file(str(path).encode(), params)


def loads(path: Path) -> bool:
    """Whether llama.cpp loads the file."""
    model = load(path)
    if model:
        llama_cpp.llama_model_free(model)
    return bool(model)


def decode(path: Path, *, n_tokens: int = 8, first: int = 5) -> Trace:
    """Decode greedily from one token; ValueError when the file does not load or a call fails."""
    routed: dict[int, list[list[int]]] = {}

    @llama_cpp.llama_cpp.ggml_backend_sched_eval_callback
    def note(address: int, ask: bool, _: int) -> bool:
        tensor = GgmlTensor.from_address(address)
        match = _TOPK.fullmatch(tensor.name.decode())
        if match and not ask:
            ids = (ctypes.c_int32 * tensor.ne[0]).from_address(tensor.data)
            routed.setdefault(int(match[1]), []).append(list(ids))
        return bool(match) or not ask

    model = load(path)
    if not model:
        raise ValueError(f"{path}: llama.cpp does not load it")
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch, params.cb_eval = 128, 1, 1, note
    with quiet():
        context = llama_cpp.llama_init_from_model(model, params)
        n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        tokens, rows = [first], []
        for _ in range(n_tokens):
            batch = llama_cpp.llama_batch_get_one((ctypes.c_int32 * 1)(tokens[-1]), 1)
            if llama_cpp.llama_decode(context, batch):
                raise ValueError(f"{path}: llama_decode failed")
            rows.append(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (n_vocab,)).copy())
            tokens.append(int(rows[-1].argmax()))
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)
    return Trace(tokens, np.stack(rows), {layer: np.array(ids) for layer, ids in sorted(routed.items())})
