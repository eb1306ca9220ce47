"""Quantization: the bytes of llama.cpp's own quantizer, packed in one pass, by recipes that say what is wrong."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from stock import decode, quiet

import workbench  # noqa: F401  (makes llama_cpp use our libraries)

# isort: split
import llama_cpp

from workbench.cli import cli
from workbench.errors import ModelFileError, WorkbenchError
from workbench.quantize import article
from workbench.quantize.imatrix import Imatrix
from workbench.quantize.plan import make_plan
from workbench.quantize.quantize import quantize
from workbench.quantize.recipes import Recipe, RecipeError, load_recipe, shipped
from workbench.storage.atomic import DiskSpaceError, partial_path
from workbench.storage.gguf_file import open_gguf
from workbench.storage.pack import pack
from workbench.storage.unpack import unpack

pytestmark = pytest.mark.native
QUIET = {"progress": False}


def some_imatrix(model: Path, *, without: tuple[str, ...] = (), never: int = 2) -> Imatrix:
    """Random importance for a model's blocks; each layer's first `never` experts were never activated."""
    rng = np.random.default_rng(0)
    sums, counts = {}, {}
    for _, tensor in open_gguf(model).tensors():
        if len(tensor.shape) < 2 or not tensor.name.startswith("blk.") or tensor.name in without:
            continue
        n = tensor.shape[2] if len(tensor.shape) == 3 else 1
        count = rng.integers(100, 200, n)
        if n > 1:
            count[:never] = 0
        counts[tensor.name] = count
        sums[tensor.name] = (rng.random((n, tensor.shape[0]), np.float32) + np.float32(0.01)) * count[:, None].astype(
            "f4"
        )
    return Imatrix(
        sums=sums, counts=counts, datasets=("a.txt",), chunk_count=7, chunk_size=64, path=Path("some/matrix.gguf")
    )


def upstream(source: Path, target: Path, recipe: Recipe, imatrix: Imatrix | None = None) -> Path:
    """The same by one call of llama.cpp's quantizer."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = recipe.file_type, True, 2
    kind = llama_cpp.llama_model_tensor_override
    rules = [kind(pattern=pattern.encode(), type=type_id) for pattern, type_id in recipe.rules]
    params.tt_overrides = (kind * (len(rules) + 1))(*rules, kind(pattern=None, type=0))
    keep = []
    if imatrix is not None:
        entry = llama_cpp.llama_model_imatrix_data
        entries = []
        for name in imatrix.sums:
            keep.append(np.ascontiguousarray(imatrix.importance(name)))
            pointer = keep[-1].ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            entries.append(entry(name=name.encode(), data=pointer, size=keep[-1].size))
        params.imatrix = (entry * (len(entries) + 1))(*entries, entry(name=None))
        keys: list[tuple[str, int | bytes]] = [("file", b"matrix.gguf"), ("dataset", b"a.txt"),
                ("entries_count", len(entries)), ("chunks_count", imatrix.chunk_count)]  # fmt: skip
        params.kv_overrides = (llama_cpp.llama_model_kv_override * (len(keys) + 1))()
        for i, (key, value) in enumerate(keys):
            slot = params.kv_overrides[i]
            slot.key = f"quantize.imatrix.{key}".encode()
            if isinstance(value, int):
                slot.tag, slot.value.val_i64 = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT, value
            else:
                slot.tag, slot.value.val_str = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR, value
    with quiet() as log:
        failed = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
    assert not failed, "".join(log[-3:])
    return target


FALLBACK = Recipe(name="mine", base="q4_k_m", types={r"ffn_(gate|up|down)_exps\.weight": "q3_k", "attn_v": "q6_k"})
CASES = [
    ("qwen3moe", {"dtype": "f16"}, "q8_0"),
    ("qwen3moe", {"dtype": "f32"}, "q4_k_m"),
    ("qwen3moe", {"dtype": "f16"}, "les-mixed"),
    ("qwen35moe", {"dtype": "f16"}, "les-mixed"),
    ("deepseek2", {"dtype": "f16"}, "q4_k_m"),
    ("gpt-oss", {"dtype": "f32", "n_embd": 288, "n_ff": 288}, "les-mixed"),
    ("olmoe", {"dtype": "q8_0"}, "les-mixed"),
]


