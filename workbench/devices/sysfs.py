"""Sensors of Linux and Android as files: one `grep` reads them all, one function understands them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from workbench.devices.samples import Sample

_PATTERNS = (
    "/sys/class/power_supply/*/type",
    "/sys/class/power_supply/*/status",
    "/sys/class/power_supply/*/power_now",
    "/sys/class/power_supply/*/current_now",
    "/sys/class/power_supply/*/voltage_now",
    "/sys/class/power_supply/*/temp",
    "/sys/class/thermal/thermal_zone*/type",
    "/sys/class/thermal/thermal_zone*/temp",
    "/sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq",
)
ANDROID_THERMAL = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")


def command(root: str = "") -> str:
    """A POSIX shell command that prints `path:value` lines, and `VmRSS` of the runner."""
    files = " ".join(shlex.quote(root) + pattern if root else pattern for pattern in _PATTERNS)
    return (
        f"grep -sH . {files} /dev/null; "
        "for p in $(pidof les-run 2>/dev/null); do grep -s VmRSS /proc/$p/status; done; "
        "command -v dumpsys >/dev/null 2>&1 && { dumpsys battery; dumpsys thermalservice; } 2>/dev/null; true"
    )


def parse(lines: Iterable[str], source: str) -> Sample:
    """Understand what `command` printed; what is not there stays None."""
    lines = list(lines)
    files = dict(re.findall(r"^(/.*/(?:power_supply|thermal|cpu\d+)/\S+?):(.*)$", "\n".join(lines), re.MULTILINE))
    battery = _battery(files)
    zone = next(
        (p.rpartition("/")[0] for p, v in files.items() if re.search(r"thermal_zone\d+/type$", p) and "batt" in v), ""
    )
    temperature = _number(battery.get("temp"), 0.1) or _number(files.get(f"{zone}/temp"), 1e-3)
    freqs = [int(v) for p, v in files.items() if p.endswith("scaling_cur_freq") and v.isdigit()]
    said = "\n".join(lines)
    rss = [int(kb) for kb in re.findall(r"^VmRSS:\s+(\d+) kB", said, re.MULTILINE)]
    if temperature is None and (found := re.search(r"^\s*temperature: (-?\d+)$", said, re.MULTILINE)):
        temperature = int(found[1]) / 10
    state = re.search(r"Thermal Status: (\d+)", said)
    return Sample(
        source=source,
        power_w=_power(battery),
        battery_temp_c=temperature,
        thermal_state=ANDROID_THERMAL[min(int(state[1]), len(ANDROID_THERMAL) - 1)] if state else None,
        freq_hz=max(freqs) * 1000 if freqs else None,
        memory_bytes=max(rss) * 1024 if rss else None,
    )


def _battery(files: dict[str, str]) -> dict[str, str]:
    """The values of the first power supply that is a battery."""
    for path, kind in files.items():
        if path.endswith("/type") and "/power_supply/" in path and kind == "Battery":
            folder = path.removesuffix("type")
            return {p.removeprefix(folder): v for p, v in files.items() if p.startswith(folder)}
    return {}


def _power(battery: dict[str, str]) -> float | None:
    """Watts drawn; µW, µA and µV as the kernel documents them."""
    if battery.get("status") != "Discharging":
        return None
    direct = _number(battery.get("power_now"), 1e-6)
    if direct is not None:
        return abs(direct)
    current, voltage = _number(battery.get("current_now"), 1e-6), _number(battery.get("voltage_now"), 1e-6)
    return None if current is None or voltage is None else abs(current * voltage)


def _number(text: str | None, scale: float) -> float | None:
    try:
        return None if text is None else round(float(text) * scale, 6)
    except ValueError:
        return None
