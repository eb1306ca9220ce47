"""Every bad input is one clear error that names the file or the toggle, before work starts where it can be known."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench import (
    ModelFileError,
    RunConfig,
    RunError,
    Session,
    ToggleError,
    UnsupportedArchitectureError,
    native_paths,
)
from workbench.runner import NativeRunError, run_native
from workbench.telemetry import read_jsonl

pytestmark = pytest.mark.native

MODES: list[dict[str, Any]] = [{"experts": "flash"}, {"experts": "resident"}]
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
ssize_t preadv(int fd, const struct iovec * iov, int n, off_t offset) {
    static int calls = 0;
    static ssize_t (*real)(int, const struct iovec *, int, off_t) = 0;
    if (!real) real = (ssize_t (*)(int, const struct iovec *, int, off_t)) dlsym(RTLD_NEXT, "preadv");
    if (++calls > atoi(getenv("FAIL_AFTER"))) { errno = EIO; return -1; }
    return real(fd, iov, n, offset);
}
ssize_t preadv64(int fd, const struct iovec * iov, int n, off_t offset) { return preadv(fd, iov, n, offset); }
"""


@pytest.mark.parametrize("mode", MODES, ids=["flash", "resident"])
@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "GGUF"), (b"not a model at all" * 100, "GGUF"), (b"GGUF\x03\0\0\0" + b"\xff" * 64, "GGUF")],
    ids=["empty", "text", "absurd counts"],
)
def test_not_a_gguf(tmp_path: Path, mode: dict[str, Any], content: bytes, says: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=says) as error:
        Session(path, **mode)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("mode", MODES, ids=["flash", "resident"])
def test_missing_file(tmp_path: Path, mode: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"nowhere\.gguf: No such file"):
        Session(tmp_path / "nowhere.gguf", **mode)


@pytest.mark.parametrize("mode", MODES, ids=["flash", "resident"])
@pytest.mark.parametrize("keep", [0.02, 0.5, 0.999])
def test_truncated(tiny_file: Callable[..., Path], tmp_path: Path, mode: dict[str, Any], keep: float) -> None:
    data = tiny_file("qwen3moe").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(ModelFileError) as error:
        Session(path, **mode)
    assert str(path) in str(error.value)


