"""The runner for other devices: run bit-exact under qemu, linked for macOS; the iOS app's sources."""

from __future__ import annotations

import json
import plistlib
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from workbench.devices import build as builds
from workbench.errors import NativeError
from workbench.runner import run_native
from workbench.telemetry import Recording, read_jsonl

ROOT = Path(__file__).parent.parent
APP = ROOT / "device_runs" / "ios"
WORKFLOW = ROOT / ".github" / "workflows" / "device-builds.yml"
PROMPT = list(range(5, 25))
STREAMED: dict[str, dict[str, Any]] = {
    "on-demand": {"experts": "flash", "io": "buffered", "threads": 1},
    "lookahead": {"experts": "flash", "lookahead": "router", "ready_first": True, "cache_slots": 5, "threads": 2},
}


def built(platform: str) -> Path:
    """The program for a platform, built in this clone's `build/devices`."""
    pytest.importorskip("ziglang", reason="the dependency group device-test brings the cross compiler")
    return builds.build(platform)


@pytest.fixture(scope="module")
def emulated() -> Callable[[dict[str, Any]], subprocess.CompletedProcess[str]]:
    """Runs a job with the runner for 64-bit Arm under qemu-user."""
    qemu = shutil.which("qemu-aarch64-static")
    if not qemu:
        pytest.skip("needs Debian's qemu-user-static")
    runner = built("linux-aarch64")

    def run(job: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [qemu, str(runner), "-"], input=json.dumps(job), capture_output=True, text=True, timeout=600
        )

    return run


def recorded(done: subprocess.CompletedProcess[str]) -> Recording:
    assert done.returncode == 0, done.stderr[-3000:]
    recording = read_jsonl(done.stdout.splitlines())
    assert recording.header["device"]["machine"] == "aarch64"
    assert recording.status == "ok"
    return recording


@pytest.mark.slow
class TestArm:
    """Under qemu-user: the same instructions as on a device, not its speed and not its kernel."""

    @pytest.mark.parametrize("dtype", ["f32", "q4_k"])
    def test_streamed_is_resident_bit_for_bit(
        self, emulated: Callable[..., Any], packed_file: Callable[..., Path], tiny_file: Callable[..., Path], dtype: str
    ) -> None:
        native, packed = tiny_file("qwen3moe", dtype=dtype, n_layer=3), packed_file("qwen3moe", dtype=dtype, n_layer=3)
        job = {"model": str(native), "prompt_tokens": PROMPT, "n_predict": 12, "ignore_eos": True}
        resident = recorded(emulated(job | {"config": {"experts": "resident", "threads": 2}}))
        hashes = list(resident.tokens["logits_hash"])
        assert len(set(hashes)) == len(hashes) >= 12
        for name, toggles in STREAMED.items():
            for model in (native, packed):
                run = recorded(emulated(job | {"model": str(model), "config": toggles}))
                assert list(run.tokens["logits_hash"]) == hashes, (name, model.name)
                assert int(run.tokens["bytes"].sum()) > 0

    def test_the_same_greedy_tokens_as_on_x86(
        self, emulated: Callable[..., Any], tiny_file: Callable[..., Path]
    ) -> None:
        """Not the same bits: kernels of another instruction set round differently."""
        job = {"model": str(tiny_file("qwen3moe", dtype="f32", n_layer=3)), "prompt_tokens": PROMPT, "n_predict": 12}
        job |= {"config": STREAMED["lookahead"], "ignore_eos": True}
        assert list(recorded(emulated(job)).tokens["next"]) == list(run_native(job).tokens["next"])

    def test_a_bad_job_is_refused_as_everywhere(self, emulated: Callable[..., Any]) -> None:
        done = emulated({"model": "none.gguf", "config": {"lanes": 0}})
        assert done.returncode == 2
        assert done.stderr.startswith("error[toggle]: lanes")


@pytest.mark.slow
def test_macos_links_to_an_arm64_program() -> None:
    magic, cpu, _, kind = struct.unpack("<4I", built("macos-arm64").read_bytes()[:16])
    assert (magic, cpu, kind) == (0xFEEDFACF, 0x0100000C, 2)  # 64-bit Mach-O, arm64, executable


