"""A server on a real socket that follows a script, request by request, and records the requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

# Ends a test that would hang.
SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class ScriptedResponse:
    """A complete response. Without a length its body is sent in chunks."""

    status: int = 201
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"done"
    with_length: bool = True

    def text(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} Scripted", *(f"{name}: {value}" for name, value in self.headers.items())]
        if self.with_length:
            return head(*lines, f"Content-Length: {len(self.body)}") + self.body
        return head(*lines, "Transfer-Encoding: chunked") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(self.body), self.body)


@dataclass(frozen=True, slots=True)
class Cut:
    """Send these bytes and close the connection; with `read_body=False` before the body was read."""

    data: bytes = b""
    read_body: bool = True


@dataclass(frozen=True, slots=True)
class Hold:
    """Send this and then nothing until the client goes away."""

    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Trickle:
    """Send these bytes repeatedly, a few at a time, until the client disconnects."""

    data: bytes
    again: bytes
    every_seconds: float = 0.02


Step = ScriptedResponse | Cut | Hold | Trickle


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request, as it arrived."""

    connection: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None

    @property
    def key(self) -> str | None:
        return self.headers.get("idempotency-key")


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode()


def bind() -> socket.socket:
    """A port that is taken and refuses connections until somebody listens on it."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{sock.getsockname()[1]}"


class ScriptedServer:
    """A scripted server as a test uses it. A request beyond the script's end gets a 201."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.url = ""
        self.seen: list[ReceivedRequest] = []
        self.arrived = threading.Semaphore(0)
        self._steps = deque(steps)
        self._connections = 0
        self._live: set[asyncio.StreamWriter] = set()

    @property
    def keys(self) -> list[str | None]:
        return [seen.key for seen in self.seen]

    def wait_for_request(self) -> None:
        assert self.arrived.acquire(timeout=SECONDS_MAX), "no request came"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._live.add(writer)
        self._connections += 1
        number = self._connections
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._one(number, reader, writer):
                pass
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self._live.discard(writer)

    async def _one(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; return whether the connection can be reused."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip("\r\n").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        step = self._steps.popleft() if self._steps else ScriptedResponse()
        body = None if isinstance(step, Cut) and not step.read_body else await _body(reader, headers)
        method, path, _ = first.split(" ")
        self.seen.append(ReceivedRequest(number, method, path, headers, body))
        self.arrived.release()
        match step:
            case ScriptedResponse():
                writer.write(step.text())
                await writer.drain()
                return True
            case Cut():
                writer.write(step.data)
                await writer.drain()
                return False
            case Hold():
                writer.write(step.data)
                await reader.read()
                return False
            case Trickle():
                writer.write(step.data)
                gone = asyncio.ensure_future(reader.read())
                while not gone.done():
                    writer.write(step.again)
                    await asyncio.wait({gone}, timeout=step.every_seconds)
                await gone
                return False

    async def end(self) -> None:
        """Cut all connections, also those that were accepted a moment ago, until no request is being served."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for writer in self._live:
                writer.transport.abort()
            await asyncio.wait(others, timeout=0.01)


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readuntil(b"\r\n")
    return b"".join(parts)


@contextmanager
def scripted(*steps: Step, bound: socket.socket | None = None) -> Iterator[ScriptedServer]:
    """A server that listens until the block is left, on a port of its own or on a socket that is already bound."""
    sock = bound or bind()
    server = ScriptedServer(steps)
    listening = threading.Event()
    loop = asyncio.new_event_loop()
    enough = asyncio.Event()

    async def main() -> None:
        sockets = await asyncio.start_server(server.serve, sock=sock)
        server.url = url_of(sock)
        listening.set()
        await enough.wait()
        # In this order and without a wait in between: a connection that is being accepted then would leak.
        await server.end()
        sockets.close()
        await asyncio.sleep(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert listening.wait(SECONDS_MAX)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(enough.set)
        thread.join(SECONDS_MAX)
        loop.close()
