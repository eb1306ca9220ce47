"""Errors a user can act on; each names the file or the toggle and what to do."""


class WorkbenchError(Exception):
    """Base of every error this package raises on purpose."""


class ModelFileError(WorkbenchError):
    """A model file is missing, truncated, not a GGUF, or inconsistent."""


class UnsupportedArchitectureError(WorkbenchError):
    """The model's architecture cannot be streamed (yet)."""


class ToggleError(WorkbenchError):
    """A toggle has an impossible value, or two toggles contradict each other."""


class RunError(WorkbenchError):
    """A run failed after it started; telemetry up to that point is kept."""


class NativeError(WorkbenchError):
    """The native runtime is missing or does not fit this machine."""


BY_TAG: dict[str, type[WorkbenchError]] = {
    "toggle": ToggleError,
    "file": ModelFileError,
    "arch": UnsupportedArchitectureError,
    "run": RunError,
}
"""The native runtime's error tags."""
