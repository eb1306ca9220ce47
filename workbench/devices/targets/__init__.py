"""The targets: one file each, one entry here."""

from __future__ import annotations

from pathlib import Path

from workbench.devices.targets.adb import AdbTarget
from workbench.devices.targets.base import Target
from workbench.devices.targets.devicectl import DevicectlTarget
from workbench.devices.targets.hdc import HdcTarget
from workbench.devices.targets.ios import IosTarget
from workbench.devices.targets.local import LocalTarget
from workbench.devices.targets.ssh import SshTarget
from workbench.errors import WorkbenchError

TARGETS: dict[str, type[Target]] = {
    kind.name: kind for kind in (LocalTarget, SshTarget, AdbTarget, HdcTarget, IosTarget, DevicectlTarget)
}


def target_of(spec: str, *, runner: Path | None = None, ssh_config: Path | None = None, bundle: str = "") -> Target:
    """The target of `--target NAME` or `NAME:DEVICE`.

    Raises
    ------
    WorkbenchError
        When there is no such target, or it needs a device to be named.
    """
    name, _, device = spec.partition(":")
    if name not in TARGETS:
        raise WorkbenchError(f"--target {spec}: no such target; there are {', '.join(TARGETS)}")
    kind = TARGETS[name]
    if kind.needs_device and not device:
        raise WorkbenchError(f"--target {spec}: name the device, as in {name}:HOST")
    return kind(device=device, runner_path=runner, config=ssh_config, bundle=bundle)
