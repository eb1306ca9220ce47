"""What a quantized file is: size, bits per weight, bytes per expert, types; and the article's figures beside it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.quantize.imatrix import Coverage
from workbench.quantize.plan import Item, Plan, type_counts
from workbench.storage.layout import expert_layout

ARTICLE_GB = (19.7, 14.44)
"""File of the article's 35B-A3B model before and after its mixed precision, as it reports them."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A quantized file in numbers.

    Attributes
    ----------
    bits_per_weight, expert_bits_per_weight : float
        Over all tensors, and over the routed experts (None without experts).
    expert_bytes : int or None
        One expert with all its matrices, the largest layer's.
    types, expert_types : dict
        Type → number of tensors.
    fallbacks, unmatched : tuple of str
        Tensors whose rows do not fit the type chosen for them; the recipe's patterns that name no tensor.
    without_importance : tuple of str
        Expert tensors the importance matrix does not know; their errors were weighed equally.
    coverage : Coverage or None
        How well the calibration text reached the experts; None without an importance matrix.
    """

    target: str
    recipe: str
    packed: bool
    source_bytes: int
    file_bytes: int
    n_weights: int
    bits_per_weight: float
    expert_bits_per_weight: float | None
    expert_bytes: int | None
    source_expert_bytes: int | None
    types: dict[str, int]
    expert_types: dict[str, int]
    fallbacks: tuple[str, ...]
    unmatched: tuple[str, ...]
    without_importance: tuple[str, ...]
    coverage: Coverage | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        text = [
            f"{self.target}: {_size(self.file_bytes)} ({_size(self.source_bytes)} before, "
            f"{self.source_bytes / self.file_bytes:.2f} × smaller), recipe {self.recipe}"
            + (", expert-contiguous" if self.packed else ""),
            f"{self.bits_per_weight:.2f} bits per weight; tensors by type: {_counts(self.types)}",
        ]
        if self.expert_bytes is not None and self.source_expert_bytes is not None:
            text.append(
                f"experts: {self.expert_bits_per_weight:.2f} bits per weight, {self.expert_bytes:,} bytes each "
                f"({self.source_expert_bytes:,} before), {_counts(self.expert_types)}"
            )
        if self.fallbacks:
            text.append(f"fallbacks, {len(self.fallbacks)}: {'; '.join(self.fallbacks)}")
        text += [f"the recipe's pattern {pattern!r} names no tensor of this model" for pattern in self.unmatched]
        if self.without_importance:
            text.append(f"not in the importance matrix, weighed equally: {', '.join(self.without_importance)}")
        return text + (self.coverage.lines() if self.coverage else [])


def make_report(plan: Plan, target: Path, *, packed: bool) -> Report:
    """The report of a finished quantization."""
    experts = tuple(item for item in plan.items if "_exps.weight" in item.source.name)
    layers = expert_layout(plan.source).layers if experts else ()
    sizes = {item.target.name: item.target.n_bytes for item in experts}
    return Report(
        target=str(target),
        recipe=plan.recipe.name,
        packed=packed,
        source_bytes=plan.source.size_bytes,
        file_bytes=target.stat().st_size,
        n_weights=sum(math.prod(item.source.shape) for item in plan.items),
        bits_per_weight=_bits(plan.items),
        expert_bits_per_weight=_bits(experts) if experts else None,
        expert_bytes=max((sum(sizes[t.name] for t in x.tensors) // x.n_expert for x in layers), default=None),
        source_expert_bytes=max((layer.expert_bytes for layer in layers), default=None),
        types=type_counts(plan.items),
        expert_types=type_counts(experts),
        fallbacks=tuple(map(str, plan.fallbacks)),
        unmatched=plan.unmatched,
        without_importance=plan.without_importance,
        coverage=plan.imatrix.coverage() if plan.imatrix else None,
    )


def _bits(items: tuple[Item, ...]) -> float:
    return 8 * sum(i.target.n_bytes for i in items) / max(1, sum(math.prod(i.target.shape) for i in items))


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.2f} MB"


def _counts(types: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in types.items())
