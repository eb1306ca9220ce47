"""iOS from a Mac with Xcode, through `xcrun devicectl`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.devices.failures import FAILED, LOST, DeviceError, error_of
from workbench.devices.process import Finished
from workbench.devices.samples import Sample
from workbench.devices.targets.app import AppTarget
from workbench.devices.targets.base import LIST_TIMEOUT_S, TRANSCRIPT, Facts, Verified


@dataclass(kw_only=True)
class DevicectlTarget(AppTarget):
    """The tool reads no sensors: power needs an external meter, thermal state and memory come from the app."""

    name = "devicectl"
    tool = "xcrun"
    about = "iPhone, iPad from a Mac with Xcode: --target devicectl[:ID]"
    transfers = "start again when cut, marked when complete"
    verified = Verified(
        level=TRANSCRIPT,
        date="2026-11-30",
        tool="no Xcode at hand",
        limits="transcripts written from the tool's documentation, not recorded; never run",
    )

    def version_argv(self) -> Sequence[str]:
        return ("xcrun", "devicectl", "--version")

    def _listed(self) -> tuple[Finished, list[dict[str, Any]]]:
        with tempfile.TemporaryDirectory(prefix="les-devicectl-") as scratch:
            path = Path(scratch) / "devices.json"
            asked = self.run_tool(
                ("xcrun", "devicectl", "list", "devices", "--json-output", str(path)), timeout=LIST_TIMEOUT_S
            )
            try:
                return asked, list(json.loads(path.read_text(encoding="utf-8"))["result"]["devices"])
            except (OSError, ValueError, KeyError, TypeError):
                return asked, []

    def attached(self) -> list[str]:
        return [str(item.get("identifier")) for item in self._listed()[1]]

    def probe(self) -> Facts:
        asked, devices = self._listed()
        if asked.rc != 0:
            raise error_of(asked, "asking the device what it is")
        chosen = [d for d in devices if not self.device or self.device == d.get("identifier")]
        if len(chosen) != 1:
            kind = LOST if not chosen else FAILED
            raise DeviceError(kind, f"{len(chosen)} devices fit; name one with --target devicectl:ID")
        hardware, device = chosen[0].get("hardwareProperties", {}), chosen[0].get("deviceProperties", {})
        private = (chosen[0].get("identifier"), device.get("name"), hardware.get("udid"), hardware.get("serialNumber"))
        return Facts(
            name=str(hardware.get("productType", "ios")),
            os=f"iOS {device.get('osVersionNumber', '')}".strip(),
            machine=str(hardware.get("cpuType", {}).get("name", "arm64")),
            cpu=hardware.get("platform"),
            secrets=tuple(str(value) for value in (*private, hardware.get("ecid")) if value),
        )

    def _container(self) -> tuple[str, ...]:
        return ("--domain-type", "appDataContainer", "--domain-identifier", self._bundle())

    def push_argv(self, local: Path | str, remote: str) -> Sequence[str]:
        copy = ("xcrun", "devicectl", "device", "copy", "to", "--device", self.device, *self._container())
        return (*copy, "--source", str(local), "--destination", f"Documents/{remote}")

    def pull_argv(self, remote: str, local: Path | str) -> Sequence[str]:
        copy = ("xcrun", "devicectl", "device", "copy", "from", "--device", self.device, *self._container())
        return (*copy, "--source", f"Documents/{remote}", "--destination", str(local))

    def launch_argv(self, job: str) -> Sequence[str]:
        start = ("xcrun", "devicectl", "device", "process", "launch", "--device", self.device)
        return (*start, "--terminate-existing", "--console", self._bundle(), "--", "--job", job)

    def sample(self) -> Sample:
        return Sample(source=self.name)

    def inquiries(self) -> list[Sequence[str]]:
        return [self.version_argv(), ("xcrun", "devicectl", "list", "devices")]
