"""A transcript in place of a tool: answers by command line (patterns), and fails on what it does not know."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench.devices.process import Finished

FOLDER = Path(__file__).parent / "transcripts"


class Replay:
    """Stands in for `process.call`; `asked` are the commands it was given."""

    def __init__(self, name: str) -> None:
        self.transcript: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str], *, on_line: Callable[[str], None] | None = None, **how: Any) -> Finished:
        line = " ".join(argv)
        self.asked.append(line)
        for exchange in self.transcript["exchanges"]:
            if fnmatch.fnmatchcase(line, " ".join(exchange["argv"])):
                if "writes" in exchange:
                    Path(argv[-1]).write_text(exchange["writes"], encoding="utf-8")
                lines = exchange["stdout"].replace("\r", "").splitlines()
                for said in lines:
                    if on_line:
                        on_line(said)
                return Finished(argv=tuple(argv), rc=exchange["rc"], lines=lines, err=exchange["stderr"])
        raise AssertionError(f"the transcript does not know: {line}")
