"""HarmonyOS, through `hdc`. Experimental: whether it lets pushed binaries run is disputed, so they are tried first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.devices.process import Finished
from workbench.devices.targets.base import LIST_TIMEOUT_S, TRANSCRIPT, Verified
from workbench.devices.targets.shell import ShellTarget

_RC = re.compile(r"^__RC=(\d+)$")


@dataclass(kw_only=True)
class HdcTarget(ShellTarget):
    """`hdc file send`, `file recv` and `shell`, which hides exit statuses: the command prints its own at the end.

    `hdc file send` cannot resume: a transfer that was cut starts again.
    """

    name = "hdc"
    tool = "hdc"
    about = "HarmonyOS, experimental: --target hdc[:KEY]"
    transfers = "start again when cut, checked by SHA-256 or size"
    folder = "/data/local/tmp/les"
    verified = Verified(
        level=TRANSCRIPT,
        date="2026-11-30",
        tool="no hdc at hand",
        limits="transcripts written from the tool's documentation, not recorded; never run",
    )

    def _hdc(self) -> tuple[str, ...]:
        return ("hdc", "-t", self.device) if self.device else ("hdc",)

    def version_argv(self) -> Sequence[str]:
        return ("hdc", "-v")

    def attached(self) -> list[str]:
        listed = self.run_tool(("hdc", "list", "targets"), timeout=LIST_TIMEOUT_S)
        return [line.strip() for line in listed.lines if line.strip() and "[Empty]" not in line]

    def shell_argv(self, command: str) -> Sequence[str]:
        return (*self._hdc(), "shell", f"({command}); echo __RC=$?")

    def finish(self, finished: Finished) -> Finished:
        found = [(i, m) for i, line in enumerate(finished.lines) if (m := _RC.match(line.strip()))]
        if not found:  # the shell was cut before it could say
            return replace(finished, rc=finished.rc or 1)
        index, match = found[-1]
        return replace(finished, rc=int(match[1]), lines=finished.lines[:index] + finished.lines[index + 1 :])

    def push_argv(self, local: Path | str, remote: str) -> Sequence[str]:
        return (*self._hdc(), "file", "send", str(local), remote)

    def pull_argv(self, remote: str, local: Path | str) -> Sequence[str]:
        return (*self._hdc(), "file", "recv", remote, str(local))
