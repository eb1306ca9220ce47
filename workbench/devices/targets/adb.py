"""Android, through `adb`: from /data/local/tmp, where binaries run and O_DIRECT is real (not so on /sdcard)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.devices.targets.base import FAKE_PEER, LIST_TIMEOUT_S, Verified
from workbench.devices.targets.shell import ShellTarget


@dataclass(kw_only=True)
class AdbTarget(ShellTarget):
    """`adb push`, `pull` and `shell` (which passes exit statuses on since Android 7).

    `adb push` cannot resume: a transfer that was cut starts again; one that is there is never sent twice.
    """

    name = "adb"
    tool = "adb"
    about = "Android over USB or network: --target adb[:SERIAL]"
    transfers = "start again when cut, checked by SHA-256"
    folder = "/data/local/tmp/les"
    verified = Verified(
        level=FAKE_PEER,
        date="2026-11-30",
        tool="adb 1.0.41 (29.0.6-debian) with a small adbd on loopback",
        limits="tests the driver, not Android: sensors, flash speed and thermal limits were never read on a phone",
    )

    def _adb(self) -> tuple[str, ...]:
        return ("adb", "-s", self.device) if self.device else ("adb",)

    def version_argv(self) -> Sequence[str]:
        return ("adb", "version")

    def attached(self) -> list[str]:
        listed = self.run_tool(("adb", "devices"), timeout=LIST_TIMEOUT_S)
        rows = [line.split("\t") for line in listed.lines if "\t" in line]
        return [row[0] if row[1].strip() == "device" else f"{row[0]} ({row[1].strip()})" for row in rows]

    def shell_argv(self, command: str) -> Sequence[str]:
        return (*self._adb(), "shell", command)

    def push_argv(self, local: Path | str, remote: str) -> Sequence[str]:
        return (*self._adb(), "push", str(local), remote)

    def pull_argv(self, remote: str, local: Path | str) -> Sequence[str]:
        return (*self._adb(), "pull", remote, str(local))

    def inquiries(self) -> list[Sequence[str]]:
        return [*super().inquiries(), ("adb", "devices", "-l"), self.shell_argv("cmd thermalservice headroom 10")]
