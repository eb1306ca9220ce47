"""Build the runner for another device: `python -m workbench.devices.build PLATFORM`.

One table of platforms over the presets of `workbench/native/CMakePresets.json`. The program lands in
`build/devices/PLATFORM/`; the llama.cpp it needs is built once and kept outside the clone.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workbench.errors import NativeError

CLONE = Path(__file__).parents[2]
NATIVE = CLONE / "workbench" / "native"


@dataclass(frozen=True)
class Platform:
    """Something `les-run` can be built for.

    Attributes
    ----------
    how : str
        What is made, by which compiler.
    verified : str
        The most that was checked: `run` on such a machine, `emulated` (run under qemu-user), `linked` (never run) or
        `none` (not built to the end so far).
    needs : str
        `ziglang`, `ndk` or `xcode`.
    """

    name: str
    how: str
    verified: Literal["run", "emulated", "linked", "none"]
    needs: Literal["ziglang", "ndk", "xcode"]


PLATFORMS = {
    p.name: p
    for p in (
        Platform("linux-x86_64", "one static program, AVX2 (ziglang, musl)", "none", "ziglang"),
        Platform("linux-aarch64", "one static program, Armv8.2 + dot product (ziglang, musl)", "emulated", "ziglang"),
        Platform(
            "macos-arm64",
            "macOS 13, Apple silicon, CPU only (ziglang, or Xcode on a Mac)",
            "linked",
            "ziglang",
        ),
        Platform("android-arm64", "Android 9, Armv8.2 + dot product (the NDK in ANDROID_NDK)", "none", "ndk"),
        Platform("ios", "XCFramework of the runtime for device and simulator (Xcode, on a Mac)", "none", "xcode"),
    )
}


def build(platform: str, out: Path | None = None) -> Path:
    """Build the runner for a platform.

    Parameters
    ----------
    platform : str
        A key of `PLATFORMS`.
    out : Path, optional
        Build folder, `build/devices/PLATFORM` of the clone by default. A second build there does only what changed.

    Returns
    -------
    Path
        The program `les-run`, or the folder `LES.xcframework` for ios.

    Raises
    ------
    NativeError
        For an unknown platform, a missing compiler, and when compiling fails; the message says what to do.
    """
    if platform not in PLATFORMS:
        raise NativeError(f"platform '{platform}': choose one of {', '.join(PLATFORMS)}")
    if not (NATIVE / "CMakePresets.json").exists():
        raise NativeError("builds for other devices need a clone of the project, not only the installed package")
    out = (out or CLONE / "build" / "devices" / platform).resolve()
    if platform == "macos-arm64" and sys.platform == "darwin":
        _compile("macos-arm64-xcode", out, "les-run", [])  # a Mac has Apple's own compiler
        return out / "les-run"
    options = _TOOLS[PLATFORMS[platform].needs](platform)
    if platform == "ios":
        return _xcframework(out)
    _compile(platform, out, "les-run", options)
    return out / "les-run"


def _ziglang(platform: str) -> list[str]:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise NativeError(f"building for {platform} needs the package ziglang: run `uv sync --group device-test`")
    return [f"-DLES_ZIG={Path(spec.origin).parent / 'zig'}"]


def _ndk(platform: str) -> list[str]:
    folder = os.environ.get("ANDROID_NDK", "")
    if not (folder and (Path(folder) / "build" / "cmake" / "android.toolchain.cmake").exists()):
        found = f"ANDROID_NDK={folder} holds none" if folder else "ANDROID_NDK is not set"
        raise NativeError(
            f"building for {platform} needs Google's Android NDK (r28 or later), and {found}: "
            "set ANDROID_NDK to the unpacked NDK's folder"
        )
    return []


def _xcode(platform: str) -> list[str]:
    if sys.platform != "darwin" or not shutil.which("xcodebuild"):
        raise NativeError(f"building for {platform} needs Xcode, so a Mac: run this command there")
    return []


_TOOLS = {"ziglang": _ziglang, "ndk": _ndk, "xcode": _xcode}


def _xcframework(out: Path) -> Path:
    """Merge the static libraries for device and simulator into one framework that Xcode links."""
    arguments: list[str] = []
    for preset in ("ios-arm64", "ios-simulator-arm64"):
        _compile(preset, out / preset, "les-merged", [])
        arguments += ["-library", str(out / preset / "libles-merged.a"), "-headers", str(out / preset / "include")]
    result = out / "LES.xcframework"
    shutil.rmtree(result, ignore_errors=True)
    _run(["xcodebuild", "-create-xcframework", *arguments, "-output", str(result)], "making the XCFramework")
    return result


def _compile(preset: str, folder: Path, target: str, options: list[str]) -> None:
    cmake = _tool("cmake")
    configure = [
        cmake, "--preset", preset, "-B", str(folder), f"-DPython3_EXECUTABLE={_build_python()}",
        f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}", f"-DLES_VERSION={importlib.metadata.version('les-workbench')}",
    ]  # fmt: skip
    _run([*configure, *options], f"configuring the build for {preset}")
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    _run([cmake, "--build", str(folder), "--target", target, "-j", jobs], f"compiling for {preset}")


def _tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise NativeError(f"{name} is missing: `uv sync` brings it, or install it with the system's package manager")
    return found


def _run(command: list[str], what: str) -> None:
    """Run a build step out of the way of other work; its last lines go into the error."""
    polite = ["nice", "-n", str(max(0, 10 - os.nice(0)))]
    with subprocess.Popen(
        [*polite, *command], cwd=NATIVE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        lines = []
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith("les-workbench:"):
                print(line, end="", file=sys.stderr, flush=True)
    if process.returncode != 0:
        raise NativeError(f"{what} failed:\n{''.join(lines[-40:])}")


def _build_python() -> str:
    """A Python that can fetch the pinned source: pip and the project's build requirements, kept beside the cache."""
    requires = tomllib.loads((CLONE / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    root = Path(os.environ.get("LES_BUILD_CACHE") or _cache_home() / "les-workbench")
    key = hashlib.sha256(repr((sys.version, requires)).encode()).hexdigest()[:16]
    folder = root / f"build-env-{key}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, clear=True, with_pip=True)
        _run([str(python), "-m", "pip", "install", "--quiet", *requires], "preparing the build environment")
        (folder / "complete").touch()
    return str(python)


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def main(arguments: list[str] | None = None) -> int:
    """Build for the named platform, or list them."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1 or words[0] in ("-h", "--help"):
        print("usage: python -m workbench.devices.build PLATFORM\n")
        for p in PLATFORMS.values():
            print(f"  {p.name:14} {p.how}; verified: {p.verified}")
        return 0 if words else 2
    try:
        print(build(words[0]))
    except NativeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
