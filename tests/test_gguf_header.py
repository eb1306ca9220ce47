"""Headers that lie: each is one clear `ModelFileError`, and never any other exception."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf_files import F32, Q8_0, odd_tensors, split, write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.errors import ModelFileError, WorkbenchError
from workbench.storage.gguf_file import open_gguf
from workbench.storage.gguf_header import STRING, UINT32, encode_array, encode_field, encode_header, parse_header
from workbench.storage.inspect import inspect, summarize
from workbench.storage.layout import expert_layout
from workbench.storage.pack import pack
from workbench.storage.unpack import unpack


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "odd.gguf", odd_tensors())


class TestBadHeaders:
    """Each is one `ModelFileError` that names the file and what is wrong."""

    def bad(self, path: Path, match: str) -> None:
        tracemalloc.start()
        with pytest.raises(ModelFileError, match=match) as error:
            expert_layout(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert path.name.removesuffix(".gguf")[:3] in str(error.value)
        assert peak_bytes < 20_000_000

    def test_missing(self, tmp_path: Path) -> None:
        self.bad(tmp_path / "missing.gguf", "no such file")

    def test_folder(self, tmp_path: Path) -> None:
        self.bad(tmp_path, "not a file")

    @pytest.mark.parametrize("content", [b"", b"GG", b"GGML" + bytes(100), b"#!/bin/sh\n" * 99])
    def test_not_a_gguf(self, content: bytes, tmp_path: Path) -> None:
        path = tmp_path / "text.gguf"
        path.write_bytes(content)
        self.bad(path, "not a GGUF file")

    @pytest.mark.parametrize(
        ("offset", "value", "match"),
        [
            (4, struct.pack("<I", 1), "version 1 is not supported"),
            (4, struct.pack("<I", 9), "version 9 is not supported"),
            (4, struct.pack(">I", 3), "big-endian"),
            (8, struct.pack("<Q", 1 << 60), "damaged header: .* tensors cannot fit"),
            (8, struct.pack("<Q", (1 << 64) - 1), "damaged header: .* tensors cannot fit"),
            (16, struct.pack("<Q", 1 << 60), "damaged header: .* keys cannot fit"),
            (24, struct.pack("<Q", 1 << 40), "truncated header"),
        ],
    )
    def test_first_bytes(self, offset: int, value: bytes, match: str, odd: Path) -> None:
        data = bytearray(odd.read_bytes())
        data[offset : offset + len(value)] = value
        odd.write_bytes(data)
        self.bad(odd, match)

    def test_truncated_header(self, odd: Path) -> None:
        os.truncate(odd, 600)
        self.bad(odd, "truncated header")

    def test_truncated_data(self, odd: Path) -> None:
        os.truncate(odd, odd.stat().st_size - 20)
        self.bad(odd, "truncated: tensor 'output_norm.weight' ends at byte .*; fetch it again")

    def test_wrong_offset(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "odd.gguf", odd_tensors())
        placed = list(open_gguf(path).shards[0].header.tensors)
        placed[2] = placed[1]
        path.write_bytes(encode_header([], placed, 32) + bytes(100_000))
        self.bad(path, "occurs twice")
        placed = placed[:1] + placed[3:]
        path.write_bytes(encode_header([], placed, 32) + bytes(100_000))
        self.bad(path, "expected at")

    @pytest.mark.parametrize(
        ("record", "match"),
        [
            (encode_field("general.alignment", UINT32, 48), "not a power of two"),
            (encode_field("general.alignment", UINT32, 1 << 31), "not a power of two up to"),
            (encode_field("general.alignment", STRING, "32"), "not a 32-bit"),
            (encode_field("general.architecture", STRING, "x"), "occurs twice"),
            (encode_field("", UINT32, 1), "empty key"),
            (struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<II", 4, 1), "not UTF-8"),
            (struct.pack("<Q", 1) + b"k" + struct.pack("<I", 77), "unknown type 77"),
            (struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 9, 1), "unknown type 9"),
            (
                struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, 1 << 61),
                "damaged header: .* elements of 'k' cannot fit",
            ),
        ],
    )
    def test_keys(self, record: bytes, match: str, tmp_path: Path) -> None:
        self.bad(write_gguf(tmp_path / "keys.gguf", odd_tensors(), extra=[record]), match)

    @pytest.mark.parametrize(
        ("tensor", "match"),
        [
            (("x", (33,), Q8_0), "not a multiple of Q8_0's block"),
            (("x", (32, -4), Q8_0), "has the shape"),
            (("x", (1 << 62, 1 << 62, 1 << 62), F32), "truncated: tensor 'x'"),
            (("x", (1, 1, 1, 1, 1), F32), "5 dimensions"),
        ],
    )
    def test_tensors(self, tensor: tuple[str, tuple[int, ...], int], match: str, tmp_path: Path) -> None:
        name, shape, type_id = tensor
        record = (
            struct.pack("<Q", 1) + name.encode() + struct.pack(f"<I{len(shape)}qIQ", len(shape), *shape, type_id, 0)
        )
        head = bytearray(encode_header([], [], 32)[:24] + record)
        head[8:16] = struct.pack("<Q", 1)
        path = tmp_path / "tensor.gguf"
        path.write_bytes(bytes(head) + bytes(1000))
        self.bad(path, match)

    def test_unknown_tensor_type(self, tmp_path: Path) -> None:
        path = write_gguf(tmp_path / "type.gguf", [("x", (4,), F32)])
        data = path.read_bytes()
        at = data.index(struct.pack("<QIQ", 4, F32, 0))
        path.write_bytes(data[: at + 8] + struct.pack("<I", 999) + data[at + 12 :])
        self.bad(path, "type 999, which is not known")

    def test_no_architecture(self, tmp_path: Path) -> None:
        path = tmp_path / "arch.gguf"
        path.write_bytes(encode_header([], [], 32))
        self.bad(path, "no general.architecture")

    def test_missing_shard(self, odd: Path, tmp_path: Path) -> None:
        shards = split(odd, tmp_path, 3)
        shards[1].unlink()
        self.bad(shards[0], "shard 2 of 3 is missing: expected odd-00002-of-00003.gguf")

    def test_shard_with_a_wrong_name(self, odd: Path, tmp_path: Path) -> None:
        shards = split(odd, tmp_path, 2)
        self.bad(shards[0].rename(tmp_path / "odd.gguf"), "not named like")

    def test_shards_swapped(self, odd: Path, tmp_path: Path) -> None:
        first, second = split(odd, tmp_path, 2)
        swap = second.read_bytes()
        second.write_bytes(first.read_bytes())
        first.write_bytes(swap)
        self.bad(first, "by its header")


def small_files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("fuzz")
    odd = write_gguf(folder / "odd.gguf", odd_tensors(), extra=[encode_array("tokens", STRING, ["a", "bc", ""])])
    return [odd.read_bytes(), pack(odd, folder / "packed.gguf", progress=False).read_bytes()]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return small_files(tmp_path_factory)


edits = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 255)), min_size=0, max_size=6)


class TestFuzz:
    @settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(edits=edits, end=st.one_of(st.none(), st.integers(0, 4000)), which=st.integers(0, 1))
    def test_header(self, edits: list[tuple[int, int]], end: int | None, which: int, originals: list[bytes]) -> None:
        data = bytearray(originals[which])[:end]
        for at, flip in edits:
            if at < len(data):
                data[at] ^= flip
        try:
            header = parse_header(lambda start, n: bytes(data[start : start + n]), len(data), "fuzz")
        except ModelFileError:
            return
        for field in header.fields.values():
            assert isinstance(field.value, (int, float, str, list))
        assert header.data_start + header.data_bytes <= len(data)

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(edits=edits, end=st.one_of(st.none(), st.integers(0, 60_000)))
    def test_unpack_restores_the_original_or_says_why_not(
        self, edits: list[tuple[int, int]], end: int | None, originals: list[bytes], tmp_path: Path
    ) -> None:
        data = bytearray(originals[1])[:end]
        for at, flip in edits:
            if at < len(data):
                data[at] ^= flip
        packed = tmp_path / "packed.gguf"
        packed.write_bytes(data)
        try:
            summarize(packed)
            inspect(packed)
            (restored,) = unpack(packed, tmp_path / "restored.gguf", progress=False, overwrite=True)
        except WorkbenchError:
            return
        assert restored.read_bytes() == originals[0]
