"""iOS from Linux or macOS, through `pymobiledevice3` (a command; GPL-3, so it is never imported)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.devices.failures import FAILED, DeviceError, error_of
from workbench.devices.samples import Sample
from workbench.devices.targets.app import AppTarget
from workbench.devices.targets.base import FAKE_PEER, LIST_TIMEOUT_S, Facts, Verified

_PRIVATE = (
    "DeviceName", "UniqueDeviceID", "SerialNumber", "InternationalMobileEquipmentIdentity", "PhoneNumber",
    "WiFiAddress", "BluetoothAddress", "EthernetAddress", "UniqueChipID", "MobileEquipmentIdentifier",
    "IntegratedCircuitCardIdentity", "MLBSerialNumber",
)  # fmt: skip


@dataclass(kw_only=True)
class IosTarget(AppTarget):
    """Install it yourself (`uv tool install pymobiledevice3`). No root tunnel is needed from iOS 17.4 on."""

    name = "ios"
    tool = "pymobiledevice3"
    about = "iPhone, iPad from Linux or macOS: --target ios[:UDID]"
    transfers = "start again when cut, marked when complete"
    verified = Verified(
        level=FAKE_PEER,
        date="2026-11-30",
        tool="pymobiledevice3 11.45 with a stand-in for usbmuxd",
        limits="only listing devices was tried with the tool; push, launch, sensors: options checked, never run",
    )

    def _device(self) -> tuple[str, ...]:
        return ("--udid", self.device) if self.device else ()

    def version_argv(self) -> Sequence[str]:
        return ("pymobiledevice3", "version")

    def attached(self) -> list[str]:
        listed = self.run_tool(("pymobiledevice3", "usbmux", "list", "--simple"), timeout=LIST_TIMEOUT_S)
        try:
            found = json.loads(listed.out)
        except ValueError:
            return []
        return [str(item) for item in found]

    def probe(self) -> Facts:
        asked = self.run_tool(("pymobiledevice3", "lockdown", "info", *self._device()), timeout=LIST_TIMEOUT_S)
        if asked.rc != 0:
            raise error_of(asked, "asking the device what it is")
        try:
            said: dict[str, Any] = json.loads(asked.out)
        except ValueError:
            raise DeviceError(FAILED, "asking the device what it is: the answer is not JSON") from None
        return Facts(
            name=str(said.get("ProductType", "ios")),
            os=f"iOS {said.get('ProductVersion', '')}".strip(),
            machine=str(said.get("CPUArchitecture", "arm64")),
            cpu=said.get("HardwarePlatform"),
            secrets=tuple(str(said[key]) for key in _PRIVATE if said.get(key)),
        )

    def push_argv(self, local: Path | str, remote: str) -> Sequence[str]:
        return ("pymobiledevice3", "apps", "push", "--documents", *self._device(), self._bundle(), str(local), remote)

    def pull_argv(self, remote: str, local: Path | str) -> Sequence[str]:
        return ("pymobiledevice3", "apps", "pull", "--documents", *self._device(), self._bundle(), remote, str(local))

    def launch_argv(self, job: str) -> Sequence[str]:
        start = ("pymobiledevice3", "developer", "core-device", "launch-application", "--userspace", *self._device())
        return (*start, "--console", self._bundle(), "--", "--job", job)

    def sample(self) -> Sample:
        """Battery power and temperature; thermal state and memory come with the app's own records."""
        asked = self.run_tool(
            ("pymobiledevice3", "diagnostics", "battery", "single", *self._device()), timeout=LIST_TIMEOUT_S
        )
        if asked.rc != 0:
            raise error_of(asked, "reading the battery")
        said = json.loads(asked.out)
        current, voltage, warmth = (said.get(k) for k in ("InstantAmperage", "Voltage", "Temperature"))
        charging = bool(said.get("IsCharging") or said.get("ExternalConnected"))
        known = isinstance(current, int) and isinstance(voltage, int) and not charging
        return Sample(
            source=self.name,
            power_w=abs(current * voltage) / 1e6 if known else None,  # mA × mV
            battery_temp_c=warmth / 100 if isinstance(warmth, int) else None,
        )

    def inquiries(self) -> list[Sequence[str]]:
        return [
            self.version_argv(),
            ("pymobiledevice3", "usbmux", "list"),
            ("pymobiledevice3", "lockdown", "info", *self._device()),
            ("pymobiledevice3", "diagnostics", "battery", "single", *self._device()),
        ]