class TestBytes:
    @pytest.mark.parametrize(("arch", "how", "name"), CASES, ids=lambda value: value if isinstance(value, str) else "")
    def test_equal_llama_cpp_s_own(
        self, tiny_file: Callable[..., Path], tmp_path: Path, arch: str, how: dict, name: str
    ) -> None:
        source, recipe = tiny_file(arch, **how), load_recipe(name)
        imatrix = some_imatrix(source) if recipe.imatrix else None
        quantize(source, recipe, tmp_path / "ours.gguf", imatrix=imatrix, threads=2, **QUIET)
        theirs = upstream(source, tmp_path / "theirs.gguf", recipe, imatrix)
        assert (tmp_path / "ours.gguf").read_bytes() == theirs.read_bytes()

    @pytest.mark.parametrize("base", ["q4_0", "iq4_xs", "iq3_xxs", "q5_k_m", "bf16"])
    def test_other_mixtures(self, tiny_file: Callable[..., Path], tmp_path: Path, base: str) -> None:
        """Some choices of type depend on there being an importance matrix."""
        source, recipe = tiny_file("qwen3moe", dtype="f16", n_layer=2), Recipe(name="x", base=base)
        imatrix = some_imatrix(source)
        quantize(source, recipe, tmp_path / "ours.gguf", imatrix=imatrix, **QUIET)
        theirs = upstream(source, tmp_path / "theirs.gguf", recipe, imatrix)
        assert (tmp_path / "ours.gguf").read_bytes() == theirs.read_bytes()

    def test_one_thread_or_several(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        source = tiny_file("qwen3moe", dtype="f16")
        for threads in (1, 3):
            quantize(source, FALLBACK, tmp_path / f"{threads}.gguf", threads=threads, **QUIET)
        assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "3.gguf").read_bytes()

    def test_the_file_runs(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        source = tiny_file("qwen3moe", dtype="f16")
        quantize(source, load_recipe("q8_0"), tmp_path / "q.gguf", **QUIET)
        logits = decode(tmp_path / "q.gguf").logits[0]
        assert np.corrcoef(logits, decode(source).logits[0])[0, 1] > 0.99


class TestPacked:
    @pytest.mark.parametrize("arch", ["qwen3moe", "gpt-oss"])
    def test_one_pass_equals_two(self, tiny_file: Callable[..., Path], tmp_path: Path, arch: str) -> None:
        source = tiny_file(arch, dtype="f16")
        recipe, imatrix = load_recipe("les-mixed"), some_imatrix(source)
        report = quantize(source, recipe, tmp_path / "x.packed.gguf", imatrix=imatrix, pack=True, **QUIET)
        assert [path.name for path in tmp_path.iterdir()] == ["x.packed.gguf"], "no second copy, nothing left over"
        quantize(source, recipe, tmp_path / "x.gguf", imatrix=imatrix, **QUIET)
        pack(tmp_path / "x.gguf", tmp_path / "two.gguf", progress=False)
        assert (tmp_path / "x.packed.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()
        (tmp_path / "back").mkdir()
        restored = unpack(tmp_path / "x.packed.gguf", tmp_path / "back", progress=False)
        assert [path.name for path in restored] == ["x.gguf"]
        assert restored[0].read_bytes() == (tmp_path / "x.gguf").read_bytes()
        assert report.packed

    def test_disk_is_checked_first(self, tiny_file: Callable[..., Path], tmp_path: Path, monkeypatch) -> None:
        import shutil

        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))  # type: ignore[attr-defined]
        for packed in (False, True):
            with pytest.raises(DiskSpaceError, match="GB needed"):
                quantize(tiny_file("qwen3moe"), load_recipe("q8_0"), tmp_path / "q.gguf", pack=packed, **QUIET)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("packed", [False, True])
    def test_interrupted_leaves_nothing(
        self, tiny_file: Callable[..., Path], tmp_path: Path, monkeypatch, packed: bool
    ) -> None:
        from workbench.quantize import quantize as module

        convert, done = module.convert_rows, []

        def interrupt(*args, **kwargs):
            if len(done) == 6:
                assert partial_path(tmp_path / "q.gguf").exists()
                raise KeyboardInterrupt
            done.append(1)
            return convert(*args, **kwargs)

        monkeypatch.setattr(module, "convert_rows", interrupt)
        with pytest.raises(KeyboardInterrupt):
            quantize(tiny_file("qwen3moe"), load_recipe("q8_0"), tmp_path / "q.gguf", pack=packed, **QUIET)
        assert not list(tmp_path.iterdir())


