"""Devices with a POSIX shell: content-addressed push, launch with exit status, sensors as files."""

from __future__ import annotations

import json
import shlex
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from workbench.devices import sysfs
from workbench.devices.failures import DISK, FAILED, DeviceError, error_of
from workbench.devices.process import Finished
from workbench.devices.samples import Sample
from workbench.devices.targets.base import LIST_TIMEOUT_S, Facts, Target
from workbench.errors import WorkbenchError
from workbench.runner import file_sha256

_PROBE = (
    "uname -s; uname -m; uname -r; nproc 2>/dev/null || sysctl -n hw.ncpu; "
    "echo host=$(hostname 2>/dev/null); echo user=$(id -un 2>/dev/null); echo home=$HOME; "
    "grep -m1 -s MemTotal /proc/meminfo; grep -m1 -s 'model name' /proc/cpuinfo; "
    "command -v getprop >/dev/null 2>&1 && { echo model=$(getprop ro.product.model); "
    "echo serial=$(getprop ro.serialno); }; true"
)
_STALE = "p=$(cat run.pid 2>/dev/null) && grep -qs les-run /proc/$p/cmdline && kill -TERM $p; "
_SPIN = "10000"


@dataclass(kw_only=True)
class ShellTarget(Target):
    """A device reached through a shell; subclasses say how one command and one file get there."""

    folder: ClassVar[str]

    _there: set[str] = field(default_factory=set, repr=False)

    @abstractmethod
    def shell_argv(self, command: str) -> Sequence[str]:
        """Runs a shell command on the device."""

    def shell(self, command: str, *, doing: str, timeout: float | None = LIST_TIMEOUT_S) -> Finished:
        """Run a shell command that must succeed.

        Raises
        ------
        DeviceError
        """
        finished = self.finish(self.run_tool(self.shell_argv(command), timeout=timeout))
        if finished.rc != 0:
            raise error_of(finished, doing)
        return finished

    def finish(self, finished: Finished) -> Finished:
        """The command's own exit status, where the tool hides it."""
        return finished

    def probe(self) -> Facts:
        self._there.clear()
        lines = self.shell(_PROBE, doing="asking the device what it is").lines
        if len(lines) < 4:
            raise DeviceError(FAILED, f"asking the device what it is: {' '.join(lines) or 'it said nothing'}")
        system, machine, release, cores = (line.strip() for line in lines[:4])
        said = dict(line.split("=", 1) for line in lines[4:] if "=" in line and ":" not in line.split("=", 1)[0])
        memory = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), None)
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
        free = self.run_tool(
            self.shell_argv(f"mkdir -p {self.folder}/out && df -Pk {self.folder}"), timeout=LIST_TIMEOUT_S
        )
        last = free.lines[-1].split() if free.rc == 0 and free.lines else []
        private = {said.get(key, "") for key in ("host", "user", "home", "serial")} | {self.device}
        name = said.get("model") or f"{system}-{machine}".lower()
        return Facts(
            name=name, os=f"{system} {release}", machine=machine, n_cpu=int(cores) if cores.isdigit() else None,
            memory_bytes=memory, free_bytes=int(last[3]) * 1024 if len(last) > 3 and last[3].isdigit() else None,
            cpu=cpu, secrets=tuple(sorted(private - {""})),
        )  # fmt: skip

    def build_id(self) -> str:
        return file_sha256(self._runner())[:16]

    def _runner(self) -> Path:
        if self.runner_path is None or not self.runner_path.is_file():
            named = f"{self.runner_path}: no such file" if self.runner_path else "no runner for the device"
            raise WorkbenchError(f"{named}; build it for its platform and give it with --runner FILE")
        return self.runner_path

    def blob(self, sha256: str, name: str) -> str:
        return f"{self.folder}/blobs/{sha256}/{name}"

    def output(self, name: str) -> str:
        return f"{self.folder}/out/{name}"

    def _arrived(self, local: Path, remote: str) -> bool:
        check = f"s=$(sha256sum {shlex.quote(remote)} 2>/dev/null) && echo ${{s%% *}} || true"
        digest = self.shell(check, doing=f"checking {local.name}", timeout=None).out.strip()
        return digest == file_sha256(local) if digest else self.size(remote) == local.stat().st_size

    def push(self, local: Path, sha256: str) -> int:
        """Send the file under its hash unless it is there; checked by SHA-256 (else by size) before it gets its name.

        Raises
        ------
        DeviceError
            When the device is gone or its disk is full; what was sent stays as NAME.partial.
        """
        remote, size = self.blob(sha256, local.name), local.stat().st_size
        if remote in self._there or self.size(remote) == size:
            self._there.add(remote)
            return 0
        at, partial = shlex.quote(remote), f"{remote}.partial"
        self.shell(f"mkdir -p {shlex.quote(str(Path(remote).parent))}", doing=f"pushing {local.name}")
        sent = self.transfer(local, partial, size)
        arrived = self._arrived(local, partial)
        if not arrived:
            self.forget(partial)
            if sent < size:  # it went on from a part that was damaged when the connection broke
                sent += self.transfer(local, partial, size)
                arrived = self._arrived(local, partial)
        if not arrived:
            self.forget(partial)
            raise DeviceError(FAILED, f"pushing {local.name}: it arrived damaged and was deleted; push again")
        self.shell(f"mv {shlex.quote(partial)} {at}", doing=f"pushing {local.name}")
        self._there.add(remote)
        return sent

    def transfer(self, local: Path, remote: str, size: int) -> int:
        """Copy a whole file; a tool that can go on with a partial one does better."""
        self._room(size, local)
        finished = self.run_tool(self.push_argv(local, remote))
        if finished.rc != 0:
            raise error_of(finished, f"pushing {local.name}")
        return size

    def _room(self, size: int, local: Path) -> None:
        free = self.probe().free_bytes if size > 1 << 26 else None
        if free is not None and free < size:
            raise DeviceError(DISK, f"pushing {local.name}: {size / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free")

    def size(self, remote: str) -> int | None:
        """Bytes of a file on the device, None when it is not there."""
        at = shlex.quote(remote)
        said = self.shell(f"[ -f {at} ] && wc -c < {at} || echo none", doing="looking for files").out.strip()
        return int(said) if said.isdigit() else None

    def pull(self, remote: str, local: Path) -> None:
        finished = self.run_tool(self.pull_argv(remote, local))
        if finished.rc != 0:
            raise error_of(finished, f"pulling {Path(remote).name}")

    def forget(self, remote: str) -> None:
        self.run_tool(self.shell_argv(f"rm -f {shlex.quote(remote)}"), timeout=LIST_TIMEOUT_S)

    def left_behind(self) -> list[str]:
        listed = self.shell(f"ls {self.folder}/out/*.jsonl 2>/dev/null || true", doing="looking for recordings")
        return [line.strip() for line in listed.lines if line.strip().endswith(".jsonl")]

    def launch_argv(self, job: str) -> Sequence[str]:
        runner = self._runner()
        binary = self.blob(file_sha256(runner), runner.name)
        # in the background with its process id kept, so that it can be ended later and its exit status is its own
        start = f"GOMP_SPINCOUNT={_SPIN} {shlex.quote(binary)} {shlex.quote(job)} & p=$!"
        keep = f"echo $p > {self.folder}/run.pid; wait $p; rc=$?; rm -f {self.folder}/run.pid; exit $rc"
        stale = _STALE.replace("run.pid", f"{self.folder}/run.pid")
        return self.shell_argv(f"{stale}{start}; {keep}")

    def run(self, job: Mapping[str, Any], *, on_line: Callable[[str], None], timeout: float | None = None) -> Finished:
        runner = self._runner()
        if self.push(runner, file_sha256(runner)):
            binary = shlex.quote(self.blob(file_sha256(runner), runner.name))
            self.shell(f"chmod 755 {binary}", doing="making the runner executable")
        with tempfile.TemporaryDirectory(prefix="les-job-") as scratch:
            local = Path(scratch) / f"{job['run_id']}.json"
            local.write_text(json.dumps(job), encoding="utf-8")
            remote = self.output(local.name)
            finished = self.run_tool(self.push_argv(local, remote))
            if finished.rc != 0:
                raise error_of(finished, "pushing the job")
        try:
            finished = self.finish(self.run_tool(self.launch_argv(remote), on_line=on_line, timeout=timeout))
        except KeyboardInterrupt:
            self.end()
            raise
        if finished.timed_out:
            self.end()
        self.forget(remote)
        return finished

    def end(self) -> None:
        """End the run on the device."""
        self.run_tool(
            self.shell_argv(_STALE.replace("run.pid", f"{self.folder}/run.pid") + "true"), timeout=LIST_TIMEOUT_S
        )

    def sample(self) -> Sample:
        return sysfs.parse(self.shell(sysfs.command(), doing="reading the sensors").lines, self.name)

    def inquiries(self) -> list[Sequence[str]]:
        return [self.version_argv(), self.shell_argv(_PROBE), self.shell_argv(sysfs.command())]
