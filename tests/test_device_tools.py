"""iOS and HarmonyOS targets: the real pymobiledevice3 with a stand-in for usbmuxd; devicectl and hdc as transcripts."""

from __future__ import annotations

import asyncio
import plistlib
import shutil
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replay import FOLDER, Replay

from workbench.devices.failures import LOCKED, LOST, MEMORY, DeviceError, classify
from workbench.devices.targets import TARGETS
from workbench.devices.targets.devicectl import DevicectlTarget
from workbench.devices.targets.hdc import HdcTarget
from workbench.devices.targets.ios import IosTarget

UDID = "00008140-0011223344556677"
SHA = "ab" * 32
needs_tool = pytest.mark.skipif(
    shutil.which("pymobiledevice3", path=str(Path(sys.executable).parent)) is None,
    reason="pymobiledevice3 is not installed: uv sync --group device-test",
)


class FakeUsbmuxd:
    """Lists devices and has no pair record for any; speaks usbmuxd's plist protocol on loopback."""

    def __init__(self, udids: list[str]) -> None:
        self.udids = udids
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self.server.sockets[0].getsockname()[1]
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=30)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length, version, kind, tag = struct.unpack("<IIII", await reader.readexactly(16))
                answer = plistlib.dumps(self._answer(plistlib.loads(await reader.readexactly(length - 16))))
                writer.write(struct.pack("<IIII", 16 + len(answer), version, kind, tag) + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["MessageType"] == "ListDevices":
            devices = [
                {"DeviceID": i, "MessageType": "Attached",
                 "Properties": {"SerialNumber": udid, "ConnectionType": "USB", "DeviceID": i}}
                for i, udid in enumerate(self.udids, start=1)
            ]  # fmt: skip
            return {"DeviceList": devices}
        if asked["MessageType"] == "ReadBUID":
            return {"BUID": "0-0"}
        return {"MessageType": "Result", "Number": 3 if asked["MessageType"] == "Connect" else 2}


@pytest.fixture
def usbmuxd(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeUsbmuxd]:
    fake = FakeUsbmuxd([UDID])
    monkeypatch.setenv("PYMOBILEDEVICE3_USBMUX", f"127.0.0.1:{fake.port}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    yield fake
    fake.close()


@needs_tool
def test_pymobiledevice3_lists_what_usbmuxd_knows(usbmuxd: FakeUsbmuxd) -> None:
    assert IosTarget().attached() == [UDID]


@needs_tool
@pytest.mark.slow
def test_pymobiledevice3_takes_our_options_and_an_absent_device_is_a_lost_one(usbmuxd: FakeUsbmuxd) -> None:
    usbmuxd.udids = []
    target = IosTarget()
    for argv in (target.launch_argv("job"), target.push_argv(__file__, "x.json")):
        finished = target.run_tool(argv, timeout=300)
        assert finished.rc != 0
        assert "Usage:" not in finished.text, finished.text
        assert classify(finished) == LOST, finished.text


class TestDevicectl:
    def target(self) -> DevicectlTarget:
        return DevicectlTarget(device="AAAA-1111", run_tool=Replay("devicectl"))

    def test_facts_without_the_owner(self) -> None:
        facts = self.target().probe()
        assert (facts.name, facts.os, facts.machine) == ("iPhone17,1", "iOS 18.5", "arm64e")
        assert {"Planted's iPhone", "PLANTEDSER", UDID, "AAAA-1111"} <= set(facts.secrets)
        assert "secrets" not in facts.public()

    def test_a_run_ends_as_its_last_record_says(self) -> None:
        lines: list[str] = []
        finished = self.target().run({"run_id": "good", "model": "m"}, on_line=lines.append)
        assert finished.rc == 0
        assert lines[-1].startswith('{"t":"end"')
        assert not any("\r" in line for line in lines)

    def test_a_locked_device_and_an_app_killed_for_memory(self) -> None:
        target = self.target()
        assert classify(target.run({"run_id": "locked"}, on_line=print)) == LOCKED
        with pytest.raises(DeviceError) as error:
            target.run({"run_id": "jetsam"}, on_line=print)
        assert error.value.kind == MEMORY

    def test_a_push_is_marked_complete(self, tmp_path: Path) -> None:
        target = self.target()
        model = tmp_path / "m.gguf"
        model.write_bytes(b"x" * 10)
        assert target.push(model, SHA) == 10
        asked = target.run_tool.asked  # type: ignore[attr-defined]
        assert [" copy to " in line for line in asked] == [False, True, True], "asked, sent, marked"
        assert asked[1].endswith(f"Documents/{SHA}-m.gguf")
        assert asked[2].endswith(f"Documents/{SHA}-m.gguf.complete")


class TestHdc:
    def target(self) -> HdcTarget:
        return HdcTarget(device="KEY0000001", run_tool=Replay("hdc"))

    def test_facts(self) -> None:
        facts = self.target().probe()
        assert (facts.name, facts.n_cpu, facts.memory_bytes) == ("linux-aarch64", 8, 12_000_000 * 1024)
        assert self.target().attached() == ["KEY0000001"]

    def test_the_exit_status_is_the_commands_own(self) -> None:
        target = self.target()
        finished = target.finish(target.run_tool(target.shell_argv("exit 7")))
        assert (finished.rc, finished.out.strip()) == (7, "")

    def test_a_shell_that_was_cut_has_failed(self) -> None:
        with pytest.raises(DeviceError) as error:
            self.target().shell("cat /cut", doing="reading")
        assert error.value.kind == LOST


def test_transcripts_say_where_they_are_from() -> None:
    import json

    for path in FOLDER.glob("*.json"):
        transcript = json.loads(path.read_text())
        assert transcript["target"] in TARGETS
        assert transcript["source"] in ("documentation", "recorded")
        if transcript["source"] == "documentation":
            assert "documentation" in TARGETS[transcript["target"]].verified.limits
