"""Interrupting a cell, as Jupyter does it: the runtime ends, and what it recorded is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.native

LIMIT_S = 240
SLOW = "emulate_bandwidth_bytes_s=20_000_000, io='buffered', threads=1"


class Kernel:
    """A real Jupyter kernel."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager()
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT_S)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def interrupt_when(self, code: str, true: Callable[[], bool]) -> tuple[dict[str, Any], str]:
        """Execute, interrupt once `true`; the reply and what was shown."""
        request = self.client.execute(code)
        until(true)
        self.manager.interrupt_kernel()
        return self._finish(request)

    def value(self, code: str) -> str:
        """What a cell prints."""
        reply, shown = self._finish(self.client.execute(code))
        assert reply["status"] == "ok", shown
        return shown.strip()

    def _finish(self, request: str) -> tuple[dict[str, Any], str]:
        shown = ""
        while True:
            message = self.client.get_iopub_msg(timeout=LIMIT_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                shown += content["text"]
            elif message["msg_type"] == "error":
                shown += "\n".join(content["traceback"])
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                break
        while (reply := self.client.get_shell_msg(timeout=LIMIT_S))["parent_header"].get("msg_id") != request:
            pass
        return reply["content"], shown

    def runners(self) -> list[psutil.Process]:
        """The runtime's processes that the kernel has started."""
        pid = self.manager.provisioner.process.pid  # type: ignore[union-attr]
        found = []
        for child in psutil.Process(pid).children(recursive=True):
            try:
                if "les-run" in child.name():
                    found.append(child)
            except psutil.Error:
                pass
        return found

    def decoded(self) -> int:
        """Decode calls that the running process has recorded."""
        for process in self.runners():
            try:
                telemetry = Path(process.cmdline()[-1]).with_name("telemetry.jsonl")
                return telemetry.read_text().count('"decode"')
            except (psutil.Error, OSError, IndexError):
                pass
        return 0


def until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    made = Kernel(tmp_path_factory.mktemp("kernel"))
    made.value("import workbench as wb\nfrom workbench.demo import demo_model")
    yield made
    made.close()


def test_run_keeps_what_it_recorded(kernel: Kernel) -> None:
    assert kernel.value("print(wb.interrupted())") == "None"
    reply, shown = kernel.interrupt_when(
        f"wb.run(demo_model(), 'Once upon a time', tokens=400, ignore_eos=True, {SLOW})", lambda: kernel.decoded() >= 3
    )
    assert reply["ename"] == "InterruptedRun"
    assert "decode calls were recorded; wb.interrupted() is that run." in shown
    assert "Traceback" not in shown
    assert kernel.runners() == []
    kept = kernel.value("run = wb.interrupted(); print(run.recording.status, len(run.recording.decode) >= 3)")
    assert kept == "interrupted True"


def test_session_ends_its_generation(kernel: Kernel, tmp_path: Path) -> None:
    marker = tmp_path / "decoding"
    code = f"""
from pathlib import Path
records = []
session = wb.Session(demo_model(), {SLOW})
for record in session.generate("Once upon a time", n_predict=400, ignore_eos=True):
    records.append(record)
    if len(records) == 3:
        Path({str(marker)!r}).touch()
"""
    reply, _ = kernel.interrupt_when(code, marker.exists)
    assert reply["ename"] == "KeyboardInterrupt"
    assert kernel.value("session.close(); print(session.end['reason'], len(records) >= 3)") == "interrupted True"


def test_ladder_keeps_finished_runs(kernel: Kernel, tmp_path: Path) -> None:
    out = tmp_path / "ladder"
    slow = "flash={'emulate_bandwidth_bytes_s': 20_000_000}, base={'io': 'buffered', 'threads': 1}"
    code = f"""
from workbench.ablation.rungs import DEFAULT_LADDER
wb.ablate(demo_model(), out={str(out)!r}, rungs=DEFAULT_LADDER[:2], tokens=24, repeats=9, {slow})
"""

    def finished() -> list[Path]:
        return [path for path in (out / "runs").glob("*.jsonl") if '"end"' in path.read_text()]

    reply, shown = kernel.interrupt_when(code, lambda: bool(finished()) and kernel.runners() != [])
    assert reply["ename"] == "InterruptedRun"
    assert f"finished runs are kept in {out}" in shown
    assert kernel.runners() == []
    assert finished()
