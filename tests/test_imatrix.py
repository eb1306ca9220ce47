"""Importance matrices: equal to the sums taken independently and to upstream's own tool, resident and streamed."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from stock import GgmlTensor, load, quiet

import workbench  # noqa: F401  (makes llama_cpp use our libraries)

# isort: split
import llama_cpp

from workbench.errors import ModelFileError
from workbench.quantize import calibrate as module
from workbench.quantize.calibrate import calibrate
from workbench.quantize.imatrix import Coverage, Imatrix, load_imatrix
from workbench.session import Session

pytestmark = pytest.mark.native
SOURCE = Path(__file__).parent.parent / "workbench" / "native"
CHUNK = 48
WORDS = "The fox went to the river. It was cold, and the hen said: 17 apples! Why not? "
ARCHITECTURES = ("qwen3moe", "gpt-oss", "qwen35moe", "deepseek2", "llama")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "words.txt").write_text(WORDS * 4)
    return tmp_path / "words.txt"


def collect(model: Path, text: Path, experts: str, **how) -> Imatrix:
    return calibrate(model, text, experts=experts, chunk_tokens=CHUNK, progress=False, cache=False, **how)


def array(tensor: GgmlTensor, dtype: type = np.float32) -> np.ndarray:
    """A tensor in memory as numpy sees it, [ne3, ne2, ne1, ne0]."""
    raw = ctypes.c_char * (sum((n - 1) * s for n, s in zip(tensor.ne, tensor.nb, strict=True)) + tensor.nb[0])
    shape, strides = tuple(tensor.ne)[::-1], tuple(tensor.nb)[::-1]
    return np.ndarray(shape, dtype, raw.from_address(tensor.data), strides=strides)


def independently(model: Path, chunks: list[list[int]]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Sums of squares and counts by numpy, from what stock llama.cpp's matrices are given."""
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, np.ndarray] = {}

    def sources(tensor: GgmlTensor) -> tuple[GgmlTensor, GgmlTensor]:
        weight, data = (GgmlTensor.from_address(tensor.src[i]) for i in (0, 1))
        return weight, data

    @llama_cpp.llama_cpp.ggml_backend_sched_eval_callback
    def note(address: int, ask: bool, _: int) -> bool:
        tensor = GgmlTensor.from_address(address)
        if not tensor.src[0] or not tensor.src[1]:
            return not ask
        weight, data = sources(tensor)
        name = weight.name.decode()
        if not re.match(r"blk\..*\.weight$", name) or data.type != 0:
            return not ask
        routed = tensor.op == MUL_MAT_ID
        if not routed and (tensor.op != MUL_MAT or data.ne[1] < 16):
            return not ask
        if ask:
            return True
        squares = array(data).astype(np.float64) ** 2
        if routed:
            ids = array(GgmlTensor.from_address(tensor.src[2]), np.int32)[0, 0]
            rows = np.broadcast_to(squares[0], (ids.shape[0], ids.shape[1], squares.shape[-1]))
            n = weight.ne[2]
            found = np.stack([rows[ids == expert].sum(axis=0) for expert in range(n)])
            count = np.bincount(ids.ravel(), minlength=n)
        else:
            n = weight.ne[2]
            by_matrix = squares[0].reshape(-1, n, *squares.shape[2:]).sum(axis=(0, 2))
            found, count = by_matrix.reshape(1, -1), np.array([squares[0].shape[0] * squares[0].shape[1] // n])
        sums[name] = sums.get(name, 0) + found
        counts[name] = counts.get(name, 0) + count
        return True

    handle = load(model)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = CHUNK
    params.n_threads, params.n_threads_batch, params.cb_eval = 2, 2, note
    with quiet():
        for chunk in chunks:
            context = llama_cpp.llama_init_from_model(handle, params)
            batch = llama_cpp.llama_batch_init(len(chunk), 0, 1)
            batch.n_tokens = len(chunk)
            for i, token in enumerate(chunk):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
                batch.seq_id[i][0] = 0
            assert llama_cpp.llama_decode(context, batch) == 0
            llama_cpp.llama_batch_free(batch)
            llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(handle)
    return sums, counts


def op(name: str) -> int:
    lib = llama_cpp.llama_cpp._lib
    lib.ggml_op_name.restype, lib.ggml_op_name.argtypes = ctypes.c_char_p, [ctypes.c_int]
    return next(i for i in range(200) if lib.ggml_op_name(i) == name.encode())


MUL_MAT, MUL_MAT_ID = op("MUL_MAT"), op("MUL_MAT_ID")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_equals_sums_taken_independently(tiny_file: Callable[..., Path], text: Path, arch: str) -> None:
    model = tiny_file(arch, dtype="f16")
    with Session(model, experts="resident") as session:
        tokens = session.tokenize(text.read_text(), special=False)
    chunks = [tokens[at : at + CHUNK] for at in range(0, len(tokens) - CHUNK + 1, CHUNK)]
    sums, counts = independently(model, chunks)
    found = collect(model, text, "resident")
    assert set(found.sums) == set(sums)
    assert any("_exps" in name for name in sums)
    for name in sums:
        assert found.counts[name].tolist() == counts[name].tolist(), name
        np.testing.assert_allclose(found.sums[name], sums[name], rtol=1e-6, err_msg=name)
    assert (found.chunk_count, found.chunk_size, found.datasets) == (len(chunks), CHUNK, ("words.txt",))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_streamed_equals_resident(tiny_file: Callable[..., Path], text: Path, arch: str) -> None:
    model = tiny_file(arch, dtype="f16")
    resident, streamed = (collect(model, text, experts) for experts in ("resident", "flash"))
    assert set(streamed.sums) == set(resident.sums)
    for name in resident.sums:
        assert streamed.counts[name].tolist() == resident.counts[name].tolist(), name
        np.testing.assert_allclose(streamed.sums[name], resident.sums[name], rtol=1e-6, err_msg=name)


def test_a_packed_file_gives_the_same(packed_file: Callable[..., Path], tiny_file: Callable[..., Path], text: Path):
    native, packed = (collect(make("qwen3moe", dtype="f16"), text, "flash") for make in (tiny_file, packed_file))
    assert all((native.sums[name] == packed.sums[name]).all() for name in native.sums)


@pytest.fixture(scope="module")
def upstream_tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Upstream's tools/imatrix of the pinned source, built with upstream's common (about two minutes)."""
    build, cmake = tmp_path_factory.mktemp("upstream"), shutil.which("cmake")
    assert cmake, "cmake is part of the development dependencies"
    options = ["-G", "Ninja", "-DLES_TESTS=ON", f"-DPython3_EXECUTABLE={sys.executable}"]
    for language, name in (("C", "CC"), ("CXX", "CXX")):  # those the package was built with: the same cached llama.cpp
        compiler = shutil.which((os.environ.get(name) or sysconfig.get_config_var(name) or "").split(" ")[0])
        options += [f"-DCMAKE_{language}_COMPILER={compiler}"] if compiler else []
    for command in (
        [cmake, "-S", str(SOURCE), "-B", str(build), *options],
        [cmake, "--build", str(build), "--target", "upstream-imatrix", "-j", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if "tools/imatrix/imatrix.cpp" in done.stderr and done.returncode:
            pytest.skip("this cached source of llama.cpp was unpacked without the imatrix tool")
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return build / "upstream-imatrix"


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_agrees_with_upstream_s_tool(
    upstream_tool: Path, tiny_file: Callable[..., Path], text: Path, tmp_path: Path, arch: str
) -> None:
    """Counts equal; sums to rounding, since upstream adds in float32 and we in float64."""
    model, out = tiny_file(arch, dtype="f16"), tmp_path / "upstream.gguf"
    command = [str(upstream_tool), str(model), str(text), str(out), str(CHUNK), "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs, ours = load_imatrix(out), collect(model, text, "resident")
    assert set(ours.sums) == set(theirs.sums)
    for name in ours.sums:
        assert ours.counts[name].tolist() == theirs.counts[name].tolist(), name
        np.testing.assert_allclose(ours.sums[name], theirs.sums[name], rtol=1e-5, err_msg=name)
    assert (ours.chunk_count, ours.chunk_size) == (theirs.chunk_count, theirs.chunk_size)


class TestFile:
    def test_round_trip(self, tiny_file: Callable[..., Path], text: Path, tmp_path: Path) -> None:
        found = collect(tiny_file("qwen3moe", dtype="f16"), text, "resident")
        found.save(tmp_path / "m.gguf")
        again = load_imatrix(tmp_path / "m.gguf")
        assert set(again.sums) == set(found.sums)
        for name in found.sums:
            assert (again.sums[name] == found.sums[name]).all()
            assert (again.counts[name] == found.counts[name]).all()
        assert (again.datasets, again.chunk_count) == (found.datasets, found.chunk_count)

    def test_what_is_not_one(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        with pytest.raises(ModelFileError, match="not an importance matrix"):
            load_imatrix(tiny_file("qwen3moe"))
        (tmp_path / "old.dat").write_bytes(b"\x03\0\0\0")
        with pytest.raises(ModelFileError, match="not a GGUF"):
            load_imatrix(tmp_path / "old.dat")
        bad = Imatrix(sums={"t": np.full((1, 4), np.nan, np.float32)}, counts={"t": np.array([1])})
        bad.save(tmp_path / "nan.gguf")
        with pytest.raises(ModelFileError, match="holds NaN"):
            load_imatrix(tmp_path / "nan.gguf")


class TestCache:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
        return tmp_path / "cache" / "imatrix"

    def test_kept_by_model_and_text(
        self, tiny_file: Callable[..., Path], text: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = tiny_file("qwen3moe", dtype="f16")
        first = calibrate(model, text, chunk_tokens=CHUNK, progress=False)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_collect", lambda *_: pytest.fail("computed again"))
            again = calibrate(model, text, chunk_tokens=CHUNK, progress=False)
        assert all((first.sums[name] == again.sums[name]).all() for name in first.sums)
        text.write_text(WORDS * 5)
        calibrate(model, text, chunk_tokens=CHUNK, progress=False)
        calibrate(tiny_file("qwen3moe", dtype="f16", seed=1), text, chunk_tokens=CHUNK, progress=False)
        assert len(list(folder.iterdir())) == 3

    def test_damaged_is_computed_again(self, tiny_file: Callable[..., Path], text: Path, folder: Path) -> None:
        model = tiny_file("qwen3moe", dtype="f16")
        kept = calibrate(model, text, chunk_tokens=CHUNK, progress=False).path
        assert kept is not None
        kept.write_bytes(kept.read_bytes()[:100])
        calibrate(model, text, chunk_tokens=CHUNK, progress=False)
        load_imatrix(kept)

    def test_interrupted_keeps_nothing(
        self, tiny_file: Callable[..., Path], text: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(items, **_):
            yield next(iter(items))
            raise KeyboardInterrupt

        monkeypatch.setattr(module, "tqdm", interrupt)
        with pytest.raises(KeyboardInterrupt):
            calibrate(tiny_file("qwen3moe", dtype="f16"), text, chunk_tokens=CHUNK)
        assert not folder.exists()


class TestCoverage:
    def test_experts_the_text_never_reached_are_named(self) -> None:
        name = "blk.{}.ffn_down_exps.weight".format
        counts = {
            name(0): np.array([0, 0, 0, 900, 0, 900]),
            name(1): np.full(6, 900),
            "blk.0.attn_q.weight": np.array([5]),
        }
        sums = {key: np.ones((len(value), 4), np.float32) for key, value in counts.items()}
        coverage = Imatrix(sums=sums, counts=counts).coverage()
        assert coverage == Coverage(n_expert=12, never={0: [0, 1, 2, 4]}, n_thin=4, least=0, median=900)
        assert "4 experts (blk.0: 0-2, 4)" in coverage.lines()[1]
        assert "low coverage" in coverage.lines()[-1]

    def test_good_coverage_is_one_line(self) -> None:
        coverage = Coverage(n_expert=12, never={}, n_thin=0, least=100, median=900)
        assert len(coverage.lines()) == 1
        assert not coverage.low

    def test_dense_matrices_have_none(self) -> None:
        assert Imatrix(sums={"a": np.ones((1, 2))}, counts={"a": np.array([1])}).coverage() is None


def test_unusable_texts(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    model = tiny_file("qwen3moe", dtype="f16")
    with pytest.raises(ModelFileError, match=r"none\.txt: No such file"):
        calibrate(model, tmp_path / "none.txt", progress=False)
    (tmp_path / "short.txt").write_text("Hm.")
    with pytest.raises(ModelFileError, match=r"short\.txt: only \d+ tokens"):
        calibrate(model, tmp_path / "short.txt", progress=False, cache=False)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelFileError, match=r"bytes\.txt: .*decode"):
        calibrate(model, tmp_path / "bytes.txt", progress=False)
