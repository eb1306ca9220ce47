"""The ssh target: the OpenSSH client against an SSH server in this process, with keys of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device_suites import SUITE, make_model, make_runner

from workbench.ablation.store import slug
from workbench.devices.failures import LOST, DeviceError
from workbench.devices.plan import plan, planned_runs
from workbench.devices.record import run_suite
from workbench.devices.targets.ssh import SshTarget

asyncssh = pytest.importorskip("asyncssh", reason="asyncssh is not installed: uv sync --group device-test")
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("ssh", "scp", "sftp"))), reason="no OpenSSH client: apt-get install openssh-client"
)
MODEL_SHA = "cd" * 32


class Board:
    """A server whose home is a folder. `cut_after` bytes of a push, or `cut_at` in a command, drop the connection;
    while `away`, nobody is let in."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.cut_after: int | None = None
        self.cut_at: str | None = None
        self.away = False
        self.received = 0
        self.loop = asyncio.new_event_loop()
        key, host = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        key.write_private_key(folder / "id")
        (folder / "id").chmod(0o600)
        authorized = asyncssh.import_authorized_keys(key.export_public_key().decode())
        self.server = self.loop.run_until_complete(
            asyncssh.listen(
                "127.0.0.1", 0, server_host_keys=[host], authorized_client_keys=authorized,
                process_factory=self._process, sftp_factory=self._files, encoding=None,
                acceptor=self._accept,
            )
        )  # fmt: skip
        port = self.server.sockets[0].getsockname()[1]
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host.export_public_key().decode()}")
        self.config = folder / "config"
        self.config.write_text(
            f"Host board\n HostName 127.0.0.1\n Port {port}\n User tester\n IdentityFile {folder}/id\n"
            f" IdentitiesOnly yes\n IdentityAgent none\n UserKnownHostsFile {folder}/known_hosts\n"
            " GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking yes\n"
        )
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.server.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=30)

    def _accept(self, connection: Any) -> None:
        if self.away:
            connection.abort()

    async def _process(self, process: Any) -> None:
        if self.cut_at and self.cut_at in process.command:
            self.away = True
            process.channel.get_connection().abort()
            return
        env = {**os.environ, "HOME": str(self.home)}
        ran = await asyncio.create_subprocess_exec(
            "sh", "-c", process.command, cwd=self.home, env=env, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

        async def pump(pipe: Any, to: Any) -> None:
            while data := await pipe.read(1 << 15):
                to.write(data)

        await asyncio.gather(pump(ran.stdout, process.stdout), pump(ran.stderr, process.stderr))
        process.exit(await ran.wait())

    def _files(self, channel: Any) -> Any:
        board = self

        class Files(asyncssh.SFTPServer):  # type: ignore[misc, name-defined, unused-ignore]
            def write(self, file_obj: Any, offset: int, data: bytes) -> int:
                board.received += len(data)
                if board.cut_after is not None and board.received > board.cut_after:
                    board.cut_after = None
                    channel.get_connection().abort()
                    raise asyncssh.SFTPConnectionLost("cut")
                return int(super().write(file_obj, offset, data))

            def exit(self) -> None:  # OpenSSH's own server says so too
                channel.exit(0)

        return Files(channel, chroot=os.fsencode(self.home))


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    made = Board(tmp_path_factory.mktemp("board"))
    yield made
    made.close()


@pytest.fixture
def target(board: Board) -> Iterator[SshTarget]:
    made = SshTarget(device="board", config=board.config)
    yield made
    made.close()


def test_exit_statuses_and_facts(target: SshTarget) -> None:
    finished = target.run_tool(target.shell_argv("echo 'a b'; echo err >&2; exit 7"))
    assert (finished.rc, finished.lines) == (7, ["a b"])
    assert "err" in finished.err
    facts = target.probe()
    assert facts.name == f"linux-{facts.machine}"
    assert facts.n_cpu
    assert "board" in facts.secrets


def test_a_cut_push_is_lost_and_then_made_whole(target: SshTarget, board: Board, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(os.urandom(3_000_000))
    board.cut_after = board.received + 1_500_000
    with pytest.raises(DeviceError) as error:
        target.push(model, MODEL_SHA)
    assert error.value.kind == LOST
    assert target.push(model, MODEL_SHA) > 0
    assert target.push(model, MODEL_SHA) == 0
    back = tmp_path / "back"
    target.pull(target.blob(MODEL_SHA, "m.gguf"), back)
    assert back.read_bytes() == model.read_bytes()


@pytest.mark.parametrize(("damaged", "sent"), [(False, 50_000), (True, 150_000)])
def test_a_push_goes_on_from_a_good_part_and_starts_again_after_a_damaged_one(
    target: SshTarget, board: Board, tmp_path: Path, damaged: bool, sent: int
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(os.urandom(100_000))
    digest = ("ee" if damaged else "ef") * 32
    partial = board.home / f"{target.blob(digest, model.name)}.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(bytes(50_000) if damaged else model.read_bytes()[:50_000])
    assert target.push(model, digest) == sent
    back = tmp_path / "back"
    target.pull(target.blob(digest, model.name), back)
    assert back.read_bytes() == model.read_bytes()


@pytest.mark.native
def test_a_ladder_whose_connection_is_lost_goes_on_later(board: Board, tmp_path: Path) -> None:
    model, work, recorded = make_model(tmp_path), tmp_path / "work", tmp_path / "recorded"

    def target() -> SshTarget:
        return SshTarget(device="board", config=board.config, runner_path=make_runner(tmp_path / "runner"))

    board.cut_at = "baseline-r1"
    made = run_suite(model, SUITE, target(), work=work, recorded=recorded)
    board.away, board.cut_at = False, None
    rows = {row["rung"]: row for row in made.document["rows"]}
    assert rows["baseline"]["failure"] == LOST
    assert rows["resident (stock)"]["failure"] == LOST, "it comes after the baseline in the second round"
    assert "not run" in rows["resident (stock)"]["error"], rows["resident (stock)"]["error"]
    assert rows["+ lookahead"]["status"] == "ok"
    again = run_suite(model, SUITE, target(), work=work, recorded=recorded)
    assert [row["status"] for row in again.document["rows"]] == ["ok"] * 3
    assert all(row["lossless"]["verdict"] == "bit-exact" for row in again.document["rows"])
    assert (again.reused, again.ran) == (made.reused + made.ran, 2)
    assert again.folder == made.folder
    assert (again.folder / "samples.parquet").is_file()
    assert [path.name for path in sorted((board.home / "les-workbench/out").iterdir())] == []
    blobs = list((board.home / "les-workbench/blobs").rglob("tiny.gguf*"))
    assert len(blobs) == 1, "the model was pushed once"
    labels = [slug(label) for label, _ in planned_runs(SUITE, plan_steps())]
    kept = {path.name.rpartition("-")[0] for path in (work / "runs").glob("*.jsonl")}
    assert kept == set(labels), "a dry run plans the runs that are made"
    assert plan(SUITE, target(), model).push_bytes == model.stat().st_size


def plan_steps() -> list[Any]:
    from workbench.ablation.rungs import ModelFacts, resolve

    return resolve(SUITE.rungs, base=SUITE.base, flash={}, facts=ModelFacts(n_expert=8, n_expert_used=2))
