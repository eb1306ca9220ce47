"""Devices: failures by their words, sensors, power, scrubbing; and a suite on this machine, recorded."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from device_suites import SUITE, make_model

import workbench as wb
from workbench.cli.device import command as device
from workbench.devices import failures, sysfs
from workbench.devices.failures import DeviceError, classify, error_of
from workbench.devices.power import report
from workbench.devices.process import Finished, call
from workbench.devices.record import add_meter, run_suite
from workbench.devices.samples import COLUMNS, Clock, MeterError, Sample, frame, from_meter
from workbench.devices.scrub import check_clean, scrub, scrub_output
from workbench.devices.targets import TARGETS, target_of
from workbench.devices.targets.base import FAKE_PEER, HARDWARE, NONE, TRANSCRIPT
from workbench.devices.targets.local import LocalTarget
from workbench.errors import WorkbenchError

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def finished(rc: int, err: str = "", **more: Any) -> Finished:
    return Finished(argv=("tool",), rc=rc, lines=[], err=err, **more)


class TestProcess:
    def test_lines_as_they_come_and_the_exit_status(self) -> None:
        seen: list[str] = []
        ended = call(("sh", "-c", r"printf 'a\r\nb\r\n'; echo err >&2; exit 3"), on_line=seen.append)
        assert (ended.rc, ended.lines, seen, ended.err) == (3, ["a", "b"], ["a", "b"], "err\n")

    def test_no_such_tool_and_a_run_that_takes_too_long(self) -> None:
        assert classify(call(("no-such-tool-here",))) == failures.NO_TOOL
        assert classify(call(("sleep", "600"), timeout=0.2)) == failures.TIMED_OUT


@pytest.mark.parametrize(
    ("rc", "said", "kind"),
    [
        (1, "adb: device 'X' not found", failures.LOST),
        (1, "adb: error: failed to copy 'm' to '/x': EOF", failures.LOST),
        (255, "", failures.LOST),
        (1, "scp: Connection closed", failures.LOST),
        (1, "error: device unauthorized.", failures.NOT_TRUSTED),
        (1, "the device was not, or could not be, unlocked", failures.LOCKED),
        (137, "", failures.MEMORY),
        (1, "Terminated due to memory issue", failures.MEMORY),
        (1, "scp: write: No space left on device", failures.DISK),
        (1, "error[file]: cannot open m.gguf", failures.FAILED),
    ],
)
def test_failures_by_their_words(rc: int, said: str, kind: str) -> None:
    assert classify(finished(rc, said)) == kind
    assert error_of(finished(rc, said), "pushing").kind == kind


def test_a_device_that_vanishes_while_hot_has_switched_itself_off() -> None:
    lost = finished(255, "Connection reset")
    assert classify(lost, thermal="critical") == failures.THERMAL
    assert classify(lost, thermal="light") == failures.LOST


class TestSensors:
    def tree(self, root: Path, files: dict[str, str]) -> list[str]:
        for name, text in files.items():
            path = root / "sys" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        said = subprocess.run(["sh", "-c", sysfs.command(str(root))], capture_output=True, text=True).stdout
        return said.splitlines()

    def test_a_discharging_battery(self, tmp_path: Path) -> None:
        battery = "class/power_supply/BAT0"
        files = {f"{battery}/type": "Battery", f"{battery}/status": "Discharging", f"{battery}/temp": "315",
                 f"{battery}/current_now": "-2000000", f"{battery}/voltage_now": "4000000",
                 "class/power_supply/AC/type": "Mains", "class/thermal/thermal_zone0/type": "cpu-thermal",
                 "class/thermal/thermal_zone0/temp": "70000",
                 "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1800000",
                 "devices/system/cpu/cpu4/cpufreq/scaling_cur_freq": "2400000"}  # fmt: skip
        sample = sysfs.parse(self.tree(tmp_path, files), "test")
        assert (sample.power_w, sample.battery_temp_c, sample.freq_hz) == (8.0, 31.5, 2_400_000_000)

    def test_a_charged_battery_tells_no_power(self, tmp_path: Path) -> None:
        battery = "class/power_supply/BAT0"
        files = {f"{battery}/type": "Battery", f"{battery}/status": "Charging", f"{battery}/power_now": "9000000"}
        assert sysfs.parse(self.tree(tmp_path, files), "test").power_w is None

    def test_no_sensors_is_null_not_zero(self, tmp_path: Path) -> None:
        assert sysfs.parse(self.tree(tmp_path, {}), "test") == Sample(source="test")

    def test_the_clock_is_the_nearest_arrival(self) -> None:
        clock = Clock()
        for t1, arrived in ((1_000, 6_100), (2_000, 7_000), (3_000, 8_500)):
            clock.saw({"t": "tok", "t1_ns": t1}, arrived)
        assert clock.offset_ns == -5_000


class TestPower:
    S = 10**9

    def samples(self, source: str, watts: list[tuple[int, float | None, float | None]]) -> list[dict[str, Any]]:
        return [{"t_ns": t * self.S, "source": source, "power_w": w, "battery_temp_c": c} for t, w, c in watts]

    def test_watts_above_idle_rise_and_tokens_per_joule(self) -> None:
        idle, busy = [(0, 6.0, 25.0), (10, 6.0, 25.0)], [(20, 16.0, 25.0), (110, 18.0, 26.0), (200, 16.0, 26.5)]
        rows = self.samples("adb", [*idle, *busy])
        windows = [
            {"kind": "idle", "rung": None, "t0_ns": 0, "t1_ns": 10 * self.S, "tokens": 0},
            {"kind": "sustained", "rung": "r", "t0_ns": 20 * self.S, "t1_ns": 200 * self.S, "tokens": 3060},
        ]
        (made,) = report(frame(rows), windows)
        assert made.watts == pytest.approx(17.0)
        assert made.watts_above_idle == pytest.approx(11.0)
        assert made.celsius_rise == pytest.approx(1.5)
        assert made.tokens_per_joule == pytest.approx(3060 / (17 * 180))

    def test_missing_sensors_are_none(self) -> None:
        rows = self.samples("local", [(0, None, None), (100, None, None)])
        windows = [{"kind": "sustained", "rung": "r", "t0_ns": 0, "t1_ns": 100 * self.S, "tokens": 5}]
        (made,) = report(frame(rows), windows)
        assert (made.watts, made.watts_above_idle, made.celsius_rise, made.tokens_per_joule) == (None,) * 4

    def test_a_meter(self, tmp_path: Path) -> None:
        path = tmp_path / "meter.csv"
        path.write_text("time,voltage_v,current_a\n1700000000.5,5.0,2.0\n2023-11-14T22:13:21+00:00,5.0,3.0\n")
        rows = from_meter(path, wall_minus_mono_ns=1_700_000_000 * self.S)
        assert [(row["t_ns"], row["power_w"], row["source"]) for row in rows] == [
            (self.S // 2, 10.0, "meter"), (self.S, 15.0, "meter")]  # fmt: skip
        path.write_text("when,watts\n1,2\n")
        with pytest.raises(MeterError, match="needs the columns time and power_w.*it has watts, when"):
            from_meter(path, wall_minus_mono_ns=0)
        path.write_text("time,power_w\n2026-01-01T00:00:00,2\n")
        with pytest.raises(MeterError, match="line 2: .*offset from UTC"):
            from_meter(path, wall_minus_mono_ns=0)


SECRETS = ("F17PLANTED9X", "Ada's Phone", "ada-laptop", "ada", "/home/ada")


class TestScrub:
    def test_planted_secrets_are_gone(self) -> None:
        planted = {
            "error": "device F17PLANTED9X: cannot open /home/ada/models/m.gguf from ada@ada-laptop (192.168.1.17)",
            "host": {"Ada's Phone": ["ada-laptop.local", "aa:bb:cc:dd:ee:ff", "00008140-0011223344556677"]},
            "prompts": ["Ada went to the forest."],
            "speed": 1.5,
        }
        clean = scrub(planted, SECRETS)
        assert clean["prompts"] == planted["prompts"], "a suite's prompt is not a machine's"
        assert clean["speed"] == 1.5
        text = json.dumps({key: value for key, value in clean.items() if key != "prompts"}).lower()
        for secret in (*SECRETS, "192.168", "aa:bb", "00008140", "ada"):
            assert secret.lower() not in text
        assert "m.gguf" in text

    def test_ordinary_words_stay(self) -> None:
        text = "12.5 tok/s, MB/token, Q3_K and/or Q4_K; /proc/meminfo; GNU 12.2.0; as root on localhost"
        assert scrub(text, ("root", "localhost", "x")) == text

    def test_json_of_tools_keeps_only_what_is_known_to_be_harmless(self) -> None:
        said = json.dumps({"ProductType": "iPhone17,1", "UniqueChipID": 42, "Anything": "private", "IsCharging": True})
        clean = json.loads(scrub_output(said, ()))
        assert clean == {"ProductType": "iPhone17,1", "UniqueChipID": "<private>", "Anything": "<private>",
                         "IsCharging": True}  # fmt: skip

    def test_a_secret_in_a_table_is_found(self, tmp_path: Path) -> None:
        pd.DataFrame({"rung": ["baseline"], "n": [1]}).to_parquet(tmp_path / "t.parquet")
        check_clean(tmp_path, SECRETS)
        pd.DataFrame({"rung": ["on Ada's Phone"], "n": [1]}).to_parquet(tmp_path / "t.parquet")
        with pytest.raises(WorkbenchError, match=r"t\.parquet: private details"):
            check_clean(tmp_path, SECRETS)


class TestTargets:
    def test_each_says_how_far_it_is_verified_and_the_readme_agrees(self) -> None:
        for kind in TARGETS.values():
            verified = kind.verified
            assert verified.level in (HARDWARE, FAKE_PEER, TRANSCRIPT, NONE)
            assert verified.date
            assert verified.tool
            row = next(line for line in README.splitlines() if line.startswith(f"| `{kind.name}`"))
            assert verified.level in row

    def test_bad_targets(self) -> None:
        with pytest.raises(WorkbenchError, match="no such target; there are local, ssh"):
            target_of("fridge")
        with pytest.raises(WorkbenchError, match="ssh:HOST"):
            target_of("ssh")


def test_dry_run_of_a_shipped_suite_prints_every_command() -> None:
    suite = str(ROOT / "device_runs/suites/iphone-article.yaml")
    result = CliRunner().invoke(device, ["run", suite, "--target", "ios:UDID", "--dry-run"], catch_exceptions=False)
    assert result.exit_code == 0
    document = json.loads(result.stdout.splitlines()[-1])
    loaded = wb_suite(suite)
    rungs = [rung for rung in loaded.rungs if rung.changes.get("draft_model") != "auto"]
    runs = len(loaded.prompts) * (1 + len(rungs) * (1 + loaded.repeats)) + len(rungs)
    launches = [c for c in document["commands"] if "launch-application" in c["argv"]]
    assert len(launches) == runs
    assert document["estimate"]["push_bytes"] == 3 * loaded.expect["model_bytes"]
    assert document["estimate"]["time_s"] > len(rungs) * 180
    assert "not measured" in " ".join(document["notes"])


def wb_suite(path: str) -> Any:
    from workbench.ablation.suites import load_suite

    return load_suite(path)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A suite with a power protocol run on this machine, with a planted host name."""
    folder = tmp_path_factory.mktemp("local")
    model = make_model(folder)
    suite = replace(SUITE, name="local test", repeats=1, rungs=SUITE.rungs[:2], power={"idle_s": 1, "sustained_s": 1})
    target = LocalTarget()
    run = lambda: run_suite(model, suite, target, work=folder / "work", recorded=folder / "recorded")  # noqa: E731
    return {"folder": folder, "made": run(), "again": run}