def test_no_experts(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    data = bytearray(tiny_file("qwen3moe").read_bytes())
    at = data.index(b"qwen3moe.expert_count") + len(b"qwen3moe.expert_count") + 4
    data[at : at + 4] = bytes(4)
    path = tmp_path / "dense.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="no experts"):
        Session(path)


def test_unknown_architecture(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    data = tiny_file("qwen3moe").read_bytes().replace(b"qwen3moe", b"qwen9moe")
    path = tmp_path / "future.gguf"
    path.write_bytes(data)
    with pytest.raises(UnsupportedArchitectureError, match="'qwen9moe'"):
        Session(path)
    with pytest.raises(ModelFileError, match="unknown architecture"):
        Session(path, experts="resident")


def test_an_architecture_that_cannot_be_streamed_yet_is_named(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    data = tiny_file("qwen3moe").read_bytes().replace(b"qwen3moe", b"grovemoe")
    path = tmp_path / "grove.gguf"
    path.write_bytes(data)
    with pytest.raises(UnsupportedArchitectureError, match="'grovemoe'.*cannot be streamed yet.*qwen3moe"):
        Session(path)


def test_packed_file_given_to_stock(packed_file: Callable[..., Path]) -> None:
    with pytest.raises(ModelFileError, match="expert-contiguous file cannot run resident.*unpack"):
        Session(packed_file("qwen3moe"), experts="resident")


@pytest.mark.parametrize(
    ("toggles", "names"),
    [
        ({"cache_slots": 17}, "cache_slots=17.*16 experts"),
        ({"cache_slots": -1}, "cache_slots"),
        ({"lookahead": "router", "lookahead_width": 0.5}, "lookahead_width"),
        ({"lookahead_width": 2.0}, "lookahead_width needs lookahead"),
        ({"lookahead": "psychic"}, "lookahead='psychic'.*router"),
        ({"lanes": 0}, "lanes"),
        ({"experts": "resident", "lookahead": "router"}, "lookahead='router' contradicts experts='resident'"),
        ({"experts": "resident", "ready_first": True}, "ready_first.*contradicts"),
        ({"experts": "resident", "cache_slots": 4}, "cache_slots.*contradicts"),
        ({"experts": "resident", "emulate_bandwidth_bytes_s": 10**9}, "emulate_bandwidth_bytes_s contradicts"),
        ({"emulate_latency_ns": 1000}, "emulate_latency_ns needs"),
        ({"speed": "ludicrous"}, "unknown toggle speed"),
    ],
)
def test_impossible_toggles(tiny_file: Callable[..., Path], toggles: dict[str, Any], names: str) -> None:
    with pytest.raises(ToggleError, match=names):
        Session(tiny_file("qwen3moe"), **toggles)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"experts": "resident", "lookahead": "router"}, "contradict"),
        ({"lookahead_width": 0.5}, "lookahead_width"),
        ({"lanes": "many"}, "lanes"),
        ({"speed": 1}, "speed"),
    ],
)
def test_the_runner_checks_toggles_itself(tiny_file: Callable[..., Path], config: dict[str, Any], names: str) -> None:
    job = json.dumps({"model": str(tiny_file("qwen3moe")), "config": config, "prompt_tokens": [5]})
    done = subprocess.run([native_paths.runner(), "-"], input=job, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error[toggle]: ")
    assert names in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_runner_refuses_a_broken_job() -> None:
    done = subprocess.run([native_paths.runner(), "-"], input="{nonsense", capture_output=True, text=True)
    assert done.returncode == 2
    assert "not valid JSON" in done.stderr


def test_prompt_longer_than_the_context(tiny_file: Callable[..., Path]) -> None:
    with (
        Session(tiny_file("qwen3moe"), n_ctx=32) as session,
        pytest.raises(ToggleError, match="exceed the context of"),
    ):
        list(session.generate(list(range(5, 300)), n_predict=8))


def test_token_outside_the_vocabulary(tiny_file: Callable[..., Path]) -> None:
    with Session(tiny_file("qwen3moe")) as session, pytest.raises(ToggleError, match="token 99999 is outside"):
        list(session.generate([99999], n_predict=2))


def test_a_closed_session_says_so(tiny_file: Callable[..., Path]) -> None:
    session = Session(tiny_file("qwen3moe"))
    session.close()
    session.close()
    with pytest.raises(RunError, match="closed"):
        list(session.generate([5], n_predict=2))


def test_too_little_memory_for_the_slots(tmp_path: Path) -> None:
    """A sparse file whose experts are larger than any machine here."""
    from workbench.storage.synth import SynthShape, model_bytes, synthesize

    shape = SynthShape(n_layer=2, n_embd=256, n_ff=256, n_expert=4, n_expert_used=2)
    path = synthesize(tmp_path / "small.gguf", shape, progress=False)
    assert model_bytes(shape) < path.stat().st_size
    from workbench.memory_cap import CapNotPermittedError, MemoryCap

    job = {"model": str(path), "config": RunConfig(cache_slots=4).to_dict(), "prompt_tokens": [5], "n_predict": 2}
    try:
        with MemoryCap(3 << 20) as cap, pytest.raises((ToggleError, NativeRunError)) as error:
            run_native(job, launcher=cap.launcher)
    except CapNotPermittedError as reason:
        pytest.skip(str(reason))
    if isinstance(error.value, ToggleError):  # else the kernel was quicker: also named
        assert "cache_slots=4 needs" in str(error.value)
        assert "MiB are available" in str(error.value)
    else:
        assert "memory" in str(error.value)


def job_for(model: Path, telemetry: Path, **config: Any) -> dict[str, Any]:
    return {
        "model": str(model),
        "config": RunConfig(**{"threads": 1, **config}).to_dict(),
        "prompt_tokens": list(range(5, 20)),
        "n_predict": 200,
        "ignore_eos": True,
        "telemetry_path": str(telemetry),
    }


@pytest.mark.skipif(not shutil.which("cc"), reason="the shim needs a C compiler")
@pytest.mark.parametrize("lookahead", ["off", "router"])
def test_a_disk_that_errors_mid_decode(
    tiny_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lookahead: str
) -> None:
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("FAIL_AFTER", "900")
    model, telemetry = tiny_file("qwen3moe"), tmp_path / "run.jsonl"
    with pytest.raises(NativeRunError, match="Input/output error") as error:
        run_native(job_for(model, telemetry, lookahead=lookahead))
    assert str(model) in str(error.value)
    assert "byte" in str(error.value)
    kept = read_jsonl(telemetry)
    assert kept.status == "error"
    assert len(kept.tokens) >= 5
    assert kept.end is not None
    assert "Input/output error" in kept.end["error"]


def test_a_file_that_shrinks_mid_decode(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "shrinking.gguf"
    shutil.copy(tiny_file("qwen3moe"), path)
    records = []
    with Session(path, io="buffered", threads=1) as session:
        with pytest.raises(RunError, match=r"shrinking\.gguf"):
            for record in session.generate(list(range(5, 20)), n_predict=100, ignore_eos=True):
                records.append(record)
                if len(records) == 4:
                    os.truncate(path, 4096)
        assert session.end is not None
        assert session.end["reason"] == "error"
    assert len(records) >= 4


def decoding(model: Path, telemetry: Path) -> subprocess.Popen[bytes]:
    """A slow run that has decoded some tokens."""
    slow = {"emulate_bandwidth_bytes_s": 20_000_000, "io": "buffered"}
    job = telemetry.with_suffix(".job.json")
    job.write_text(json.dumps(job_for(model, telemetry, **slow)))
    process = subprocess.Popen([native_paths.runner(), job])
    while not telemetry.exists() or telemetry.read_text().count('"decode"') < 3:
        time.sleep(0.02)
    return process


def test_a_killed_run_keeps_its_telemetry(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    telemetry = tmp_path / "killed.jsonl"
    process = decoding(tiny_file("qwen3moe"), telemetry)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = read_jsonl(telemetry)
    assert kept.status == "crashed"
    assert len(kept.decode) >= 3


def test_an_interrupted_run_ends_cleanly(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    telemetry = tmp_path / "interrupted.jsonl"
    process = decoding(tiny_file("qwen3moe"), telemetry)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    assert read_jsonl(telemetry).status == "interrupted"


def test_telemetry_that_cannot_be_written(tiny_file: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot write telemetry"):
        run_native(job_for(tiny_file("qwen3moe"), tmp_path / "no" / "such" / "folder.jsonl"))
