"""The runtime's own tests, and the runner itself, under the address and thread sanitizers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from compilers import compilers

SOURCE = Path(__file__).parent.parent / "workbench" / "native"
SANITIZERS = ("thread", "address,undefined")


@pytest.fixture(scope="module", params=SANITIZERS)
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build folder of the runtime with one sanitizer."""
    build = tmp_path_factory.mktemp("sanitized")
    cmake = shutil.which("cmake")
    assert cmake, "cmake is part of the development dependencies"
    options = [f"-DLES_SANITIZE={request.param}", "-DLES_TESTS=ON", f"-DPython3_EXECUTABLE={sys.executable}"]
    options += [f"-DCMAKE_{language}_COMPILER={path}" for language, path in compilers().items()]
    for command in (
        [cmake, "-S", str(SOURCE), "-B", str(build), "-G", "Ninja", *options],
        [cmake, "--build", str(build), "-j", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return build


def checked(command: list[str], **how: str) -> str:
    """Run a sanitized program; any report is a failure."""
    environment = dict(os.environ, TSAN_OPTIONS="halt_on_error=1", ASAN_OPTIONS="detect_leaks=0", OMP_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, **how)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Sanitizer" not in done.stderr, done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_lanes_and_slots(sanitized: Path, tmp_path: Path) -> None:
    assert "passed" in checked([str(sanitized / "test_lanes")], cwd=str(tmp_path))


@pytest.mark.slow
def test_the_adaptive_draft_length_keeps_its_bounds(sanitized: Path) -> None:
    """On simulated machines: at most 3 % lost on hopeless text; recorded drafts: as fast as the best fixed length."""
    drafts = Path(__file__).parent / "native" / "drafts.txt"
    assert "passed" in checked([str(sanitized / "test_draft_width"), str(drafts)])


@pytest.mark.slow
def test_a_whole_run(sanitized: Path, tmp_path: Path) -> None:
    model = tiny.tiny_model(tmp_path / "tiny.gguf", "qwen3moe", dtype="q8_0")
    toggles = {
        "lookahead": "router",
        "ready_first": True,
        "cache_slots": 5,
        "lanes": 4,
        "threads": 1,
        "telemetry": "io",
    }
    job = {"model": str(model), "config": toggles, "prompt_tokens": list(range(5, 30)), "n_predict": 12}
    records = [
        json.loads(line) for line in checked([str(sanitized / "les-run"), "-"], input=json.dumps(job)).splitlines()
    ]
    assert records[-1]["t"] == "end"
    assert records[-1]["rc"] == 0
    assert any(r["t"] == "io" and r["source"] == "prefetch" for r in records)
