"""Model files: headers that lie, packing and unpacking, disks that are full, processes that are killed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner
from gguf_files import Q8_0, expert_bytes, odd_tensors, split, write_gguf
from stock import loads

from workbench.cli import cli
from workbench.errors import ModelFileError, WorkbenchError
from workbench.storage import pack as pack_module
from workbench.storage.atomic import DiskSpaceError, partial_path
from workbench.storage.gguf_file import GgufFile, open_gguf
from workbench.storage.gguf_header import (
    STRING,
    UINT8,
    UINT32,
    encode_array,
    encode_field,
    encode_header,
    lay_out,
)
from workbench.storage.inspect import inspect, summarize
from workbench.storage.layout import expert_layout
from workbench.storage.pack import pack
from workbench.storage.synth import SynthShape, synthesize
from workbench.storage.unpack import unpack


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "odd.gguf", odd_tensors())


class TestRoundTrip:
    def check(self, source: Path, tmp_path: Path) -> Path:
        packed = pack(source, tmp_path / "packed.gguf", progress=False)
        (restored,) = unpack(packed, tmp_path / "restored.gguf", progress=False)
        assert restored.read_bytes() == source.read_bytes()
        assert expert_bytes(expert_layout(packed)) == expert_bytes(expert_layout(source))
        return packed

    def test_odd_sizes(self, odd: Path, tmp_path: Path) -> None:
        self.check(odd, tmp_path)

    def test_experts_larger_than_a_chunk(self, odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("workbench.storage.transfer.CHUNK_BYTES", 100)
        self.check(odd, tmp_path)

    def test_no_padding_at_the_end(self, odd: Path, tmp_path: Path) -> None:
        os.truncate(odd, open_gguf(odd).shards[0].header.data_start + open_gguf(odd).shards[0].header.data_bytes)
        self.check(odd, tmp_path)

    @pytest.mark.parametrize(
        ("arch", "dtype", "fused"),
        [
            ("qwen3moe", "q4_k", None),
            ("gpt-oss", "mxfp4", None),
            ("qwen35moe", "q8_0", True),
            ("qwen35moe", "f16", False),
        ],
    )
    def test_tiny_models(self, arch: str, dtype: str, fused: bool | None, tmp_path: Path) -> None:
        source = tiny.tiny_model(tmp_path / "tiny.gguf", arch, dtype=dtype, fused=fused)
        packed = self.check(source, tmp_path)
        assert loads(source)
        assert not loads(packed)

    def test_demo_model(self, demo_file: Path, tmp_path: Path) -> None:
        self.check(demo_file, tmp_path)

    @pytest.mark.parametrize("count", [2, 3])
    def test_shards(self, count: int, odd: Path, tmp_path: Path) -> None:
        shards = split(odd, tmp_path, count)
        packed = pack(shards[-1], tmp_path / "packed.gguf", progress=False)
        assert open_gguf(packed).get("split.count") is None
        assert expert_bytes(expert_layout(packed)) == expert_bytes(expert_layout(odd))
        (tmp_path / "out").mkdir()
        restored = unpack(packed, tmp_path / "out", progress=False)
        assert [p.name for p in restored] == [p.name for p in shards]
        assert [p.read_bytes() for p in restored] == [p.read_bytes() for p in shards]

    def test_shards_go_beside_a_file_target(self, odd: Path, tmp_path: Path) -> None:
        shards = split(odd, tmp_path, 2)
        packed = pack(shards[0], tmp_path / "packed.gguf", progress=False)
        (tmp_path / "out").mkdir()
        restored = unpack(packed, tmp_path / "out" / "any.gguf", progress=False)
        assert {p.parent for p in restored} == {tmp_path / "out"}

    def test_existing_folder_gets_the_original_name(self, odd: Path, tmp_path: Path) -> None:
        packed = pack(odd, tmp_path / "packed.gguf", progress=False)
        (tmp_path / "out").mkdir()
        assert unpack(packed, tmp_path / "out", progress=False) == [tmp_path / "out" / "odd.gguf"]


class TestPackedFile:
    def test_one_expert_is_one_run_of_bytes(self, odd: Path, tmp_path: Path) -> None:
        packed = expert_layout(pack(odd, tmp_path / "packed.gguf", progress=False))
        assert [[t.kind for t in layer.tensors] for layer in packed.layers] == [
            ["gate", "up", "down"],
            ["gate_up", "down"],
        ]
        for layer in packed.layers:
            at = layer.tensors[0].offset
            assert at % 4096 == 0
            for expert in range(layer.n_expert):
                for tensor in layer.tensors:
                    assert tensor.expert_offset(expert) == at
                    at += tensor.expert_bytes

    def test_keys(self, odd: Path, tmp_path: Path) -> None:
        packed = open_gguf(pack(odd, tmp_path / "packed.gguf", progress=False))
        assert packed.architecture == "les-qwen3moe"
        assert packed.get("general.alignment") == 4096
        assert (packed.get("les.layout"), packed.get("les.schema")) == ("contiguous", 1)
        assert packed.get_arch("expert_count") == 3
        (source,) = json.loads(packed.get("les.sources"))
        digest = hashlib.sha256(odd.read_bytes()).hexdigest()
        assert source == {"name": "odd.gguf", "size": odd.stat().st_size, "sha256": digest}

    def test_dense_tensors_keep_their_order_and_come_first(self, odd: Path, tmp_path: Path) -> None:
        names = [t.name for _, t in open_gguf(pack(odd, tmp_path / "packed.gguf", progress=False)).tensors()]
        dense = [name for name, _, _ in odd_tensors() if not name.endswith("_exps.weight")]
        assert names[: len(dense)] == dense
        assert all(name.endswith("_exps.weight") for name in names[len(dense) :])


class TestPackRefuses:
    def refuses(self, source: Path, target: Path, match: str) -> None:
        with pytest.raises(ModelFileError, match=match):
            pack(source, target, progress=False)
        assert not partial_path(target).exists()

    def test_packed_file(self, odd: Path, tmp_path: Path) -> None:
        self.refuses(pack(odd, tmp_path / "packed.gguf", progress=False), tmp_path / "twice.gguf", "packed already")

    def test_no_experts(self, tmp_path: Path) -> None:
        dense = write_gguf(tmp_path / "dense.gguf", [("token_embd.weight", (32, 5), Q8_0)], arch="llama")
        self.refuses(dense, tmp_path / "out.gguf", "no experts")

    def test_existing_target(self, odd: Path, tmp_path: Path) -> None:
        target = tmp_path / "out.gguf"
        target.write_bytes(b"precious")
        self.refuses(odd, target, "exists already")
        assert target.read_bytes() == b"precious"
        pack(odd, target, progress=False, overwrite=True)
        assert open_gguf(target).packed

    def test_itself(self, odd: Path) -> None:
        before = odd.read_bytes()
        with pytest.raises(ModelFileError, match="same file"):
            pack(odd, odd, progress=False, overwrite=True)
        assert odd.read_bytes() == before

    def test_missing_folder(self, odd: Path, tmp_path: Path) -> None:
        self.refuses(odd, tmp_path / "nowhere" / "out.gguf", "no such folder")

    def test_trailing_bytes(self, odd: Path, tmp_path: Path) -> None:
        odd.write_bytes(odd.read_bytes() + b"\0" * 32)
        self.refuses(odd, tmp_path / "out.gguf", "32 bytes follow the last tensor")

    def test_padding_that_is_not_zero(self, odd: Path, tmp_path: Path) -> None:
        header = open_gguf(odd).shards[0].header
        norm = next(t for t in header.tensors if t.name == "blk.0.ffn_norm.weight")
        data = bytearray(odd.read_bytes())
        data[header.data_start + norm.offset + norm.n_bytes] = 1
        odd.write_bytes(data)
        self.refuses(odd, tmp_path / "out.gguf", "padding between tensors is not zero")
        assert not (tmp_path / "out.gguf").exists()

    def test_experts_of_different_number(self, tmp_path: Path) -> None:
        tensors = odd_tensors()
        tensors[1] = ("blk.0.ffn_down_exps.weight", (32, 7, 4), Q8_0)
        self.refuses(write_gguf(tmp_path / "bad.gguf", tensors), tmp_path / "out.gguf", "different numbers of experts")

    def test_name_too_long(self, odd: Path, tmp_path: Path) -> None:
        with pytest.raises(WorkbenchError, match="packing"):
            pack(odd, tmp_path / ("x" * 300), progress=False)


class TestUnpackRefuses:
    def refuses(self, source: Path, target: Path, match: str) -> None:
        with pytest.raises(ModelFileError, match=match):
            unpack(source, target, progress=False)
        assert not target.exists()
        assert not partial_path(target).exists()

    def test_stock_file(self, odd: Path, tmp_path: Path) -> None:
        self.refuses(odd, tmp_path / "out.gguf", "not a packed file")

    def test_damaged_weights(self, odd: Path, tmp_path: Path) -> None:
        packed = pack(odd, tmp_path / "packed.gguf", progress=False)
        data = bytearray(packed.read_bytes())
        data[open_gguf(packed).shards[0].header.data_start] ^= 1
        packed.write_bytes(data)
        self.refuses(packed, tmp_path / "out.gguf", "wrong SHA-256")

    def test_truncated(self, odd: Path, tmp_path: Path) -> None:
        packed = pack(odd, tmp_path / "packed.gguf", progress=False)
        os.truncate(packed, packed.stat().st_size - 8192)
        self.refuses(packed, tmp_path / "out.gguf", "truncated")

    @pytest.mark.parametrize("name", ["../evil.gguf", "/evil.gguf", "", "..", "a\0b", "\ud800"])
    def test_names_that_leave_the_folder(self, name: str, odd: Path, tmp_path: Path) -> None:
        packed = pack(odd, tmp_path / "packed.gguf", progress=False)
        evil = _with_key(packed, "les.sources", encode_field("les.sources", STRING, _sources(packed, name=name)))
        self.refuses(evil, tmp_path / "out.gguf", "record of the original files")

    @pytest.mark.parametrize(
        "record",
        [
            encode_field("les.sources", STRING, "[" * 100_000),
            encode_field("les.sources", STRING, "{}"),
            encode_field("les.sources", UINT32, 7),
            encode_field("les.source_header_zlib", 10, 1 << 60),
            encode_array("les.source_header_zlib", UINT8, b"not zlib"),
            encode_array("les.source_header_sizes", 10, [1 << 62]),
            encode_array("les.source_header_sizes", 10, [-1 & ((1 << 64) - 1)]),
        ],
        ids=["deep", "empty", "number", "no-bytes", "not-zlib", "huge", "negative"],
    )
    def test_damaged_record(self, record: bytes, odd: Path, tmp_path: Path) -> None:
        packed = pack(odd, tmp_path / "packed.gguf", progress=False)
        key = record[8 : 8 + struct.unpack_from("<Q", record)[0]].decode()
        self.refuses(_with_key(packed, key, record), tmp_path / "out.gguf", "record of the original files")

    def test_newer_schema(self, odd: Path, tmp_path: Path) -> None:
        packed = pack(odd, tmp_path / "packed.gguf", progress=False)
        newer = _with_key(packed, "les.schema", encode_field("les.schema", UINT32, 99))
        self.refuses(newer, tmp_path / "out.gguf", "pack it again")


def _sources(packed: Path, **changes: object) -> str:
    (source,) = json.loads(open_gguf(packed).get("les.sources"))
    return json.dumps([source | changes])


def _with_key(path: Path, key: str, record: bytes) -> Path:
    """Replace one key-value record and keep the data."""
    (shard,) = open_gguf(path).shards
    header, data = shard.header, path.read_bytes()[shard.header.data_start :]
    records = [record if name == key else field.record for name, field in header.fields.items()]
    path.write_bytes(encode_header(records, header.tensors, header.alignment_bytes) + data)
    return path


class TestAtomic:
    def die_in_the_middle(self, source: Path, target: Path) -> None:
        code = (
            "import os, signal, sys\n"
            "from workbench.storage import pack\n"
            "write, calls = pack.write_at, []\n"
            "def dying(*args):\n"
            "    calls.append(1)\n"
            "    if len(calls) == 9:\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "    write(*args)\n"
            "pack.write_at = dying\n"
            "pack.pack(sys.argv[1], sys.argv[2], progress=False)\n"
        )
        died = subprocess.run([sys.executable, "-c", code, str(source), str(target)], check=False)
        assert died.returncode == -signal.SIGKILL

    def test_killed_pack_leaves_no_target_and_starts_over(self, odd: Path, tmp_path: Path) -> None:
        target = tmp_path / "packed.gguf"
        self.die_in_the_middle(odd, target)
        assert not target.exists()
        assert partial_path(target).exists()
        pack(odd, target, progress=False)
        assert not partial_path(target).exists()
        unpack(target, tmp_path / "restored.gguf", progress=False)

    def test_leftover_of_another_size_is_replaced(self, odd: Path, tmp_path: Path) -> None:
        partial_path(tmp_path / "packed.gguf").write_bytes(b"x" * 1_000_000)
        packed = pack(odd, tmp_path / "packed.gguf", progress=False)
        assert packed.read_bytes() == pack(odd, tmp_path / "again.gguf", progress=False).read_bytes()

    def test_failure_removes_the_partial_and_keeps_the_old_target(
        self, odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target = pack(odd, tmp_path / "packed.gguf", progress=False)
        before = target.read_bytes()

        def broken(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(pack_module, "write_at", broken)
        with pytest.raises(WorkbenchError, match="No space left on device"):
            pack(odd, target, progress=False, overwrite=True)
        assert target.read_bytes() == before
        assert not partial_path(target).exists()

    def test_two_writers_of_one_target(self, odd: Path, tmp_path: Path) -> None:
        import fcntl

        target = tmp_path / "packed.gguf"
        with partial_path(target).open("wb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(ModelFileError, match="another process"):
                pack(odd, target, progress=False)

    def test_free_disk_is_checked_before_anything_is_written(self, tmp_path: Path) -> None:
        with pytest.raises(DiskSpaceError, match="GB of room"):
            synthesize(tmp_path / "big.gguf", SynthShape(n_layer=1000, n_embd=16384, n_ff=16384), progress=False)
        big = tmp_path / "sparse.gguf"
        stat = os.statvfs(tmp_path)
        rows = (stat.f_bavail * stat.f_frsize // 3 + (1 << 24)) // (1 << 20) * 30
        tensors = [(f"blk.0.ffn_{kind}_exps.weight", (1 << 15, rows, 3), Q8_0) for kind in ("gate", "up", "down")]
        placed, data_bytes = lay_out(tensors, 32)
        head = encode_header([encode_field("general.architecture", STRING, "qwen3moe")], placed, 32)
        big.write_bytes(head)
        try:
            os.truncate(big, len(head) + data_bytes)
        except OSError:
            pytest.skip("this file system has no sparse file of that size")
        with pytest.raises(DiskSpaceError, match="GB of room"):
            pack(big, tmp_path / "packed.gguf", progress=False)
        assert not partial_path(tmp_path / "packed.gguf").exists()


class TestInspect:
    def test_layers_and_summary(self, odd: Path, tmp_path: Path) -> None:
        layers, summary = inspect(odd), summarize(odd)
        assert layers["tensors"].tolist() == ["gate+up+down", "gate_up+down"]
        assert layers["expert_bytes"].tolist() == [34 * 13, 34 * 6 + 4 * 32 * 7]
        assert layers["reads_per_expert"].tolist() == [3, 2]
        assert summary.reads_per_token == 2 * 5
        assert summary.all_experts_bytes == layers["layer_bytes"].sum()
        packed = pack(odd, tmp_path / "packed.gguf", progress=False)
        assert summarize(packed).reads_per_token == 4
        assert summarize(packed).dense_bytes == summary.dense_bytes
        assert (summarize(packed).arch, summarize(packed).layout) == ("qwen3moe", "contiguous")


class TestCommands:
    def run(self, *args: str | Path) -> str:
        result = CliRunner().invoke(cli, [str(a) for a in args], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def test_pack_inspect_unpack(self, odd: Path, tmp_path: Path) -> None:
        assert "4 reads per token instead of 10" in self.run("pack", odd, tmp_path / "p.gguf", "--no-progress")
        document = json.loads(self.run("inspect", tmp_path / "p.gguf", "--json"))
        assert document["summary"]["layout"] == "contiguous"
        assert len(document["layers"]) == 2
        assert "contiguous" in self.run("inspect", tmp_path / "p.gguf")
        assert "SHA-256 equal" in self.run("unpack", tmp_path / "p.gguf", tmp_path / "r.gguf", "--no-progress")
        assert (tmp_path / "r.gguf").read_bytes() == odd.read_bytes()

    def test_synth(self, tmp_path: Path) -> None:
        args = ["--n-layer", "1", "--n-embd", "256", "--n-ff", "256", "--n-expert", "4", "--n-expert-used", "2"]
        assert "synthetic" in self.run("synth", tmp_path / "s.gguf", *args, "--no-progress")
        assert isinstance(open_gguf(tmp_path / "s.gguf"), GgufFile)
