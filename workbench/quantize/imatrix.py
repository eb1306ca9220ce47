"""Importance matrices: upstream's GGUF form, what they say about every expert, and how well a text covered them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from workbench.errors import ModelFileError
from workbench.storage.gguf_file import read_shard
from workbench.storage.gguf_header import STRING, UINT32, encode_array, encode_field, encode_header, lay_out, pad
from workbench.storage.transfer import read_at

THIN_ROWS = 64
"""An expert that read fewer rows than this has an importance that is mostly noise."""

LOW_SHARE = 0.05
"""Coverage is low when more than this share of the experts is thin or was never activated."""

_ALIGNMENT_BYTES = 32
_FAINT = 1e-4
_F32 = 0
_EXPERTS = re.compile(r"^blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps\.weight$")


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How well the calibration text reached the experts.

    Attributes
    ----------
    n_expert : int
        Experts of all layers.
    never : mapping
        Layer → experts that no token activated; layers with none are left out.
    n_thin : int
        Experts activated by fewer than `THIN_ROWS` tokens, those never activated included.
    least, median : int
        Tokens per expert.
    """

    n_expert: int
    never: dict[int, list[int]]
    n_thin: int
    least: int
    median: int

    @property
    def n_never(self) -> int:
        return sum(map(len, self.never.values()))

    @property
    def low(self) -> bool:
        return self.n_never > 0 or self.n_thin > LOW_SHARE * self.n_expert

    def lines(self) -> list[str]:
        """What to tell people: one line, and the names and a warning where there is something to warn of."""
        text = [
            f"calibration reached {self.n_expert - self.n_never:,} of {self.n_expert:,} experts: "
            f"{self.median:,} tokens each in the median, {self.least:,} at least, "
            f"{self.n_thin:,} with fewer than {THIN_ROWS}"
        ]
        if self.never:
            names = "; ".join(f"blk.{layer}: {_ranges(experts)}" for layer, experts in sorted(self.never.items()))
            text.append(f"never activated, quantized with uniform weights: {self.n_never:,} experts ({names})")
        if self.low:
            text.append("low coverage: use a longer or more varied calibration text (--calibration)")
        return text


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 → `1-3, 7`."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Imatrix:
    """Sums of squares of what every weight matrix read.

    Attributes
    ----------
    sums : mapping
        Tensor → float32 [matrices, width].
    counts : mapping
        Tensor → int64 [experts], or [1] for a dense matrix: rows read.
    datasets : sequence of str
        Names of the texts.
    chunk_count, chunk_size : int
        Passes over the text, and tokens of each.
    """

    sums: dict[str, np.ndarray]
    counts: dict[str, np.ndarray]
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = 0
    path: Path | None = field(default=None)

    def importance(self, name: str) -> np.ndarray | None:
        """Mean squares, float32 [matrices, width]; ones for experts that were never activated; None if unknown.

        Columns that were zero in every row get a faint weight instead of none, or quantization would be free to lose
        them.
        """
        if name not in self.sums:
            return None
        sums, counts = self.sums[name], self.counts[name].astype(np.float32)
        means = sums / np.maximum(counts, 1)[:, None]
        means[(means == 0).all(axis=1)] = 1.0
        faint = np.float32(_FAINT) * means.mean(axis=1, keepdims=True)
        return np.ascontiguousarray(np.where(means == 0, faint, means), dtype=np.float32)

    def coverage(self) -> Coverage | None:
        """Coverage of the experts; None when the matrix holds none."""
        by_layer: dict[int, np.ndarray] = {}
        for name, counts in self.counts.items():
            if match := _EXPERTS.match(name):
                layer = int(match[1])
                by_layer[layer] = np.minimum(by_layer[layer], counts) if layer in by_layer else counts
        if not by_layer:
            return None
        every = np.concatenate(list(by_layer.values()))
        return Coverage(
            n_expert=len(every),
            never={layer: np.flatnonzero(c == 0).tolist() for layer, c in sorted(by_layer.items()) if (c == 0).any()},
            n_thin=int((every < THIN_ROWS).sum()),
            least=int(every.min()),
            median=int(np.median(every)),
        )

    def save(self, path: Path) -> None:
        """Write upstream's GGUF form, which llama.cpp's own tools read; there whole or not at all."""
        records = [
            encode_field("general.type", STRING, "imatrix"),
            encode_array("imatrix.datasets", STRING, self.datasets),
            encode_field("imatrix.chunk_count", UINT32, self.chunk_count),
            encode_field("imatrix.chunk_size", UINT32, self.chunk_size),
        ]
        data: list[tuple[str, np.ndarray]] = []
        for name in sorted(self.sums):
            counts = self.counts[name].astype("<f4")
            data.append((f"{name}.in_sum2", self.sums[name].astype("<f4").reshape(len(counts), -1)))
            data.append((f"{name}.counts", counts.reshape(-1, 1)))
        tensors, _ = lay_out(((name, _shape(values), _F32) for name, values in data), _ALIGNMENT_BYTES)
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            file.write(encode_header(records, tensors, _ALIGNMENT_BYTES))
            for _, values in data:
                file.write(values.tobytes().ljust(pad(values.nbytes, _ALIGNMENT_BYTES), b"\0"))
        partial.replace(path)


def _shape(values: np.ndarray) -> tuple[int, ...]:
    """Ggml's order, without trailing ones."""
    rows, width = values.shape
    return (width, rows) if rows > 1 else (width,)


def load_imatrix(path: Path | str) -> Imatrix:
    """Read an importance matrix in GGUF form, ours or upstream's.

    Raises
    ------
    ModelFileError
        When it is not one (the older `.dat` form is not read), or holds NaN, infinities or negative numbers.
    """
    path = Path(path)
    shard = read_shard(path)
    header = shard.header
    if header.get("general.type") != "imatrix":
        raise ModelFileError(f"{path}: not an importance matrix (general.type is {header.get('general.type')!r})")
    found: dict[str, np.ndarray] = {}
    with path.open("rb", buffering=0) as file:
        for tensor in header.tensors:
            if tensor.type_id != _F32:
                raise ModelFileError(f"{path}: {tensor.name} is {tensor.type_name}, expected F32")
            data = read_at(file.fileno(), tensor.n_bytes, header.data_start + tensor.offset, path)
            values = np.frombuffer(data, "<f4")
            if not np.isfinite(values).all() or (values < 0).any():
                raise ModelFileError(f"{path}: {tensor.name} holds NaN, infinities or negative numbers")
            found[tensor.name] = values
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, np.ndarray] = {}
    for key, values in found.items():
        name = key.removesuffix(".in_sum2")
        if name == key:
            continue
        count = found.get(f"{name}.counts")
        if count is None or not len(count) or len(values) % len(count):
            raise ModelFileError(f"{path}: {name}: sums and counts do not match")
        sums[name], counts[name] = values.reshape(len(count), -1), np.rint(count).astype(np.int64)
    if not sums:
        raise ModelFileError(f"{path}: an importance matrix without entries")
    return Imatrix(
        sums=sums,
        counts=counts,
        datasets=tuple(header.get("imatrix.datasets", ())),
        chunk_count=int(header.get("imatrix.chunk_count", 0)),
        chunk_size=int(header.get("imatrix.chunk_size", 0)),
        path=path,
    )
