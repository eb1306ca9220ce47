"""A memory cap for a child process, with the kernel's own peak: cgroup v1 or v2, where this user may make one."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from workbench.errors import WorkbenchError


class CapNotPermittedError(WorkbenchError):
    """This machine does not let this user cap a process's memory."""


class MemoryCap:
    """Context manager: a fresh cgroup limited to `limit_bytes` (page cache included, swap excluded).

    Raises
    ------
    CapNotPermittedError
        On entry, where no writable memory cgroup is found.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._group: Path | None = None

    def __enter__(self) -> MemoryCap:
        failures = []
        for root, limit_file in _roots():
            group = root / f"les-workbench-{os.getpid()}-{id(self):x}"
            try:
                group.mkdir()
                self._group = group
                (group / limit_file).write_text(str(self.limit_bytes))
                return self
            except OSError as error:
                failures.append(f"{root}: {error.strerror}")
                self._remove()
        raise CapNotPermittedError(
            "no memory cgroup can be made here (" + ("; ".join(failures) or "no memory controller") + "); run as root, "
            "or start the whole command under `systemd-run --user --scope -p MemoryMax=…`"
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        if self._group and self._group.is_dir():
            self._group.rmdir()
        self._group = None

    @property
    def launcher(self) -> list[str]:
        """Command prefix that starts a process inside the cap."""
        assert self._group is not None
        return ["sh", "-c", f'echo $$ > "{self._group / "cgroup.procs"}" && exec "$@"', "sh"]

    @property
    def peak_bytes(self) -> int:
        """Most memory the group ever held, page cache included."""
        assert self._group is not None
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if (self._group / name).exists():
                return int((self._group / name).read_text())
        raise CapNotPermittedError("this kernel records no peak for a cgroup")


def _roots() -> list[tuple[Path, str]]:
    """Memory cgroups of this process, as (folder, name of the limit file)."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines() if Path("/proc/self/cgroup").exists() else []:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            base = Path("/sys/fs/cgroup/memory")
            found += [(base / path.lstrip("/"), "memory.limit_in_bytes"), (base, "memory.limit_in_bytes")]
        elif not controllers and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            base = Path("/sys/fs/cgroup")
            found += [(base / path.lstrip("/"), "memory.max"), (base, "memory.max")]
    return found
