"""What this machine can do for a run, and what to do about what it can't."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench import native_paths
from workbench.errors import NativeError
from workbench.memory_cap import CapNotPermittedError, MemoryCap

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Check:
    """One finding: `advice` says what to do unless `status` is ok."""

    name: str
    status: str
    detail: str
    advice: str = ""


def machine(path: Path) -> dict[str, Any]:
    """Facts the native runtime reports, with direct reads tried on `path` (a file)."""
    from workbench.session import library

    facts: dict[str, Any] = json.loads(library().les_machine(str(path).encode()))
    return facts


def diagnose(path: Path) -> Iterator[Check]:
    """All checks, the runtime first: without it the others make no sense.

    Parameters
    ----------
    path
        A model file, or a folder where models lie: direct reads and free disk are those of its file system.
    """
    try:
        native_paths.runner()
    except NativeError as error:
        yield Check("runtime", FAIL, "not installed", str(error))
        return
    probe = path if path.is_file() else _probe_file(path)
    facts = machine(probe)
    if probe != path:
        probe.unlink()
    yield Check(
        "runtime", OK, f"workbench {facts['workbench']}, {facts['llama_cpp']}, {facts['compiler']}, {facts['flags']}"
    )
    yield _bindings()
    yield _cores(facts)
    yield _load(facts)
    yield _memory(facts)
    yield _direct(facts, path)
    yield _cap()
    folder = path if path.is_dir() else path.parent
    free = shutil.disk_usage(folder).free
    low = free < 1 << 30
    advice = "packing needs the model's size once more; free some" if low else ""
    yield Check("disk", WARN if low else OK, f"{free / 1e9:,.1f} GB free in {folder}", advice)


def _probe_file(folder: Path) -> Path:
    probe = folder / f".les-probe-{os.getpid()}"
    probe.write_bytes(bytes(1 << 16))
    return probe


def _bindings() -> Check:
    import llama_cpp

    base = Path(str(getattr(llama_cpp.llama_cpp, "_base_path", "")))
    ours = base.resolve() == native_paths.lib_dir().resolve()
    detail = f"llama-cpp-python {llama_cpp.__version__} on {'our' if ours else 'other'} libraries"
    return Check("bindings", OK if ours else FAIL, detail, "" if ours else "import workbench before llama_cpp")


def _cores(facts: dict[str, Any]) -> Check:
    n = facts["n_cpu"]
    detail = f"{facts['cpu']}, {n} cores: {max(1, n - 1)} compute, the rest for reads"
    if n > 1:
        return Check("cores", OK, detail)
    return Check("cores", WARN, detail, "reads and compute share one core: overlap cannot pay here")


def _load(facts: dict[str, Any]) -> Check:
    load = facts["load_avg_1m"]
    if load is None:
        return Check("load", WARN, "not measured", "make sure nothing else runs while you measure")
    busy = load > 0.5
    advice = "stop other programs before measuring: one busy process can cost many times the speed" if busy else ""
    return Check("load", WARN if busy else OK, f"{load:.2f} over the last minute", advice)


def _memory(facts: dict[str, Any]) -> Check:
    available = facts["available_bytes"]
    if available is None:
        return Check("memory", WARN, "not measured", "choose cache_slots with care")
    return Check("memory", OK, f"{available / 1e9:,.1f} GB available to this process, limits included")


def _direct(facts: dict[str, Any], path: Path) -> Check:
    if facts["direct_reads"]:
        return Check("direct reads", OK, f"on a grid of {facts['direct_align_bytes']} bytes in {path}")
    return Check(
        "direct reads",
        WARN,
        f"refused in {path}",
        "reads go through the page cache and its figures are not flash's: put models on a real disk, or emulate flash",
    )


def _cap() -> Check:
    try:
        with MemoryCap(1 << 30):
            return Check("memory cap", OK, "cgroups can be made: `bench memory_cap` works")
    except CapNotPermittedError as error:
        return Check("memory cap", WARN, "no cgroup can be made", str(error))