@pytest.mark.native
class TestLocal:
    def test_recorded_with_its_target(self, local: dict[str, Any]) -> None:
        made = local["made"]
        assert made.folder.name.endswith("-local-test")
        document = json.loads((made.folder / "results.json").read_text())
        manifest = json.loads((made.folder / "manifest.json").read_text())
        for header in (document["target"], manifest["target"]):
            assert header["verified"]["level"] == HARDWARE
            assert header["device"]["n_cpu"]
        assert [row["lossless"]["verdict"] for row in document["rows"]] == ["bit-exact"] * 2
        assert [report["rung"] for report in document["power"]] == [row["rung"] for row in document["rows"]]
        assert all(report["duration_s"] > 0.3 and report["tokens"] > 10 for report in document["power"])

    def test_samples_are_on_the_clock_of_the_tokens(self, local: dict[str, Any]) -> None:
        folder = local["made"].folder
        samples = pd.read_parquet(folder / "samples.parquet")
        assert list(samples.columns) == list(COLUMNS)
        assert (samples["memory_bytes"].dropna() > 0).all()
        assert samples["memory_bytes"].notna().any()
        tokens = pd.read_parquet(folder / "telemetry-tokens.parquet")
        assert set(tokens["kind"]) == {"verify", "timed", "sustained"}
        looked = samples[samples["source"] == "local"]["t_ns"]
        assert looked.min() < tokens["t0_ns"].min() < tokens["t1_ns"].max() < looked.max()

    def test_the_same_command_makes_nothing_again(self, local: dict[str, Any]) -> None:
        again = local["again"]()
        assert again.ran == 0
        assert again.reused > 0
        assert again.folder == local["made"].folder

    def test_ladders_of_several_devices_in_one_table(self, local: dict[str, Any]) -> None:
        ladders = wb.load_runs(local["made"].folder.parent)
        name = local["made"].folder.name
        assert ladders.table.loc[name, "verified"].unique().tolist() == [HARDWARE]
        assert ladders.compare().loc["baseline", name] == ladders[name].table.loc["baseline", "decode_tok_s"]

    def test_a_meter_is_added(self, local: dict[str, Any], tmp_path: Path) -> None:
        folder = local["made"].folder
        manifest = json.loads((folder / "manifest.json").read_text())
        offset = manifest["clock"]["wall_ns"] - manifest["clock"]["mono_ns"]
        idle = next(window for window in manifest["windows"] if window["kind"] == "idle")
        busy = [window for window in manifest["windows"] if window["kind"] == "sustained"]
        rows = [(w[edge] + offset, 2 if w is idle else 5) for w in (idle, *busy) for edge in ("t0_ns", "t1_ns")]
        path = tmp_path / "meter.csv"
        inside = [(t + (1000 if i % 2 == 0 else -1000), watts) for i, (t, watts) in enumerate(rows)]
        path.write_text("time,power_w\n" + "".join(f"{t // 10**9}.{t % 10**9:09d},{w}\n" for t, w in inside))
        reports = add_meter(folder, path)
        assert [report["source"] for report in reports] == ["meter"] * 2
        assert [report["watts_above_idle"] for report in reports] == pytest.approx([3.0, 3.0])
        assert json.loads((folder / "results.json").read_text())["power"] == reports


def test_an_error_says_what_to_do() -> None:
    assert "unlock it" in str(DeviceError(failures.LOCKED, "launching"))


def test_committed_recordings_load_and_name_their_day_device_and_suite() -> None:
    ladders = wb.load_runs(ROOT / "device_runs" / "recorded")
    for name, ladder in ladders.ladders.items():
        assert name == f"{name[:10]}-linux-x86_64-{ladder.document['suite']}"
        assert (ladder.folder / "manifest.json").is_file()
    assert ladders.table["decode_tok_s"].notna().any()
