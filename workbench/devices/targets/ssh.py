"""Any machine with an SSH server and a POSIX shell: boards, laptops, phones with a terminal."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.devices.failures import error_of
from workbench.devices.targets.base import FAKE_PEER, LIST_TIMEOUT_S, Verified
from workbench.devices.targets.shell import ShellTarget


@dataclass(kw_only=True)
class SshTarget(ShellTarget):
    """The OpenSSH client's `ssh`, `scp` and `sftp`, one shared connection, never asking for a password.

    A push that was cut goes on where it stopped (`sftp` reput), and the whole is checked by SHA-256.
    """

    name = "ssh"
    tool = "ssh"
    about = "Linux or macOS over SSH: --target ssh:HOST"
    transfers = "resumed where they were cut, checked by SHA-256"
    needs_device = True
    folder = "les-workbench"
    verified = Verified(
        level=FAKE_PEER,
        date="2026-11-30",
        tool="OpenSSH 9.2p1 with asyncssh 2.24 on loopback",
        limits="no other machine was reached; a macOS server untested",
    )

    _control: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def _options(self) -> list[str]:
        if self._control is None:
            self._control = tempfile.TemporaryDirectory(prefix="les-ssh-")
        options = ["-F", str(self.config)] if self.config else []
        options += ["-o", "BatchMode=yes", "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"]
        options += ["-o", "ControlMaster=auto", "-o", f"ControlPath={self._control.name}/%C", "-o", "ControlPersist=60"]
        return options

    def version_argv(self) -> Sequence[str]:
        return ("ssh", "-V")

    def shell_argv(self, command: str) -> Sequence[str]:
        return ("ssh", *self._options(), self.device, f"sh -c {shlex.quote(command)}")

    def push_argv(self, local: Path | str, remote: str) -> Sequence[str]:
        return ("scp", *self._options(), str(local), f"{self.device}:{remote}")

    def pull_argv(self, remote: str, local: Path | str) -> Sequence[str]:
        return ("scp", *self._options(), f"{self.device}:{remote}", str(local))

    def transfer(self, local: Path, remote: str, size: int) -> int:
        there = self.size(remote) or 0
        if not 0 < there < size:
            return super().transfer(local, remote, size)
        argv = ("sftp", "-b", "-", *self._options(), self.device)
        finished = self.run_tool(argv, stdin=f'reput "{local}" "{remote}"\n')
        if finished.rc != 0:
            raise error_of(finished, f"pushing {local.name}")
        return size - there

    def close(self) -> None:
        if self._control is not None:
            self.run_tool(("ssh", *self._options(), "-O", "exit", self.device), timeout=LIST_TIMEOUT_S)
            self._control.cleanup()
            self._control = None
