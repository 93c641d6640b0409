"""Events per second that one hub process delivers to WebSocket clients, all of them at the live edge.

    python -m bench.hub.fanout [--clients 200] [--seconds 5] [--database URL] [--any-server] [--stalled 1]

The hub process has a thread that commits events. One other process holds all clients, which only count. *Single* commits
one event at a time, as fast as the database accepts them. *Bulk* commits 50 at a time. *Replay* is one client that starts
without events and reads the whole log. Stalled clients are extra clients that connect and never read.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import multiprocessing
import os
import select
import socket
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.events.feed import Feed
from onceward.hub.events.log import NewEvent, append
from onceward.hub.routes import events
from onceward.hub.server.http_protocol import HttpProtocol
from onceward.hub.server.websocket_protocol import FramesProtocol

_EVENT = NewEvent(
    "topic.attachment_added",
    "top_0000000000000000000000",
    "attachment",
    "att_0000000000000000000000",
    '{"attachment":{"id":"att_0000000000000000000000","kind":"citation","key":"url","value_json":'
    '{"url":"https://example.com/some/article","title":"An article"},"dedupe_key":"url:https://example.com"}}',
)
REPLAY = "replay"
_MARK = b'"type":"event"'


@dataclass(frozen=True, slots=True)
class Hub:
    database: Database
    feed: Feed


def serve(url: str, ready_made: bool, commands: Connection) -> None:
    """Run the hub. Each item of `commands` is (events per commit, seconds); a size of 0 ends the hub."""
    with closing(open_database(url)) as database:
        migrate(database)
        feed = Feed(database)
        app = FastAPI()
        app.state.hub = Hub(database, feed)
        app.include_router(events.router)
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            ws=FramesProtocol if ready_made else WebSocketsSansIOProtocol,
            ws_per_message_deflate=False,
            ws_ping_interval=None,
            log_level="error",
            lifespan="off",
        )
        server = uvicorn.Server(config)
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        commands.send(listener.getsockname()[1])

        def write() -> None:
            while True:
                size, seconds = commands.recv()
                if not size:
                    server.should_exit = True
                    return
                written, until = 0, time.monotonic() + seconds
                while not written or time.monotonic() < until:
                    with database.write() as tx:
                        append(tx, [_EVENT] * size)
                    feed.notify()
                    written += size
                commands.send(written)

        threading.Thread(target=write, daemon=True).start()
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_serve(server, listener, feed))


async def _serve(server: uvicorn.Server, listener: socket.socket, feed: Feed) -> None:
    await server.serve([listener])
    await feed.stop()


def count(port: int, clients: int, orders: Connection) -> None:
    """Run clients that only count events. Each order is a total number of events; the result says how long it took."""
    sockets = [_follow(port) for _ in range(clients)]
    poll = select.epoll()
    by_number = {one.fileno(): one for one in sockets}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    rests = dict.fromkeys(by_number, b"")
    orders.send("ready")
    poll.register(orders.fileno(), select.EPOLLIN)
    seen, wanted, first = 0, 0, 0.0
    while True:
        for number, _ in poll.poll():
            if number == orders.fileno():
                if not (wanted := orders.recv()):
                    return
                continue
            data = by_number[number].recv(1 << 18)
            first = first or time.monotonic()
            whole = rests[number] + data
            seen += whole.count(_MARK)
            # A mark that is split between two reads is counted with the second, and no mark is counted twice.
            rests[number] = whole[-(len(_MARK) - 1) :]
        if wanted and seen >= wanted:
            orders.send((seen, time.monotonic() - first, time.process_time()))
            seen, wanted, first = 0, 0, 0.0


def replay(port: int, count: int) -> float:
    """Return the seconds that one client takes to read this many events of the log."""
    seen, rest = 0, b""
    began = time.monotonic()
    with _connect(port, b'{"type":"hello","after_event_id":0}') as one:
        while seen < count:
            whole = rest + one.recv(1 << 18)
            seen += whole.count(_MARK)
            rest = whole[-(len(_MARK) - 1) :]
    return time.monotonic() - began


def _follow(port: int) -> socket.socket:
    one = _connect(port, b'{"type":"hello"}')
    _until(one, b"caught_up")
    return one


def _connect(port: int, handshake: bytes) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port))
    key = base64.b64encode(os.urandom(16)).decode()
    one.sendall(
        f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
    )
    _until(one, b"\r\n\r\n")
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(handshake))
    one.sendall(bytes((0x81, 0x80 | len(handshake))) + mask + masked)
    return one


def _until(one: socket.socket, text: bytes) -> None:
    received = b""
    while text not in received:
        received += one.recv(4096)


def _resident_mib(pid: int | None) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(url: str, clients: int, seconds: float, *, ready_made: bool, stalled: int = 0) -> dict[str, float]:
    """Return deliveries per second for single and bulk commits, and events per second of a replay."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    hub = context.Process(target=serve, args=(url, ready_made, there))
    hub.start()
    port: Any = here.recv()
    ours, theirs = context.Pipe()
    counter = context.Process(target=count, args=(port, clients, theirs))
    counter.start()
    assert ours.recv() == "ready"
    rates: dict[str, float] = {}
    there_are = 0
    silent = [_follow(port) for _ in range(stalled)]
    for name, size in (("single", 1), ("bulk", 50)):
        here.send((size, seconds))
        written: Any = here.recv()
        ours.send(written * clients)
        seen, took, _ = ours.recv()
        assert seen == written * clients, f"clients got {seen} events, expected {written * clients}"
        rates[name] = seen / took
        there_are += written
        print(
            f"{name:8}{written / seconds:8.0f} events/s written {seen / took:12,.0f} deliveries/s"
            f" {_resident_mib(hub.pid):8.1f} MiB"
        )
    for one in silent:
        one.close()
    rates[REPLAY] = there_are / replay(port, there_are)
    print(f"{REPLAY:8}{there_are:8,} events in total {rates[REPLAY]:22,.0f} events/s")
    ours.send(0)
    here.send((0, 0))
    counter.join()
    hub.join()
    return rates


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", type=int, default=200)
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--database", default="")
    options.add_argument(
        "--any-server", action="store_true", help="use the WebSocket protocol of uvicorn, without prebuilt frames"
    )
    options.add_argument("--stalled", type=int, default=0)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.database or f"sqlite:///{folder}/hub.db"
        measure(url, given.clients, given.seconds, ready_made=not given.any_server, stalled=given.stalled)


if __name__ == "__main__":
    main()
