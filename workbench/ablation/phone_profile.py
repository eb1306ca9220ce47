"""An emulated flash for this machine and model that keeps the ratios of the article's phone.

The article's reported ladder (`figures/reported/article.yaml`) is explained by one device: about 5 GB/s at depth and
130 µs per request, against 46 ms of compute and 604 MB of experts per token (Q4_K_M, 0.63 MB per matrix). What
decides which optimization pays are two ratios of that device, so those are kept and the absolute figures are not:

    transfer of a token's experts : compute = 2.6 : 1          latency : transfer of one matrix = 1 : 1

All of this is derived, not measured on a phone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.telemetry import Recording, summarize

FLASH_TO_COMPUTE = 2.6
LATENCY_TO_TRANSFER = 1.0
DEPTH = 32


@dataclass(frozen=True, kw_only=True)
class PhoneProfile:
    """Emulated flash and what it was derived from.

    Attributes
    ----------
    bandwidth_bytes_s, latency_ns, depth : int
        The emulated device: bandwidth shared by all requests, latency of each, requests served at once.
    compute_ns_per_token : float
        Measured: all experts resident.
    bytes_per_token, reads_per_token : float
        Measured: the baseline on native flash, native layout (one read per matrix).
    contended : bool
        Whether something else wanted the cores while compute was measured.
    """

    bandwidth_bytes_s: int
    latency_ns: int
    depth: int
    compute_ns_per_token: float
    bytes_per_token: float
    reads_per_token: float
    contended: bool = False

    @property
    def toggles(self) -> dict[str, int]:
        """The profile as `RunConfig` fields."""
        return {
            "emulate_bandwidth_bytes_s": self.bandwidth_bytes_s,
            "emulate_latency_ns": self.latency_ns,
            "emulate_depth": self.depth,
        }

    def explain(self) -> str:
        """The choice and its reasons, for people."""
        transfer_ms = 1e3 * self.bytes_per_token / self.bandwidth_bytes_s
        compute_ms = self.compute_ns_per_token / 1e6
        matrix_bytes = self.bytes_per_token / self.reads_per_token
        matrix_us = 1e6 * matrix_bytes / self.bandwidth_bytes_s
        warning = (
            "\n  Contended: something else used the cores meanwhile; measure again (--fresh)." if self.contended else ""
        )
        return (
            f"Emulated phone flash (derived, emulated): {self.bandwidth_bytes_s / 1e9:.3g} GB/s, "
            f"{self.latency_ns / 1e3:.3g} µs per request.\n"
            f"  This machine computes a token in {compute_ms:.3g} ms and a token needs "
            f"{self.bytes_per_token / 1e6:.3g} MB of experts: {transfer_ms:.3g} ms of transfer, "
            f"{transfer_ms / compute_ms:.2f} × compute (the article's phone: {FLASH_TO_COMPUTE} ×).\n"
            f"  One matrix of {matrix_bytes / 1e3:.3g} kB takes {matrix_us:.3g} µs to transfer, as long as its latency "
            f"(the article's phone: about 1 : 1).\n"
            f"  The ratios are derived from the article's published figures; no phone was measured."
            f"{warning}"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "label": "derived, emulated",
            **self.toggles,
            "compute_ns_per_token": self.compute_ns_per_token,
            "bytes_per_token": self.bytes_per_token,
            "reads_per_token": self.reads_per_token,
            "contended": self.contended,
            "flash_to_compute": FLASH_TO_COMPUTE,
            "latency_to_transfer": LATENCY_TO_TRANSFER,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PhoneProfile:
        """Read back what `to_dict` wrote."""
        return cls(
            bandwidth_bytes_s=values["emulate_bandwidth_bytes_s"],
            latency_ns=values["emulate_latency_ns"],
            depth=values["emulate_depth"],
            compute_ns_per_token=values["compute_ns_per_token"],
            bytes_per_token=values["bytes_per_token"],
            reads_per_token=values["reads_per_token"],
            contended=values["contended"],
        )


def derive(
    *, compute_ns_per_token: float, bytes_per_token: float, reads_per_token: float, contended: bool = False
) -> PhoneProfile:
    """Choose bandwidth and latency that keep the two ratios.

    Parameters
    ----------
    compute_ns_per_token
        Time per token with all experts resident, ns, with the threads that the flash rungs compute with.
    bytes_per_token, reads_per_token
        Of the baseline: native layout, one read per matrix, nothing cached.
    """
    if not min(compute_ns_per_token, bytes_per_token, reads_per_token) > 0:
        raise ValueError("compute, bytes and reads per token must be positive")
    bandwidth = bytes_per_token / (FLASH_TO_COMPUTE * compute_ns_per_token * 1e-9)
    latency_ns = LATENCY_TO_TRANSFER * 1e9 * bytes_per_token / reads_per_token / bandwidth
    return PhoneProfile(
        bandwidth_bytes_s=round(bandwidth / 1e6) * 1_000_000 or round(bandwidth),
        latency_ns=round(latency_ns),
        depth=DEPTH,
        compute_ns_per_token=compute_ns_per_token,
        bytes_per_token=bytes_per_token,
        reads_per_token=reads_per_token,
        contended=contended,
    )


def from_recordings(resident: Recording, baseline: Recording) -> PhoneProfile:
    """Derive the profile from a resident run and a baseline run on native flash."""
    on_demand, in_memory = summarize(baseline), summarize(resident)
    return derive(
        compute_ns_per_token=1e9 / in_memory["decode_tok_s"],
        bytes_per_token=on_demand["bytes_per_token"],
        reads_per_token=on_demand["reads_per_token"],
        contended=bool(in_memory["contended"]),
    )
