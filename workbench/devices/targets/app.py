"""An iOS app as runner: files go into its Documents, it is launched with a job's name, records come on its console."""

from __future__ import annotations

import json
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.devices.failures import MEMORY, DeviceError, classify, error_of
from workbench.devices.process import Finished
from workbench.devices.targets.base import Target

BUNDLE = "org.les-workbench.runner"


@dataclass(kw_only=True)
class AppTarget(Target):
    """What the two iOS tools share.

    Neither resumes a transfer that was cut or can check one, so the file is marked as complete by a small second
    file: one that is there with its mark is never sent twice. Paths in jobs are relative to Documents. The console
    gives no exit status: the job's `end` record has it. When the console ends early, the app's own
    `Documents/<job>.jsonl` is fetched.
    """

    def _bundle(self) -> str:
        return self.bundle or BUNDLE

    def build_id(self) -> str:
        return f"app {self._bundle()}"

    def blob(self, sha256: str, name: str) -> str:
        return f"{sha256}-{name}"

    def output(self, name: str) -> str:
        return name

    def push(self, local: Path, sha256: str) -> int:
        remote = self.blob(sha256, local.name)
        size = str(local.stat().st_size)
        with tempfile.TemporaryDirectory(prefix="les-app-") as scratch:
            mark = Path(scratch) / "complete"
            asked = self.run_tool(self.pull_argv(f"{remote}.complete", mark))
            if asked.rc == 0 and mark.is_file() and mark.read_text(encoding="utf-8").strip() == size:
                return 0
            self._send(local, remote)
            mark.write_text(size, encoding="utf-8")
            self._send(mark, f"{remote}.complete")
        return int(size)

    def _send(self, local: Path, remote: str) -> None:
        finished = self.run_tool(self.push_argv(local, remote))
        if finished.rc != 0:
            raise error_of(finished, f"pushing {local.name}")

    def pull(self, remote: str, local: Path) -> None:
        finished = self.run_tool(self.pull_argv(remote, local))
        if finished.rc != 0 or not local.is_file():
            raise error_of(finished, f"pulling {remote}")

    def run(self, job: Mapping[str, Any], *, on_line: Callable[[str], None], timeout: float | None = None) -> Finished:
        name = str(job["run_id"])
        with tempfile.TemporaryDirectory(prefix="les-job-") as scratch:
            local = Path(scratch) / f"{name}.json"
            local.write_text(json.dumps(job), encoding="utf-8")
            self._send(local, local.name)
            finished = self.run_tool(self.launch_argv(name), on_line=on_line, timeout=timeout)
            if any(_is_end(line) for line in finished.lines):
                return replace(finished, rc=_rc(finished.lines))
            kept = Path(scratch) / f"{name}.jsonl"
            if self.run_tool(self.pull_argv(kept.name, kept)).rc == 0 and kept.is_file():
                lines = kept.read_text(encoding="utf-8", errors="replace").splitlines()
                seen = set(finished.lines)
                for line in lines:
                    if line not in seen:
                        on_line(line)
                if any(_is_end(line) for line in lines):
                    return replace(finished, rc=_rc(lines), lines=[*finished.lines, *lines])
        if finished.rc == 0:  # the app is gone without its last record: iOS ended it
            if classify(replace(finished, rc=1)) != MEMORY:
                raise DeviceError(MEMORY, "the app ended without its last record; most likely iOS killed it (jetsam)")
            finished = replace(finished, rc=137)
        return finished

    @abstractmethod
    def launch_argv(self, job: str) -> Sequence[str]: ...


def _is_end(line: str) -> bool:
    return line.startswith('{"t":"end"') or line.startswith('{"t": "end"')


def _rc(lines: list[str]) -> int:
    for line in reversed(lines):
        if _is_end(line):
            try:
                return int(json.loads(line).get("rc", 1))
            except (ValueError, TypeError):
                return 1
    return 1
