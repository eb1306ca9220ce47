"""Statistics of repeats, the flash profile derived for a phone, and the regime a run is in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workbench.ablation import phone_profile
from workbench.ablation.phone_profile import PhoneProfile, derive
from workbench.ablation.regime import diagnose
from workbench.ablation.schedule import timed_order
from workbench.ablation.stats import MedianBootstrap


class TestStatistics:
    def test_median_and_interval(self) -> None:
        estimate = MedianBootstrap()([1.0, 2.0, 3.0, 4.0, 100.0])
        assert (estimate.value, estimate.n) == (3.0, 5)
        assert estimate.low is not None
        assert estimate.high is not None
        assert 1.0 <= estimate.low < 3.0 < estimate.high <= 100.0

    def test_same_seed_same_interval(self) -> None:
        samples = [1.0, 5.0, 2.0, 9.0]
        assert MedianBootstrap()(samples) == MedianBootstrap()(samples)

    def test_one_repeat_has_no_interval(self) -> None:
        estimate = MedianBootstrap()([2.0])
        assert (estimate.value, estimate.low, estimate.high) == (2.0, None, None)

    def test_ratio_shares_what_both_met(self) -> None:
        slow_rounds = [1.0, 2.0, 4.0, 8.0]
        ratio = MedianBootstrap().ratio([2 * v for v in slow_rounds], slow_rounds)
        assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 2.0)

    def test_ratio_needs_pairs(self) -> None:
        with pytest.raises(ValueError, match="paired"):
            MedianBootstrap().ratio([1.0], [1.0, 2.0])

    def test_order_meets_drift_alike(self) -> None:
        assert timed_order(3, 3) == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0), (2, 0), (2, 1), (2, 2)]


class TestPhoneProfile:
    def test_the_article_s_own_numbers_give_its_device(self) -> None:
        profile = derive(compute_ns_per_token=46e6, bytes_per_token=604e6, reads_per_token=960)
        assert profile.bandwidth_bytes_s == pytest.approx(5e9, rel=0.02)
        assert profile.latency_ns == pytest.approx(130_000, rel=0.06)

    def test_both_ratios_hold_for_a_small_model(self) -> None:
        profile = derive(compute_ns_per_token=1.7e6, bytes_per_token=6.7e6, reads_per_token=96)
        transfer_ns = 1e9 * 6.7e6 / profile.bandwidth_bytes_s
        assert transfer_ns / 1.7e6 == pytest.approx(phone_profile.FLASH_TO_COMPUTE, rel=0.01)
        assert profile.latency_ns == pytest.approx(transfer_ns / 96, rel=0.01)

    def test_explained_and_labelled(self) -> None:
        profile = derive(compute_ns_per_token=1.7e6, bytes_per_token=6.7e6, reads_per_token=96)
        assert "derived, emulated" in profile.explain()
        assert "GB/s" in profile.explain()
        assert PhoneProfile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile

    def test_nothing_measured(self) -> None:
        with pytest.raises(ValueError, match="positive"):
            derive(compute_ns_per_token=0, bytes_per_token=1, reads_per_token=1)


def measured(**values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "decode_tok_s": 50.0, "compute_ms_per_token": 5.0, "stall_ms_per_token": 15.0, "bytes_per_token": 10e6,
        "reads_per_token": 100.0, "flash_busy_ms_per_token": 15.0, "flash_idle_share": 0.25, "layout": "native",
        "config": {"experts": "flash", "lanes": 1, "lookahead": "off", "cache_slots": 0},
        "flash": {"kind": "emulated", "bandwidth_bytes_s": 10**9, "latency_ns": 50_000},
    }  # fmt: skip
    return row | values


class TestRegime:
    def test_flash_bound_serial(self) -> None:
        regime = diagnose(measured())
        assert (regime.kind, regime.floor_ms, regime.transfer_ms) == ("flash-bound", 10.0, 10.0)
        for idea in ("more lanes", "contiguous", "lookahead", "a cache"):
            assert idea in regime.text
        assert "100 tok/s (2.00 × this)" in regime.text
        assert "10 transfer at full bandwidth, 5 more" in regime.text
        assert " 0 % of the reading is hidden" in regime.text
        assert "not reading" not in regime.text

    def test_waiting_that_is_not_reading_is_told_apart(self) -> None:
        assert "10 ms of waiting are not reading" in diagnose(measured(stall_ms_per_token=25.0)).text

    def test_latency_bound(self) -> None:
        assert diagnose(measured(bytes_per_token=1e6)).kind == "latency-bound"

    def test_compute_bound_says_flash_cannot_help(self) -> None:
        regime = diagnose(measured(flash_busy_ms_per_token=4.0, bytes_per_token=3e6, stall_ms_per_token=0.5,
                                   decode_tok_s=180.0))  # fmt: skip
        assert regime.kind == "compute-bound"
        assert "faster flash would not" in regime.text
        assert "cache" not in regime.text

    def test_native_flash_claims_no_bandwidth(self) -> None:
        regime = diagnose(measured(flash={"kind": "native"}))
        assert regime.transfer_ms is None
        assert regime.floor_ms == 15.0

    def test_resident_and_unmeasured(self) -> None:
        assert diagnose(measured(bytes_per_token=None, flash_busy_ms_per_token=None)).kind == "compute-bound"
        assert diagnose(measured(decode_tok_s=None)).kind == "unknown"
