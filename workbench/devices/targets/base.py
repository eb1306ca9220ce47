"""What every device target can do; a new one is one file with these methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from workbench.devices.process import Call, Finished, call
from workbench.devices.samples import Sample

HARDWARE, FAKE_PEER, TRANSCRIPT, NONE = "hardware", "fake-peer", "transcript", "none"
VERSION_TIMEOUT_S = 90.0
LIST_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Verified:
    """How far a target has been tried: `hardware`, `fake-peer` (the real tool against a stand-in for the device),
    `transcript` (the tool's words only) or `none`; when, and with which tool.

    `limits` says what that level does not cover.
    """

    level: str
    date: str
    tool: str
    limits: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a device says about itself.

    Attributes
    ----------
    name : str
        The kind of device, such as `linux-aarch64` or `iPhone17,1`: never the owner's name for it.
    secrets : tuple of str
        Serial numbers, names of owner, host and user: scrubbed from everything recorded, never recorded themselves.
    """

    name: str
    os: str
    machine: str
    n_cpu: int | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    cpu: str | None = None
    secrets: tuple[str, ...] = ()

    def public(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key not in ("secrets", "free_bytes")}


@dataclass(kw_only=True)
class Target(ABC):
    """A way to reach a device.

    Attributes
    ----------
    device : str
        Which one, when there are several: serial number, UDID, host.
    runner_path : Path or None
        The device's `les-run`, pushed before the first run.
    run_tool : callable
        Runs the tool's commands: `process.call`, or a transcript.
    """

    name: ClassVar[str]
    tool: ClassVar[str]
    about: ClassVar[str]
    transfers: ClassVar[str]
    verified: ClassVar[Verified]
    needs_device: ClassVar[bool] = False
    clock_is_ours: ClassVar[bool] = False

    device: str = ""
    runner_path: Path | None = None
    config: Path | None = None
    bundle: str = ""
    run_tool: Call = field(default=call)

    @abstractmethod
    def version_argv(self) -> Sequence[str]:
        """Prints the tool's version."""

    def version(self) -> str | None:
        """The tool's version; None when it is not installed."""
        said = self.run_tool(self.version_argv(), timeout=VERSION_TIMEOUT_S)
        return said.text.strip().splitlines()[0].strip() if said.rc == 0 and said.text.strip() else None

    def attached(self) -> list[str]:
        """Devices the tool sees now."""
        return []

    @abstractmethod
    def probe(self) -> Facts:
        """Ask the device what it is.

        Raises
        ------
        DeviceError
            When it does not answer; the kind says why.
        """

    @abstractmethod
    def build_id(self) -> str:
        """What identifies the runner there, 16 hex digits or a version."""

    @abstractmethod
    def blob(self, sha256: str, name: str) -> str:
        """Where a file of that content lies on the device."""

    @abstractmethod
    def push_argv(self, local: Path | str, remote: str) -> Sequence[str]:
        """Copies a file to the device."""

    @abstractmethod
    def pull_argv(self, remote: str, local: Path | str) -> Sequence[str]:
        """Copies a file from the device."""

    @abstractmethod
    def launch_argv(self, job: str) -> Sequence[str]:
        """Starts the runner on a job that lies on the device; records come on standard output."""

    @abstractmethod
    def push(self, local: Path, sha256: str) -> int:
        """Bring a file there unless it is there already; returns the bytes sent."""

    @abstractmethod
    def pull(self, remote: str, local: Path) -> None:
        """Fetch a file."""

    @abstractmethod
    def run(self, job: Mapping[str, Any], *, on_line: Callable[[str], None], timeout: float | None = None) -> Finished:
        """Run a job (paths are those on the device) to its end."""

    @abstractmethod
    def output(self, name: str) -> str:
        """Where a file that the runner writes lies on the device."""

    @abstractmethod
    def sample(self) -> Sample:
        """Look at the device's sensors."""

    @abstractmethod
    def inquiries(self) -> list[Sequence[str]]:
        """Commands that only read: what `device doctor` records."""

    def forget(self, remote: str) -> None:  # noqa: B027 (nothing to do is a fine default)
        """Delete a file that a run left behind; best effort."""

    def left_behind(self) -> list[str]:
        """Recordings that lie on the device."""
        return []

    def close(self) -> None:  # noqa: B027
        """End what was kept open."""
