"""This machine: the installed runner, files where they are, one clock."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from workbench.devices import sysfs
from workbench.devices.process import Finished
from workbench.devices.samples import Sample
from workbench.devices.targets.base import HARDWARE, LIST_TIMEOUT_S, Facts, Target, Verified


@dataclass(kw_only=True)
class LocalTarget(Target):
    """Runs are those of `workbench ablate`: nothing is copied, the runner writes its records to a file."""

    name = "local"
    tool = "les-run"
    about = "this machine"
    transfers = "nothing is copied"
    clock_is_ours = True
    verified = Verified(
        level=HARDWARE,
        date="2026-11-30",
        tool="les-run 0.1.0, Linux x86-64",
        limits="that machine has no battery, thermal or frequency sensors; macOS untested",
    )

    def version_argv(self) -> Sequence[str]:
        return ("uname", "-srm")

    def version(self) -> str | None:
        from workbench.errors import NativeError
        from workbench.native_paths import runner

        try:
            runner()
        except NativeError:
            return None
        return f"workbench, {platform.system()} {platform.machine()}"

    def attached(self) -> list[str]:
        return ["this machine"]

    def probe(self) -> Facts:
        from workbench.ablation.store import machine_id

        return Facts(
            name=f"{platform.system()}-{platform.machine()}".lower(),
            os=f"{platform.system()} {platform.release()}",
            machine=platform.machine(),
            n_cpu=os.cpu_count(),
            memory_bytes=psutil.virtual_memory().total,
            cpu=machine_id()["cpu"],
            secrets=tuple({platform.node(), *_user(), str(Path.home())} - {"", "/"}),
        )

    def build_id(self) -> str:
        from workbench.ablation.store import build_id

        return build_id()

    def blob(self, sha256: str, name: str) -> str:
        return name

    def output(self, name: str) -> str:
        return name

    def push_argv(self, local: Path | str, remote: str) -> Sequence[str]:
        return ()

    def pull_argv(self, remote: str, local: Path | str) -> Sequence[str]:
        return ()

    def launch_argv(self, job: str) -> Sequence[str]:
        return ("les-run", job)

    def push(self, local: Path, sha256: str) -> int:
        return 0

    def pull(self, remote: str, local: Path) -> None:
        return

    def run(self, job: Mapping[str, Any], *, on_line: Callable[[str], None], timeout: float | None = None) -> Finished:
        raise NotImplementedError("local runs are made by run_native")

    def sample(self) -> Sample:
        said = self.run_tool(("sh", "-c", sysfs.command()), timeout=LIST_TIMEOUT_S)
        sample = sysfs.parse(said.lines, self.name)
        return sample if sample.memory_bytes is not None else replace(sample, memory_bytes=_runner_bytes())

    def inquiries(self) -> list[Sequence[str]]:
        return [self.version_argv(), ("sh", "-c", sysfs.command())]


def _user() -> set[str]:
    import getpass

    try:
        return {getpass.getuser()}
    except (KeyError, OSError):
        return set()


def _runner_bytes() -> int | None:
    """Resident memory of the runner that this process started; None when none runs."""
    for child in psutil.Process().children(recursive=True):
        try:
            if child.name() == "les-run":
                return int(child.memory_info().rss)
        except psutil.Error:
            continue
    return None
