"""One reader for every tool: start a command, pass its lines on as they come, say how it ended."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from workbench.runner import deadline, stop

NOT_FOUND = 127


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A command that ended.

    Attributes
    ----------
    rc : int
        Exit status; negative: the signal that ended it; 127: no such command.
    lines : list of str
        Standard output without `\\r`.
    err : str
        Standard error.
    timed_out : bool
        Whether it was ended because its time ran out.
    """

    argv: tuple[str, ...]
    rc: int
    lines: list[str]
    err: str = ""
    timed_out: bool = False

    @property
    def out(self) -> str:
        return "\n".join(self.lines)

    @property
    def text(self) -> str:
        """Everything it said."""
        return "\n".join(part for part in (self.out, self.err) if part)


Call = Callable[..., Finished]
"""Called as `call` is; a transcript can stand in for the tool."""


def call(
    argv: Sequence[str],
    *,
    on_line: Callable[[str], None] | None = None,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> Finished:
    """Run a command to its end.

    Parameters
    ----------
    on_line
        Called with every line of standard output as it arrives.
    timeout
        Seconds after which the command is ended.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as err, tempfile.TemporaryFile("w+") as given:
        given.write(stdin)
        given.seek(0)
        try:
            process = subprocess.Popen(
                list(argv), stdin=given, stdout=subprocess.PIPE, stderr=err, env=None if env is None else dict(env),
                text=True, encoding="utf-8", errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Finished(argv=tuple(argv), rc=NOT_FOUND, lines=[], err=f"{argv[0]}: {error.strerror or error}")
        lines = []
        try:
            with deadline(process, timeout) as expired:
                for line in process.stdout or ():
                    lines.append(line.replace("\r", "").rstrip("\n"))
                    if on_line:
                        on_line(lines[-1])
                rc = process.wait()
        except BaseException:
            stop(process)
            raise
        finally:
            if process.stdout:
                process.stdout.close()
        err.seek(0)
        return Finished(argv=tuple(argv), rc=rc, lines=lines, err=err.read(), timed_out=expired.is_set())