@pytest.mark.parametrize(
    ("platform", "ndk", "said"),
    [
        ("android-arm64", None, "ANDROID_NDK is not set"),
        ("android-arm64", "/nowhere", "ANDROID_NDK=/nowhere holds none"),
        ("amiga", None, "choose one of linux-x86_64"),
        pytest.param("ios", None, "Mac", marks=pytest.mark.skipif(sys.platform == "darwin", reason="has Xcode")),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], platform: str, ndk: str | None, said: str
) -> None:
    monkeypatch.delenv("ANDROID_NDK", raising=False)
    if ndk:
        monkeypatch.setenv("ANDROID_NDK", ndk)
    with pytest.raises(NativeError, match=re.escape(said)):
        builds.build(platform)
    assert builds.main([platform]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_every_platform_has_its_presets() -> None:
    presets = json.loads((builds.NATIVE / "CMakePresets.json").read_text())["configurePresets"]
    shown = {p["name"] for p in presets if not p.get("hidden")}
    wanted = set(builds.PLATFORMS) - {"ios"} | {"ios-arm64", "ios-simulator-arm64", "macos-arm64-xcode"}
    assert shown == wanted
    listed = subprocess.run(
        [builds._tool("cmake"), "--list-presets"], cwd=builds.NATIVE, capture_output=True, text=True, check=True
    ).stdout
    assert '"linux-aarch64"' in listed


def test_the_workflow_uses_what_exists() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    commands = "\n".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    asked = re.findall(r"-m workbench\.devices\.build (\S+)", commands)
    assert set(asked) == {"macos-arm64", "ios", "android-arm64"} <= set(builds.PLATFORMS)
    assert [ROOT / folder for folder in re.findall(r"cmake -S (\S+)", commands)] == [APP]
    for pattern in re.findall(r"hashFiles\((.*?)\)", WORKFLOW.read_text()):
        for name in re.findall(r"'(.*?)'", pattern):
            assert list(ROOT.glob(name)), name


class TestApp:
    """What can be checked of the iOS app without Xcode: it was never built or run here."""

    def test_the_sources_it_names_exist(self) -> None:
        cmake = (APP / "CMakeLists.txt").read_text()
        for name in re.findall(r"[\w./]+\.(?:swift|plist|entitlements|h)\b", cmake):
            name = name.removeprefix("/")
            assert (APP / name).exists(), name

    @pytest.mark.parametrize("source", sorted(APP.glob("*.swift")), ids=lambda p: p.name)
    def test_swift_syntax(self, source: Path) -> None:
        """Syntax only: types and Apple's frameworks are not checked."""
        swift = pytest.importorskip("tree_sitter_swift", reason="the dependency group device-test brings the grammar")
        from tree_sitter import Language, Parser

        parser = Parser(Language(swift.language()))
        text = source.read_bytes()
        assert not parser.parse(text).root_node.has_error
        assert parser.parse(text.replace(b"}", b"", 1)).root_node.has_error  # and it does see an error

    def test_it_calls_what_the_c_header_declares(self) -> None:
        header = (builds.NATIVE / "src" / "les_session.h").read_text()
        called = {c for f in APP.glob("*.swift") for c in re.findall(r"\b(les_\w+)\(", f.read_text())}
        assert {"les_run_job", "les_sample", "les_stop_job"} <= called
        assert called <= set(re.findall(r"\b(les_\w+)\(", header))

    def test_the_header_is_plain_c(self) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        assert compiler
        header = builds.NATIVE / "src" / "les_session.h"
        options = ["-x", "c", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
        subprocess.run([compiler, *options, str(header)], check=True)

    def test_files_are_shared_and_the_memory_limit_is_a_choice(self) -> None:
        info = plistlib.loads((APP / "Info.plist").read_bytes())
        assert info["UIFileSharingEnabled"]
        more = plistlib.loads((APP / "MoreMemory.entitlements").read_bytes())
        assert more == {"com.apple.developer.kernel.increased-memory-limit": True}
        assert "option(LES_MORE_MEMORY" in (APP / "CMakeLists.txt").read_text()


def test_a_sample_of_this_process() -> None:
    import ctypes

    from workbench.native_paths import library

    lib = ctypes.CDLL(str(library()))
    lib.les_sample.restype = ctypes.c_char_p
    lib.les_sample.argtypes = [ctypes.c_char_p]
    sample = json.loads(lib.les_sample(b"fair"))
    assert (sample["t"], sample["thermal_state"]) == ("smp", "fair")
    assert min(sample["t_ns"], sample["memory_bytes"], sample["peak_bytes"]) > 0
    assert json.loads(lib.les_sample(None))["thermal_state"] is None
