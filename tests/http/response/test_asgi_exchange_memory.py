"""Large bodies pass through with bounded memory."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.http.asgi_server import give, protected, reply, run, start

from onceward.http.asgi_types import Message, Receive, Send
from onceward.store.sqlite import SqliteStore

MB = 1024 * 1024
PIECE_BYTES = 256 * 1024


@contextmanager
def peak_under(megabytes: int) -> Iterator[None]:
    """Assert that the block needs less memory than this at any time."""
    gc.collect()
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < megabytes * MB, f"{peak / MB:.1f} MB at the peak"


class Client:
    """Send this many bytes, and count the response without storing it."""

    def __init__(self, megabytes: int = 0) -> None:
        self._left = max(megabytes * MB // PIECE_BYTES, 1)
        self._piece_bytes = PIECE_BYTES if megabytes else 0
        self.status = 0
        self.replayed = False
        self.got = 0

    async def receive(self) -> Message:
        if not self._left:
            await asyncio.Event().wait()
        self._left -= 1
        return {"type": "http.request", "body": bytes(self._piece_bytes), "more_body": self._left > 0}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.replayed = (b"idempotent-replayed", b"true") in message["headers"]
        self.got += len(message.get("body", b""))


async def send_request(app: Any, megabytes: int = 0) -> Client:
    client = Client(megabytes)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(b"idempotency-key", b"k")],
    }
    await app(scope, client.receive, client.send)
    return client


def streaming(megabytes: int) -> Any:
    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        await start(send)
        for _ in range(megabytes * MB // PIECE_BYTES):
            await give(send, bytes(PIECE_BYTES))
        await give(send, more=False)

    return app


def test_a_response_that_is_too_large_to_store_streams_through(tmp_path: Path) -> None:
    async def main() -> None:
        with protected(streaming(64), SqliteStore(tmp_path / "keys.db"), max_response_bytes=8 * MB) as middleware:
            with peak_under(8):
                first = await send_request(middleware)
            retry = await send_request(middleware)

            assert (first.status, first.got) == (201, 64 * MB)
            assert retry.status == 409
            assert retry.got < 1000

    run(main())


def test_a_large_response_is_recorded_and_replayed_piece_by_piece(tmp_path: Path) -> None:
    async def main() -> None:
        with protected(streaming(15), SqliteStore(tmp_path / "keys.db")) as middleware:
            with peak_under(8):
                first = await send_request(middleware)
            with peak_under(8):
                retry = await send_request(middleware)

            assert (first.status, first.got, first.replayed) == (201, 15 * MB, False)
            assert (retry.status, retry.got, retry.replayed) == (201, 15 * MB, True)

    run(main())


def test_a_large_request_goes_through_a_file() -> None:
    async def app(_scope: Any, receive: Receive, send: Send) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size += len(message["body"])
            more = message["more_body"]
        await reply(send, b"%d" % size)

    async def main() -> None:
        with protected(app) as middleware:
            with peak_under(2):
                first = await send_request(middleware, 9)

            assert (first.status, first.got) == (201, len(str(9 * MB)))
            assert (await send_request(middleware, 9)).replayed

    run(main())
