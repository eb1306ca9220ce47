"""`RunConfig`: the one vocabulary of toggles, shared by Python, CLI, suites, telemetry and tables."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import ToggleError


def _toggle(default: Any, help: str, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Every toggle of one run. Field names are those of the command line, suites, headers and tables.

    Raises
    ------
    ToggleError
        On construction, for values out of range and toggles that contradict each other.
    """

    experts: str = _toggle("flash", "where expert weights live", ("resident", "flash"))
    lookahead: str = _toggle(
        "off",
        "predict the next layer's experts from this layer's router input "
        "(control: the layer's own input, must score 100 %)",
        ("off", "router", "control"),
    )
    lookahead_width: float = _toggle(1.0, "predicted experts as a multiple of top-k: 1.0 = top-k, 2.0 = top-2k")
    ready_first: bool = _toggle(False, "compute experts as their reads finish instead of waiting for all")
    cache_slots: int = _toggle(0, "experts kept per layer after use, LRU; 0 releases them after use")
    io: str = _toggle("direct", "direct bypasses the page cache, buffered goes through it", ("direct", "buffered"))
    lanes: int = _toggle(4, "concurrent reads")
    threads: int = _toggle(0, "compute threads; 0 = automatic (leaves a core to the lanes)")
    emulate_bandwidth_bytes_s: int = _toggle(0, "emulated flash bandwidth in bytes/s; 0 = native flash")
    emulate_latency_ns: int = _toggle(0, "emulated flash latency per request, ns")
    emulate_depth: int = _toggle(32, "emulated flash: requests served at once")
    speculation: str = _toggle(
        "off", "draft tokens that one batch verifies", ("off", "dspark", "ngram-simple", "ngram-mod", "draft-simple")
    )
    draft_model: str = _toggle("", "drafter GGUF, for speculation dspark and draft-simple")
    draft_max: int = _toggle(0, "tokens drafted per round; 0 = the trained block, or 4")
    draft_min_p: float = _toggle(0.0, "end a draft at the first token less certain than this")
    draft_adaptive: bool = _toggle(False, "choose the draft length each round from what rounds cost and yielded")
    telemetry: str = _toggle("token", "how much is recorded", ("off", "token", "layer", "io"))
    logits_hash: bool = _toggle(True, "record a 64-bit hash of every position's logits")
    flash_attn: str = _toggle("auto", "flash attention", ("auto", "off"))
    batch_invariant: bool = _toggle(
        False, "matrix products that do not depend on how many tokens are decoded together: drafts verify bit for bit"
    )
    n_ctx: int = _toggle(0, "context length; 0 = prompt + generation, at most the model's")
    n_batch: int = _toggle(512, "tokens per decode call (prefill)")
    n_ubatch: int = _toggle(512, "tokens per computed micro-batch")
    n_seq_max: int = _toggle(1, "sequences decoded side by side")
    temperature: float = _toggle(0.0, "sampling temperature; 0 = greedy")
    top_k: int = _toggle(40, "sampling: candidates kept (temperature > 0)")
    top_p: float = _toggle(0.95, "sampling: nucleus (temperature > 0)")
    seed: int = _toggle(1, "sampling seed")

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value, choices = getattr(self, f.name), f.metadata["choices"]
            if choices and value not in choices:
                raise ToggleError(f"{f.name}={value!r}: choose one of {', '.join(choices)}")
        self._check_ranges()
        self._check_contradictions()

    def _check_ranges(self) -> None:
        at_least = {
            "lookahead_width": 1.0,
            "cache_slots": 0,
            "lanes": 1,
            "threads": 0,
            "emulate_bandwidth_bytes_s": 0,
            "emulate_latency_ns": 0,
            "emulate_depth": 1,
            "n_ctx": 0,
            "n_batch": 1,
            "n_ubatch": 1,
            "n_seq_max": 1,
            "temperature": 0.0,
            "draft_max": 0,
            "draft_min_p": 0.0,
        }
        for name, low in at_least.items():
            if not getattr(self, name) >= low:  # also catches NaN
                raise ToggleError(f"{name}={getattr(self, name)}: must be at least {low}")
        if self.lanes > 64:
            raise ToggleError(f"lanes={self.lanes}: at most 64")

    def _check_contradictions(self) -> None:
        if self.experts == "resident":
            for name, off in (("lookahead", "off"), ("ready_first", False), ("cache_slots", 0)):
                if getattr(self, name) != off:
                    raise ToggleError(
                        f"{name}={getattr(self, name)!r} contradicts experts='resident': "
                        f"resident experts are never read; use experts='flash' or {name}={off!r}"
                    )
            if self.emulate_bandwidth_bytes_s:
                raise ToggleError("emulate_bandwidth_bytes_s contradicts experts='resident': nothing is read")
        if self.emulate_latency_ns and not self.emulate_bandwidth_bytes_s:
            raise ToggleError("emulate_latency_ns needs emulate_bandwidth_bytes_s: emulated flash has both")
        if self.n_seq_max > self.n_batch:
            raise ToggleError(f"n_seq_max={self.n_seq_max} exceeds n_batch={self.n_batch}: one call must hold them")
        if self.lookahead_width != 1.0 and self.lookahead == "off":
            raise ToggleError("lookahead_width needs lookahead='router' (or 'control')")

        self._check_speculation()

    def _check_speculation(self) -> None:
        drafts = self.speculation in ("dspark", "draft-simple")
        if drafts and not self.draft_model:
            raise ToggleError(f"speculation={self.speculation!r} needs draft_model: the drafter's GGUF")
        if self.draft_model and not drafts:
            raise ToggleError(f"draft_model contradicts speculation={self.speculation!r}: it drafts without a model")
        if self.speculation == "off":
            for name, off in (("draft_max", 0), ("draft_min_p", 0.0), ("draft_adaptive", False)):
                if getattr(self, name) != off:
                    raise ToggleError(f"{name}={getattr(self, name)!r} needs speculation")

    @property
    def flash_kind(self) -> str:
        """`native` or `emulated`: the label every figure and table must carry."""
        return "emulated" if self.emulate_bandwidth_bytes_s else "native"

    def to_dict(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        """Build from a mapping; an unknown name is an error that lists the known ones."""
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ToggleError(f"unknown toggle {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        return cls(**values)

    def diff(self, other: RunConfig) -> dict[str, tuple[Any, Any]]:
        """Fields that differ, as name → (self, other)."""
        a, b = self.to_dict(), other.to_dict()
        return {k: (a[k], b[k]) for k in a if a[k] != b[k]}