class TestNeverActivated:
    def test_uniform_weights_not_zeros(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        source, recipe = tiny_file("qwen3moe", dtype="f16", n_layer=2), load_recipe("les-mixed")
        matrix = some_imatrix(source, never=2)
        report = quantize(source, recipe, tmp_path / "with.gguf", imatrix=matrix, **QUIET)
        uniform = {name: np.ones_like(values) for name, values in matrix.sums.items()}
        ones = replace(matrix, sums=uniform, counts={n: np.ones_like(c) for n, c in matrix.counts.items()})
        quantize(source, recipe, tmp_path / "uniform.gguf", imatrix=ones, **QUIET)
        a, b = (self.experts(tmp_path / f"{name}.gguf") for name in ("with", "uniform"))
        for name, matrices in a.items():
            for expert in range(2):
                assert matrices[expert] == b[name][expert], "weighed uniformly"
                assert any(matrices[expert])
            assert matrices[2] != b[name][2], "the others are weighed by what they read"
        text = "\n".join(report.lines())
        assert "never activated, quantized with uniform weights: 4 experts (blk.0: 0-1; blk.1: 0-1)" in text
        assert "low coverage" in text

    @staticmethod
    def experts(path: Path) -> dict[str, list[bytes]]:
        model, found = open_gguf(path), {}
        raw = path.read_bytes()
        for shard, tensor in model.tensors():
            if "_exps.weight" in tensor.name:
                start, size = shard.header.data_start + tensor.offset, tensor.n_bytes // tensor.shape[-1]
                found[tensor.name] = [raw[start + e * size : start + (e + 1) * size] for e in range(tensor.shape[-1])]
        return found

    def test_dead_columns_keep_a_faint_weight(self) -> None:
        sums = np.array([[0, 4, 4], [0, 0, 0]], np.float32)
        matrix = Imatrix(sums={"t": sums}, counts={"t": np.array([2, 5])})
        values = matrix.importance("t")
        assert values is not None
        assert values[0, 1:].tolist() == [2, 2]
        assert 0 < values[0, 0] < 0.001
        assert values[1].tolist() == [1, 1, 1]
        assert matrix.importance("unknown") is None

    def test_tensors_the_matrix_does_not_know_are_named(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        source, name = tiny_file("qwen3moe", dtype="f16", n_layer=2), "blk.1.ffn_up_exps.weight"
        matrix = some_imatrix(source, without=(name,))
        report = quantize(source, load_recipe("les-mixed"), tmp_path / "q.gguf", imatrix=matrix, **QUIET)
        assert report.without_importance == (name,)
        assert f"weighed equally: {name}" in "\n".join(report.lines())


class TestReport:
    def test_figures(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        source = tiny_file("qwen3moe", dtype="f16")
        report = quantize(source, load_recipe("les-mixed"), tmp_path / "q.gguf", **QUIET)
        assert report.file_bytes == (tmp_path / "q.gguf").stat().st_size
        assert report.expert_bits_per_weight == pytest.approx(3.4375)
        assert report.expert_bytes == 3 * 256 * 256 * 110 // 256
        assert report.source_expert_bytes == 3 * 256 * 256 * 2
        assert report.expert_types == {"Q3_K": 15}
        assert set(report.types) == {"F32", "Q3_K", "Q4_K", "Q6_K"}
        assert report.expert_bits_per_weight < report.bits_per_weight < 8
        assert report.fallbacks == ()
        json.dumps(report.to_dict())

    def test_fallbacks_are_named(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        source = tiny_file("gpt-oss", dtype="f32", n_embd=288, n_ff=288)
        report = quantize(source, load_recipe("les-mixed"), tmp_path / "q.gguf", **QUIET)
        assert "blk.0.ffn_down_exps.weight: rows of 288 do not fit Q3_K, Q4_0 instead" in report.fallbacks
        assert report.expert_types == {"Q4_0": 15}
        assert f"fallbacks, {len(report.fallbacks)}: " in "\n".join(report.lines())

    def test_the_article_s_model(self) -> None:
        """19.7 → 14.44 GB, ~1.29 MB per expert: what llama.cpp's types give a model of that shape, in GiB and MiB."""
        (before, _), (after, expert_bytes) = (
            article.sizes(load_recipe("q4_k_m")),
            article.sizes(load_recipe("les-mixed")),
        )
        assert before / 2**30 == pytest.approx(19.7, abs=0.05)
        assert after / 2**30 == pytest.approx(14.44, abs=0.05)
        assert expert_bytes / 2**20 == pytest.approx(1.29, abs=0.005)
        assert "19.7 → 14.44 GB" in article.article_lines(load_recipe("les-mixed"))[0]


class TestRefused:
    def test_what_is_quantized_already(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        source, recipe = tiny_file("qwen3moe", dtype="q4_k"), load_recipe("les-mixed")
        with pytest.raises(ModelFileError, match="Q4_K already.*requantize"):
            quantize(source, recipe, tmp_path / "q.gguf", **QUIET)
        quantize(source, recipe, tmp_path / "q.gguf", allow_requantize=True, **QUIET)
        assert (tmp_path / "q.gguf").exists()

    def test_packed_and_damaged_sources(
        self, packed_file: Callable[..., Path], tiny_file: Callable[..., Path], tmp_path: Path
    ) -> None:
        with pytest.raises(ModelFileError, match="packed; quantize the original"):
            make_plan(packed_file("qwen3moe"), load_recipe("q8_0"))
        raw = bytearray(tiny_file("qwen3moe").read_bytes())
        raw[-4096:-4092] = np.float32(np.nan).tobytes()
        (tmp_path / "nan.gguf").write_bytes(raw)
        with pytest.raises(WorkbenchError, match=r"nan\.gguf: \S+ holds NaN"):
            quantize(tmp_path / "nan.gguf", load_recipe("q8_0"), tmp_path / "q.gguf", **QUIET)
        assert not (tmp_path / "q.gguf").exists()

    def test_targets(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        target = tmp_path / "q.gguf"
        target.write_bytes(b"mine")
        with pytest.raises(ModelFileError, match="exists already"):
            quantize(tiny_file("qwen3moe"), load_recipe("q8_0"), target, **QUIET)
        source = tiny_file("qwen3moe")
        with pytest.raises(ModelFileError, match="same file"):
            quantize(source, load_recipe("q8_0"), source, overwrite=True, **QUIET)

    def test_a_matrix_of_another_model(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        other = some_imatrix(tiny_file("qwen3moe", n_expert=8, dtype="f16"))
        with pytest.raises(ModelFileError, match="computed for another model"):
            quantize(tiny_file("qwen3moe"), load_recipe("les-mixed"), tmp_path / "q.gguf", imatrix=other, **QUIET)

    def test_an_architecture_llama_cpp_does_not_know(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        raw = tiny_file("qwen3moe").read_bytes().replace(b"qwen3moe", b"qwen0moe")
        (tmp_path / "x.gguf").write_bytes(raw)
        with pytest.raises(ModelFileError, match="refuses it: .*qwen0moe"):
            make_plan(tmp_path / "x.gguf", load_recipe("q8_0"))


class TestRecipes:
    @pytest.mark.parametrize("name", shipped())
    def test_shipped(self, name: str) -> None:
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe.note

    def test_one_s_own(self, tmp_path: Path, tiny_file: Callable[..., Path]) -> None:
        (tmp_path / "mine.yaml").write_text("base: q8_0\ntypes: {'ffn_up_exps': q4_k, 'nowhere': q5_k}\n")
        recipe = load_recipe(tmp_path / "mine.yaml")
        assert (recipe.name, recipe.imatrix) == ("mine", False)
        report = quantize(tiny_file("qwen3moe"), recipe, tmp_path / "q.gguf", **QUIET)
        assert report.expert_types == {"Q8_0": 10, "Q4_K": 5}
        assert "'nowhere' names no tensor" in "\n".join(report.lines())

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[]", "expected a mapping"),
            ("{}", "base: a mixture"),
            ("base: q4_k_x", "base: no mixture 'q4_k_x'.*q4_k_m"),
            ("base: 4", "base: expected str"),
            ("{base: q8_0, typs: {}}", "unknown key 'typs'"),
            ("{base: q8_0, types: {up: q9}}", "no ggml type 'q9'"),
            ("{base: q8_0, types: {'(': q8_0}}", "not a regular expression"),
            ("{base: q8_0, types: {up: 3}}", "expected pattern: type"),
            ("{base: f16, types: {up: q8_0}}", "ignores patterns when the base is f16"),
            ("{base: q8_0, imatrix: maybe}", "imatrix: expected bool"),
            ("base: [", r"bad\.yaml"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(RecipeError, match=message):
            load_recipe(tmp_path / "bad.yaml")

    def test_unknown(self) -> None:
        with pytest.raises(RecipeError, match="no such recipe; shipped are les-mixed"):
            load_recipe("q4")


class TestCommand:
    def test_quantize(self, tiny_file: Callable[..., Path], tmp_path: Path) -> None:
        target, report = tmp_path / "q.gguf", tmp_path / "report.json"
        arguments = [str(tiny_file("qwen3moe")), "q4_k_m", "--out", str(target), "--json", str(report), "--no-progress"]
        result = CliRunner().invoke(cli, ["quantize", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        for part in ("bits per weight", "Q4_K", "experts:", "19.7 → 14.44 GB"):
            assert part in result.output
        assert json.loads(report.read_text())["file_bytes"] == target.stat().st_size

    def test_usage(self, tiny_file: Callable[..., Path]) -> None:
        arguments = ["quantize", str(tiny_file("qwen3moe")), "q8_0", "--imatrix", "a", "--calibration", "b"]
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 2
        assert "pass one of them" in result.output
