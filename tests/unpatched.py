"""llama.cpp's CPU kernels without our patches, and logits of plain llama.cpp with any kernels."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
from compilers import compilers

NATIVE = Path(__file__).parent.parent / "workbench" / "native"


def build_script() -> ModuleType:
    """`workbench/native/build_llama.py`, which knows where the patched source is kept."""
    spec = importlib.util.spec_from_file_location("build_llama", NATIVE / "build_llama.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unpatched_libraries(folder: Path) -> bool:
    """Copy the installed libraries to a folder, ggml's CPU kernels as before our patches; False without the source.

    Built once per source and compiler (a minute) beside the builds of llama.cpp.
    """
    from workbench import native_paths  # not above: it chooses the libraries of the process

    script = build_script()
    root = script.cache_root()
    source = root / f"source-{script.source_key()}"
    if not source.exists():
        return False
    built_with = {"C": "cc", "CXX": "c++"} | compilers()
    key = hashlib.sha256(script.compiler_identity([built_with["CXX"]], False).encode()).hexdigest()[:8]
    kernels = root / f"unpatched-{script.source_key()}-{key}.so"
    if not kernels.exists():
        _build(source, kernels, built_with, script)
    shutil.copytree(native_paths.lib_dir(), folder)
    shutil.copy(kernels, next(folder.glob("libggml-cpu.*")))
    return True


def _build(source: Path, kernels: Path, built_with: dict[str, str], script: ModuleType) -> None:
    import patch_ng

    with tempfile.TemporaryDirectory(dir=kernels.parent) as scratch:
        tree = Path(scratch) / "source"
        shutil.copytree(source, tree)
        for file in reversed(script.PATCHES):
            assert patch_ng.fromfile(str(file)).revert(root=str(tree)), file
        flags = script.FLAGS | {f"CMAKE_{k}_COMPILER": v for k, v in built_with.items()} | {"GGML_NATIVE": "ON"}
        build = Path(scratch) / "build"
        options = ["-G", "Ninja", *(f"-D{k}={v}" for k, v in flags.items())]
        for command in (
            ["cmake", "-S", str(tree), "-B", str(build), *options],
            ["cmake", "--build", str(build), "--target", "ggml-cpu"],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        next((build / "bin").glob("libggml-cpu.*")).rename(kernels)


def logits(libraries: Path, model: Path, tokens: list[int], out: Path, **options: int) -> np.ndarray:
    """Logits [tokens, vocabulary] of one batch by plain llama.cpp, in a process that loads the given libraries.

    `n_seq` sequences side by side; `flash` 1 or 0.
    """
    environment = dict(os.environ, LLAMA_CPP_LIB_PATH=str(libraries))
    settings = [f"{k}={v}" for k, v in options.items()]
    command = [sys.executable, __file__, str(model), str(out), ",".join(map(str, tokens)), *settings]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: np.ndarray = np.load(out)
    return found


def _decode(model: str, out: str, tokens: list[int], n_seq: int = 1, flash: int = 1) -> None:
    import llama_cpp

    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = False
    loaded = llama_cpp.llama_model_load_from_file(model.encode(), params)
    context_params = llama_cpp.llama_context_default_params()
    n = len(tokens)
    context_params.n_ctx, context_params.n_batch, context_params.n_ubatch = 512, n, n
    context_params.n_seq_max, context_params.kv_unified = n_seq, True
    context_params.n_threads = context_params.n_threads_batch = 1
    context_params.flash_attn_type = flash
    context = llama_cpp.llama_init_from_model(loaded, context_params)
    batch = llama_cpp.llama_batch_init(n, 0, 1)
    batch.n_tokens = n
    for i, token in enumerate(tokens):
        batch.token[i], batch.n_seq_id[i], batch.logits[i] = token, 1, 1
        batch.pos[i], batch.seq_id[i][0] = i % (n // n_seq), min(i // (n // n_seq), n_seq - 1)
    if llama_cpp.llama_decode(context, batch):
        raise SystemExit("llama_decode failed")
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(loaded))
    np.save(out, np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (n, n_vocab)).copy())


if __name__ == "__main__":
    _decode(sys.argv[1], sys.argv[2], [int(t) for t in sys.argv[3].split(",")],
            **{k: int(v) for k, v in (x.split("=") for x in sys.argv[4:])})  # fmt: skip
