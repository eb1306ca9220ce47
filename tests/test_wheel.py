"""What an installation carries: a wheel is built without its native part, unpacked, and asked for the local suite."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from workbench.evals.tasks import local_tasks

ROOT = Path(__file__).parent.parent
BUILD = """
import sys
from scikit_build_core.build import build_wheel
build_wheel(sys.argv[1], {"wheel.cmake": "false", "wheel.exclude": "*.gguf;workbench/native/**"})
"""


def test_a_wheel_carries_the_local_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    spec = importlib.util.spec_from_file_location("installed_tasks", tmp_path / "site/workbench/evals/tasks.py")
    assert spec is not None
    assert spec.loader is not None
    installed = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "installed_tasks", installed)
    spec.loader.exec_module(installed)
    found, own = installed.local_tasks(), local_tasks()
    assert {task.path.parent for task in found} == {tmp_path / "site/workbench/evals/data"}
    assert [(task.name, task.sha256) for task in found] == [(task.name, task.sha256) for task in own]
    assert len(found) >= 8
