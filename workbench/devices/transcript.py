"""What a target's tool really says, without private details: fixtures from the first person with the hardware."""

from __future__ import annotations

import datetime
from typing import Any

from workbench.devices.failures import DeviceError
from workbench.devices.scrub import own_secrets, scrub_output, scrub_text
from workbench.devices.targets.base import LIST_TIMEOUT_S, Target

SCHEMA = 1


def record(target: Target) -> dict[str, Any]:
    """Ask a target's tool everything that only reads, and keep the answers.

    Returns
    -------
    dict
        `target`, `tool`, `date`, `source`, `probe` (what we understood, or the error) and `exchanges`: argv, rc,
        stdout, stderr.
    """
    secrets = own_secrets() | {target.device} - {""} | {name.split()[0] for name in target.attached() if name}
    try:
        facts = target.probe()
        secrets |= set(facts.secrets)
        probe: dict[str, Any] = facts.public()
    except DeviceError as error:
        probe = {"error": scrub_text(str(error), secrets), "kind": error.kind}
    secrets -= {"this"}
    exchanges = []
    for argv in target.inquiries():
        said = target.run_tool(argv, timeout=LIST_TIMEOUT_S)
        exchanges.append(
            {
                "argv": [scrub_text(part, secrets) for part in argv],
                "rc": said.rc,
                "stdout": scrub_output(said.out, secrets),
                "stderr": scrub_output(said.err, secrets),
            }
        )
    version = target.version()
    target.close()
    return {
        "schema": SCHEMA,
        "target": target.name,
        "tool": scrub_text(version, secrets) if version else None,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "source": "recorded",
        "verified": target.verified.to_dict(),
        "probe": probe,
        "exchanges": exchanges,
    }
