"""Compute an importance matrix over a text: libles runs the model, resident or streamed, and sums what it reads."""

from __future__ import annotations

import ctypes
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from workbench.config import RunConfig
from workbench.errors import ModelFileError, WorkbenchError
from workbench.quantize.imatrix import Imatrix, load_imatrix
from workbench.quantize.library import SumsEntry, library
from workbench.runner import cache_folder, model_sha256
from workbench.session import Session
from workbench.storage.gguf_file import open_gguf

CHUNK_TOKENS = 512
_FEWEST_TOKENS = 16
_SCHEMA = 1
_RESIDENT_SHARE = 0.5
BUNDLED_TEXT = Path(__file__).parent / "texts" / "calibration.txt"


def calibrate(
    model: Path | str,
    text: Path | str = BUNDLED_TEXT,
    *,
    experts: str = "auto",
    chunk_tokens: int = CHUNK_TOKENS,
    progress: bool = True,
    cache: bool = True,
) -> Imatrix:
    """The importance matrix of a model over a text, from the user's cache folder if it was computed before.

    Parameters
    ----------
    text
        A UTF-8 text file. It is cut into chunks, each read from an empty context; what is left over is not used.
    experts
        `resident`, `flash`, or `auto`: resident if the model fits into half of the memory that is free.
    chunk_tokens
        Tokens per chunk, at most the model's context.
    cache
        Look into the cache folder first, and keep the result there under a hash of model and text.

    Raises
    ------
    ModelFileError
        When the text cannot be read or is too short, or the model cannot be run.
    """
    model, text = Path(model), Path(text)
    try:
        raw = text.read_bytes()
        words = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{text}: {getattr(error, 'strerror', None) or error}") from error
    identity = [str(_SCHEMA), model_sha256(model), hashlib.sha256(raw).hexdigest(), str(chunk_tokens)]
    kept = cache_folder() / "imatrix" / f"{hashlib.sha256('/'.join(identity).encode()).hexdigest()[:32]}.gguf"
    if cache and kept.is_file():
        try:
            return load_imatrix(kept)
        except ModelFileError:
            kept.unlink(missing_ok=True)
    found = _collect(model, words, text.name, _where(model, experts), chunk_tokens, progress)
    if not cache:
        return found
    kept.parent.mkdir(parents=True, exist_ok=True)
    found.save(kept)
    return replace(found, path=kept)


def _where(model: Path, experts: str) -> str:
    if experts != "auto":
        return experts
    import psutil

    file = open_gguf(model)
    fits = not file.packed and file.size_bytes < _RESIDENT_SHARE * psutil.virtual_memory().available
    return "resident" if fits else "flash"


def _collect(model: Path, words: str, name: str, experts: str, chunk_tokens: int, progress: bool) -> Imatrix:
    import llama_cpp

    config = RunConfig(
        experts=experts,
        threads=os.cpu_count() or 1,
        n_ctx=chunk_tokens,
        n_batch=chunk_tokens,
        n_ubatch=chunk_tokens,
        telemetry="off",
        logits_hash=False,
    )
    with Session(model, config) as session:
        trained = llama_cpp.llama_model_n_ctx_train(session._llama_model)
        tokens = session.tokenize(words, special=False)
        n = min(chunk_tokens, trained, len(tokens))
        if n < _FEWEST_TOKENS:
            raise ModelFileError(f"{name}: only {len(tokens)} tokens: a calibration text needs thousands")
        first = session.tokenize("")[:1]  # the token every context begins with, if the model has one
        lib, handle = library(), session._open
        chunks = [tokens[at : at + n] for at in range(0, len(tokens) - n + 1, n)]
        for chunk in tqdm(chunks, unit="chunk", desc="importance matrix", disable=not progress):
            chunk = first + chunk[len(first) :]
            if lib.les_imatrix_pass(handle, (ctypes.c_int32 * n)(*chunk), n) != 0:
                raise session._error()
        sums, counts = _read(handle)
    if not sums:
        raise WorkbenchError(f"{model}: nothing of it multiplies matrices that could be quantized")
    return Imatrix(sums=sums, counts=counts, datasets=(name,), chunk_count=len(chunks), chunk_size=n)


def _read(handle: ctypes.c_void_p) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, np.ndarray] = {}
    entry = SumsEntry()
    while library().les_imatrix_entry(handle, len(sums), ctypes.byref(entry)) == 0:
        name = entry.name.decode()
        counts[name] = np.ctypeslib.as_array(entry.counts, (entry.n_count,)).copy()
        values = np.ctypeslib.as_array(entry.sums, (entry.n_matrix * entry.width,))
        sums[name] = values.astype(np.float32).reshape(entry.n_count, -1)
    return sums, counts
