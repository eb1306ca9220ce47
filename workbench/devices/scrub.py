"""What must not be in a recorded run: serial numbers, names of people, hosts and users, folders, addresses."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError

FREE_TEXT = ("prompts", "text")
"""Keys whose text is that of the suite or the model, not of a machine."""

_EVERYBODY = {
    "root", "user", "users", "admin", "administrator", "shell", "mobile", "localhost", "home", "runner", "system",
    "android", "iphone", "ipad", "linux", "debian", "ubuntu", "default", "none", "null", "true", "false",
}  # fmt: skip
_PATTERNS = (
    (re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)*"), "<address>"),
    (re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"), "<address>"),
    (re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"), "<address>"),
    (re.compile(r"\b[0-9A-Fa-f]{8}-[0-9A-Fa-f]{16}\b"), "<device>"),
    (
        re.compile(
            r"(?<![\w./~])(?!/(?:sys|proc|dev|usr|bin|system|vendor|data/local/tmp)/)"
            r"~?(?:/[^\s/:'\",;()<>|]+)+/([^\s/:'\",;()<>|]*)"
        ),
        r"<folder>/\1",
    ),
)
_PUBLIC_KEYS = {
    "ProductType", "ProductVersion", "ProductName", "CPUArchitecture", "HardwarePlatform", "HardwareModel",
    "DeviceClass", "ConnectionType", "BuildVersion", "InstantAmperage", "Voltage", "Temperature", "IsCharging",
    "ExternalConnected", "CurrentCapacity", "MaxCapacity", "CycleCount",
}  # fmt: skip


def own_secrets() -> set[str]:
    """Names of this machine and of who uses it."""
    found = {platform.node(), platform.node().partition(".")[0], str(Path.home()), Path.home().name}
    found |= {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")}
    return telling(found)


def telling(secrets: Iterable[str]) -> set[str]:
    """Those that identify somebody: not `root`, `localhost`, or a letter or two."""
    return {s for s in secrets if len(s.strip("/ ")) > 2 and s.strip("/ ").lower() not in _EVERYBODY}


def scrub_text(text: str, secrets: Iterable[str]) -> str:
    """A text without the secrets, and without what looks like an address, an identifier or a folder."""
    for secret in sorted(telling(secrets), key=len, reverse=True):
        text = _whole(secret).sub("<private>", text)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def _whole(secret: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(secret)}(?!\w)", re.IGNORECASE)


def scrub(value: Any, secrets: Iterable[str]) -> Any:
    """A JSON value without secrets; prompts and generated text are left as they are."""
    secrets = list(secrets)
    if isinstance(value, Mapping):
        return {
            key if key in FREE_TEXT else scrub_text(str(key), secrets): item
            if key in FREE_TEXT
            else scrub(item, secrets)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [scrub(item, secrets) for item in value]
    return scrub_text(value, secrets) if isinstance(value, str) else value


def scrub_output(text: str, secrets: Iterable[str]) -> str:
    """A tool's output without secrets; of JSON only values known to be harmless are kept."""
    try:
        value = json.loads(text)
    except ValueError:
        return "\n".join(scrub_text(line, secrets) for line in text.splitlines())
    return json.dumps(_public(value), indent=1)


def _public(value: Any, key: str | None = None) -> Any:
    if isinstance(value, dict):
        return {name: _public(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_public(item, key) for item in value]
    return value if key in _PUBLIC_KEYS or value is None else "<private>"


def check_clean(folder: Path, secrets: Iterable[str]) -> None:
    """Read everything in a folder again, as bytes and as tables.

    Raises
    ------
    WorkbenchError
        When a secret is still in a file; names the file, not the secret.
    """
    patterns = [_whole(secret) for secret in telling(secrets)]
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        for text in _texts(path):
            if any(pattern.search(text) for pattern in patterns):
                raise WorkbenchError(f"{path.name}: private details are still in it, so nothing was recorded")


def _texts(path: Path) -> Iterable[str]:
    if path.suffix != ".parquet":
        return [path.read_bytes().decode("utf-8", errors="replace")] if path.suffix == ".json" else []
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    texts = [" ".join(v.decode(errors="replace") for v in (table.schema.metadata or {}).values())]
    for column in table.columns:
        if str(column.type) in ("string", "large_string"):
            texts.append("\n".join(str(value) for value in column.unique().to_pylist()))
    return texts
