"""How a run on a device can end badly, told from what the tools say and how the runner exited."""

from __future__ import annotations

import re

from workbench.devices.process import NOT_FOUND, Finished
from workbench.errors import RunError

NO_TOOL = "tool not installed"
LOST = "connection lost"
LOCKED = "device locked"
NOT_TRUSTED = "not authorized"
MEMORY = "killed for memory"
THERMAL = "thermal shutdown"
DISK = "device disk full"
TIMED_OUT = "timed out"
FAILED = "failed"
GONE = (NO_TOOL, LOST, LOCKED, NOT_TRUSTED, THERMAL)
"""Kinds after which other runs are only tried once the device answers again."""
HOT = ("critical", "emergency", "shutdown", "serious")
"""Thermal states in which a device that vanishes most likely switched itself off."""

_SAYINGS = (
    (LOCKED, r"could not be,? unlocked|device (is|was) locked|PasswordRequired|passcode protected|reason: Locked"),
    (NOT_TRUSTED, r"device unauthorized|Permission denied \(|Host key verification failed|NotPaired|not paired|"
                  r"has no pair record|UserDeniedPairing|Unauthorized|E000004"),
    (MEMORY, r"jetsam|memory pressure|per-process-limit|Terminated due to memory|lowmemorykiller|Out of memory"),
    (THERMAL, r"thermal (shutdown|emergency)|Shutdown due to (over)?heat"),
    (DISK, r"No space left|insufficient (free )?space|not enough (free )?space"),
    (LOST, r"Connection (closed|reset|refused|timed out|terminated)|ConnectionTerminated|Broken pipe|"
           r"Could not resolve hostname|No route to host|Network is unreachable|device offline|"
           r"device '.*' not found|device not found|no devices|failed to (copy|read copy response|stat)|protocol fault|"
           r"closed by remote|lost connection|Device is not connected|Device ?Not ?Found|No device found|"
           r"ConnectionFailed|Failed to connect to usbmuxd|"
           r"was disconnected|connect-key|Not match target|unexpected EOF"),
)  # fmt: skip
_ADVICE = {
    NO_TOOL: "install it, then `workbench device list`",
    LOST: "check cable or network; the same command goes on from here",
    LOCKED: "unlock it and keep it awake; the same command goes on from here",
    NOT_TRUSTED: "confirm this computer on the device (or add its key), then run the same command again",
    MEMORY: "lower cache_slots or n_ctx, or use a build with a higher memory limit",
    THERMAL: "let it cool down; the same command goes on from here",
    DISK: "free some space on the device",
}


class DeviceError(RunError):
    """A device did not do what was asked.

    Attributes
    ----------
    kind : str
        One of the kinds above; it is kept with the rung that failed.
    """

    def __init__(self, kind: str, detail: str) -> None:
        advice = f" ({_ADVICE[kind]})" if kind in _ADVICE else ""
        super().__init__(f"{kind}: {detail}{advice}")
        self.kind = kind


def classify(finished: Finished, *, thermal: str | None = None) -> str:
    """The kind of failure of a command.

    Parameters
    ----------
    thermal
        The device's last known thermal state: one that vanishes while hot has most likely switched itself off.
    """
    if finished.timed_out:
        return TIMED_OUT
    if finished.rc == NOT_FOUND and not finished.lines and "No such file" in finished.err:
        return NO_TOOL
    kind = next((kind for kind, saying in _SAYINGS if re.search(saying, finished.text, re.IGNORECASE)), None)
    if kind is None and finished.rc in (137, -9):
        kind = MEMORY
    if kind is None and finished.rc == 255:  # the ssh client's own
        kind = LOST
    if kind == LOST and thermal in HOT:
        return THERMAL
    return kind or FAILED


def error_of(finished: Finished, doing: str, *, thermal: str | None = None) -> DeviceError:
    """The error for a command that failed: its kind, and the last line it said."""
    said = [line.strip() for line in finished.text.splitlines() if line.strip() and not line.startswith('{"t":')]
    detail = said[-1] if said else f"exit status {finished.rc} and no message"
    return DeviceError(classify(finished, thermal=thermal), f"{doing}: {detail}")
