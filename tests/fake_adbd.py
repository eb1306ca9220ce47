"""A small adbd on loopback: shell v2 with exit statuses, sync push and pull. It runs commands of this machine."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = "/data/local/tmp"
BANNER = b"device::ro.product.name=fake;ro.product.model=Fake;ro.product.device=fake;features=shell_v2"
SERIAL = "FAKE0SERIAL42"
SCRIPTS = {
    "getprop": f'#!/bin/sh\ncase "$1" in ro.product.model) echo "Fake Phone 3";; ro.serialno) echo {SERIAL};; esac\n',
    "dumpsys": '#!/bin/sh\ncase "$1" in battery) echo "  level: 80"; echo "  temperature: 301";;\n'
    '*) echo "Thermal Status: 1";; esac\n',
}


class FakeAdbd:
    """Serves one folder as /data/local/tmp.

    Attributes
    ----------
    cut_after : int or None
        Bytes of a push after which the connection is dropped, as a pulled cable would.
    received : int
        Bytes pushed so far.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.cut_after, self.received = folder, None, 0
        self.tools = folder / "tools"
        self.tools.mkdir()
        for name, text in SCRIPTS.items():
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o755)
        self.loop = asyncio.new_event_loop()
        self.server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self.server.sockets[0].getsockname()[1]
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=30)

    def here(self, text: str) -> str:
        return text.replace(ROOT, str(self.folder))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams: dict[int, Stream] = {}
        lock = asyncio.Lock()

        async def send(command: bytes, arg0: int, arg1: int, data: bytes = b"") -> None:
            async with lock:
                magic = int.from_bytes(command, "little") ^ 0xFFFFFFFF
                head = struct.pack("<4sIIIII", command, arg0, arg1, len(data), sum(data) & 0xFFFFFFFF, magic)
                writer.write(head + data)
                await writer.drain()

        try:
            while True:
                command, arg0, arg1, length, _, _ = struct.unpack("<4sIIIII", await reader.readexactly(24))
                data = await reader.readexactly(length)
                if command == b"CNXN":
                    await send(b"CNXN", 0x01000001, 1 << 18, BANNER)
                elif command == b"OPEN":
                    number = len(streams) + 1
                    stream = streams[number] = Stream(number, arg0, send, writer.close)
                    await send(b"OKAY", number, arg0)
                    stream.task = asyncio.create_task(self._service(stream, data.rstrip(b"\0").decode()))
                elif command == b"WRTE" and arg1 in streams:
                    await send(b"OKAY", arg1, arg0)
                    streams[arg1].incoming.feed_data(data)
                elif command == b"OKAY" and arg1 in streams:
                    streams[arg1].acknowledged.set()
                elif command == b"CLSE" and arg1 in streams:
                    streams[arg1].incoming.feed_eof()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for stream in streams.values():
                stream.task.cancel()
            writer.close()

    async def _service(self, stream: Stream, name: str) -> None:
        try:
            if name.startswith("shell,v2"):
                await self._shell(stream, name.partition(":")[2])
            elif name == "sync:":
                await self._sync(stream)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        await stream.close()

    async def _shell(self, stream: Stream, command: str) -> None:
        env = {**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}"}
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", self.here(command), env=env, cwd=self.folder, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

        async def pump(number: int, pipe: Any) -> None:
            while data := await pipe.read(1 << 15):
                await stream.write(struct.pack("<BI", number, len(data)) + data)

        await asyncio.gather(pump(1, process.stdout), pump(2, process.stderr))
        rc = await process.wait()
        await stream.write(struct.pack("<BIB", 3, 1, rc if rc >= 0 else 128 - rc))

    async def _sync(self, stream: Stream) -> None:
        while True:
            kind, length = struct.unpack("<4sI", await stream.incoming.readexactly(8))
            if kind == b"QUIT":
                return
            name = self.here((await stream.incoming.readexactly(length)).decode())
            if kind == b"STAT":
                path = Path(name)
                stat = path.stat() if path.exists() else None
                values = (stat.st_mode, stat.st_size, int(stat.st_mtime)) if stat else (0, 0, 0)
                await stream.write(struct.pack("<4sIII", b"STAT", *values))
            elif kind == b"SEND":
                await self._receive(stream, Path(name.rpartition(",")[0]))
            elif kind == b"RECV":
                for block in _blocks(Path(name)):
                    await stream.write(struct.pack("<4sI", b"DATA", len(block)) + block)
                await stream.write(struct.pack("<4sI", b"DONE", 0))

    async def _receive(self, stream: Stream, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            while True:
                kind, length = struct.unpack("<4sI", await stream.incoming.readexactly(8))
                if kind == b"DONE":
                    break
                file.write(await stream.incoming.readexactly(length))
                self.received += length
                if self.cut_after is not None and self.received > self.cut_after:
                    self.cut_after = None
                    stream.cut()
                    raise ConnectionResetError
        if path.suffix == ".json":  # a job: its paths are those of the phone
            path.write_text(self.here(path.read_text()))
        await stream.write(struct.pack("<4sI", b"OKAY", 0))


class Stream:
    """One opened service of a connection; a write waits for its acknowledgement."""

    task: asyncio.Task[None]

    def __init__(self, ours: int, theirs: int, send: Callable[..., Awaitable[None]], cut: Callable[[], None]) -> None:
        self.ours, self.theirs, self.send, self.cut = ours, theirs, send, cut
        self.incoming, self.acknowledged = asyncio.StreamReader(), asyncio.Event()

    async def write(self, data: bytes) -> None:
        self.acknowledged.clear()
        await self.send(b"WRTE", self.ours, self.theirs, data)
        await self.acknowledged.wait()

    async def close(self) -> None:
        await self.send(b"CLSE", self.ours, self.theirs)


def _blocks(path: Path) -> list[bytes]:
    data = path.read_bytes()
    return [data[i : i + 65536] for i in range(0, len(data), 65536)]
