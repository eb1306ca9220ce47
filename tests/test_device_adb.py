"""The adb target: Debian's adb against a small adbd on loopback. It tests the driver, not Android."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from device_suites import SUITE, make_model, make_runner
from fake_adbd import SERIAL, FakeAdbd

from workbench.devices.failures import LOST, DeviceError
from workbench.devices.record import run_suite
from workbench.devices.targets.adb import AdbTarget

pytestmark = pytest.mark.skipif(shutil.which("adb") is None, reason="adb is not installed: apt-get install adb")
MODEL_SHA = "ab" * 32


@pytest.fixture(scope="module")
def adbd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeAdbd]:
    folder = tmp_path_factory.mktemp("phone")
    with pytest.MonkeyPatch.context() as patch, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        patch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("ADB_MDNS", "0")
        fake = FakeAdbd(folder)
        try:
            yield fake
        finally:
            subprocess.run(["adb", "kill-server"], capture_output=True, timeout=60)
            fake.close()


@pytest.fixture
def target(adbd: FakeAdbd, tmp_path: Path) -> AdbTarget:
    device = f"127.0.0.1:{adbd.port}"
    subprocess.run(["adb", "connect", device], capture_output=True, timeout=60)
    subprocess.run(["adb", "-s", device, "wait-for-device"], capture_output=True, timeout=60)
    return AdbTarget(device=device, runner_path=None)


def test_devices_exit_statuses_and_facts(target: AdbTarget) -> None:
    assert target.device in target.attached()
    assert (target.version() or "").startswith("Android Debug Bridge")
    finished = target.run_tool(target.shell_argv("echo out; echo err >&2; exit 7"))
    assert (finished.rc, finished.lines, finished.err.strip()) == (7, ["out"], "err")
    facts = target.probe()
    assert facts.name == "Fake Phone 3"
    assert SERIAL in facts.secrets
    assert SERIAL not in str(facts.public())
    sample = target.sample()
    assert (sample.battery_temp_c, sample.thermal_state) == (30.1, "light")
    assert sample.power_w is None


def test_a_push_is_cut_and_done_again_and_then_never_sent_twice(
    target: AdbTarget, adbd: FakeAdbd, tmp_path: Path
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(bytes(range(256)) * 12_000)
    adbd.cut_after = adbd.received + 1_000_000
    with pytest.raises(DeviceError) as error:
        target.push(model, MODEL_SHA)
    assert error.value.kind == LOST
    assert target_file(adbd, "m.gguf") is None, "what was cut does not get the file's name"
    subprocess.run(["adb", "connect", target.device], capture_output=True, timeout=60)
    subprocess.run(["adb", "-s", target.device, "wait-for-device"], capture_output=True, timeout=60)
    assert target.push(model, MODEL_SHA) == model.stat().st_size
    received = adbd.received
    assert target.push(model, MODEL_SHA) == 0
    assert adbd.received == received
    back = tmp_path / "back"
    target.pull(target.blob(MODEL_SHA, "m.gguf"), back)
    assert back.read_bytes() == model.read_bytes()


def target_file(adbd: FakeAdbd, name: str) -> Path | None:
    return next((path for path in adbd.folder.rglob(name) if path.is_file()), None)


@pytest.mark.native
def test_a_ladder_with_a_killed_run_is_recorded_and_resumed(target: AdbTarget, tmp_path: Path) -> None:
    model, work = make_model(tmp_path), tmp_path / "work"
    once = tmp_path / "killed"
    arm = f'*lookahead-r1*) [ -e "{once}" ] || {{ touch "{once}"; kill -9 $$; }};;'
    target.runner_path = make_runner(tmp_path / "runner", arm)
    made = run_suite(model, SUITE, target, work=work, recorded=tmp_path / "recorded")
    rows = {row["rung"]: row for row in made.document["rows"]}
    assert rows["+ lookahead"]["failure"] == "killed for memory", rows["+ lookahead"]["error"]
    assert rows["baseline"]["lossless"]["verdict"] == "bit-exact"
    assert made.folder.name.endswith("-fake-phone-3-test")
    assert made.document["target"]["verified"]["level"] == "fake-peer"
    recorded = (made.folder / "results.json").read_text() + (made.folder / "manifest.json").read_text()
    assert SERIAL not in recorded
    again = run_suite(model, SUITE, target, work=work, recorded=tmp_path / "recorded")
    assert [row["status"] for row in again.document["rows"]] == ["ok"] * 3
    assert (again.ran, again.reused) == (1, made.ran + made.reused)
