"""A streamed response: when its head is sent, which part is recorded, and the cost of a client that left."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest
from tests.http.asgi_server import Call, give, protected, reply, run, send_request, start
from tests.store.blockable_store import BlockableStore
from tests.waiting import soon

from onceward.http import IdempotencyMiddleware
from onceward.http.asgi_types import Receive, Send
from onceward.http.response.asgi_exchange import HOLD_SECONDS
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore

EVENTS = (b"content-type", b"text/event-stream")


class Silent:
    """A stream that sends this much and then waits, forever or until it may continue."""

    def __init__(self, *headers: tuple[bytes, bytes], pieces: tuple[bytes, ...] = ()) -> None:
        self.runs = 0
        self._headers = headers
        self._pieces = pieces
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended: list[str] = []

    async def __call__(self, _scope: Any, _receive: Receive, send: Send) -> None:
        self.runs += 1
        try:
            await start(send, *self._headers)
            for piece in self._pieces:
                await give(send, piece)
            self.began.set()
            await self.go_on.wait()
            await give(send, b"data: end\n\n", more=False)
            self.ended.append("well")
        except BaseException as error:
            self.ended.append(type(error).__name__)
            raise


SILENT = [
    pytest.param((EVENTS,), (), id="events, none yet"),
    pytest.param((EVENTS,), (b"data: 1\n\n",), id="events"),
    pytest.param((), (), id="chunked, none yet"),
    pytest.param((), (b"data: 1\n\n",), id="chunked"),
    pytest.param(((b"content-length", b"11"),), (), id="sized, none yet"),
    pytest.param(((b"content-length", b"20"),), (b"data: 1\n\n",), id="sized"),
]


@pytest.mark.parametrize(("headers", "pieces"), SILENT)
@pytest.mark.parametrize(("on_crash", "status"), [("repeat", 201), ("hold", 409)])
def test_a_stream_whose_client_left_continues_for_a_limited_time(
    headers: tuple[tuple[bytes, bytes], ...], pieces: tuple[bytes, ...], on_crash: str, status: int
) -> None:
    async def main() -> None:
        app = Silent(*headers, pieces=pieces)
        with protected(app, max_stream_seconds=0.02, on_crash=on_crash) as middleware:
            first = Call(middleware)
            await first.has(lambda got: got.status and len(got.pieces) == len(pieces))
            first.leave()
            await soon(lambda: app.ended)
            assert app.ended == ["CancelledError"]
            await first.task  # it ends without an error: the call was not cancelled
            await soon(lambda: not middleware._tasks)
            app.go_on.set()

            retry = await send_request(middleware)

            assert (retry.status, retry.replayed) == (status, False)
            assert (b"in-doubt" in retry.body) is (on_crash == "hold")
            assert app.runs == (2 if on_crash == "repeat" else 1)

    run(main())


def test_a_stream_whose_client_left_is_recorded_completely_if_it_ends_in_time() -> None:
    async def main() -> None:
        app = Silent(pieces=(b"data: 1\n\n",))
        with protected(app) as middleware:
            first = Call(middleware)
            await first.has(lambda got: got.pieces)
            first.leave()
            await first.task
            assert not app.ended, "the call ends with its client, so that a server that stops need not wait for it"
            app.go_on.set()
            await soon(lambda: not middleware._tasks)

            retry = await send_request(middleware)

            assert (retry.status, retry.body, retry.replayed) == (201, b"data: 1\n\ndata: end\n\n", True)
            assert (app.runs, app.ended) == (1, ["well"])

    run(main())


def test_a_duplicate_that_joined_a_silent_stream_ends_when_its_client_leaves() -> None:
    async def main() -> None:
        app, store = Silent(EVENTS, pieces=(b"data: 1\n\n",)), BlockableStore()
        with protected(app, store) as middleware:
            first = Call(middleware)
            await first.has(lambda got: got.pieces)
            joined = [Call(middleware) for _ in range(5)]

            def all_have_joined() -> bool:
                # The first piece is on its way before it is written down.
                joined[:] = [Call(middleware) if call.got.status == 409 else call for call in joined]
                return all(call.got.pieces for call in joined)

            await soon(all_have_joined, "nobody can join")
            for call in joined:
                call.leave()
            await asyncio.gather(*(call.task for call in joined))
            assert not app.ended
            await soon(lambda: len(asyncio.all_tasks()) <= 4)  # this, the call, its handler, who waits for its client
            read = len(store.reads)
            begun = asyncio.get_running_loop().time()
            await soon(lambda: asyncio.get_running_loop().time() > begun + 0.05)
            assert len(store.reads) == read, "nobody looks after the stream any more"
            app.go_on.set()
            await first.task

            assert all(call.got.replayed and not call.got.whole for call in joined)
            assert app.runs == 1

    run(main())


def test_a_compressed_event_stream_is_passed_on_and_replayed_unchanged() -> None:
    events = [b"data: %d\n\n" % number for number in range(50)]
    packer = zlib.compressobj(wbits=31)
    packed = [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) for event in events]
    packed.append(packer.flush())

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        await start(send, EVENTS, (b"Content-Encoding", b"gzip"))
        for piece in packed:
            await give(send, piece)
        await give(send, more=False)

    async def main() -> None:
        with protected(app) as middleware:
            first, retry = await send_request(middleware), await send_request(middleware)

        assert first.pieces[:-1] == packed, "each piece as it came"
        assert (retry.body, retry.replayed) == (first.body, True)
        assert zlib.decompress(first.body, wbits=31) == b"".join(events)

    run(main())


def test_an_event_stream_with_identity_encoding_has_ids() -> None:
    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        await start(send, EVENTS, (b"content-encoding", b" Identity"))
        await give(send, b"data: 1\n\n", more=False)

    async def main() -> None:
        with protected(app) as middleware:
            assert b"id: " in (await send_request(middleware)).body

    run(main())


@pytest.mark.parametrize("headers", [(), ((b"content-length", b"30"),)], ids=["chunked", "sized"])
def test_a_handler_may_reuse_its_buffer(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        buffer = bytearray(10)
        await start(send, *headers)
        for number in range(3):
            buffer[:] = b"%d" % number * 10
            await give(send, buffer, more=number < 2)
            buffer[:] = b"-" * 10

    async def main() -> None:
        with protected(app) as middleware:
            first, retry = await send_request(middleware), await send_request(middleware)

        assert first.body == retry.body == b"0" * 10 + b"1" * 10 + b"2" * 10
        assert retry.replayed

    run(main())


@pytest.mark.parametrize("headers", [(), ((b"content-length", b"11"),), (EVENTS,)], ids=["chunked", "sized", "events"])
def test_the_head_of_a_slow_response_does_not_wait_for_its_body(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    async def main() -> None:
        app = Silent(*headers)
        with protected(app) as middleware:
            first = Call(middleware)
            await first.has(lambda got: got.status)
            assert first.got.status == 201
            assert not first.got.pieces
            app.go_on.set()
            await first.task

            retry = await send_request(middleware)

            assert first.got.whole
            assert (retry.body, retry.replayed) == (first.got.body, True)

    run(main())


def test_the_head_of_a_small_response_waits_until_it_is_settled() -> None:
    """Another response is sent in its place if nothing can be recorded."""

    async def main() -> None:
        store = BlockableStore()
        began = asyncio.Event()

        async def app(_scope: Any, _receive: Receive, send: Send) -> None:
            store.hold()
            await reply(send, b"x")
            began.set()

        with protected(app, store) as middleware:
            first = Call(middleware)
            await began.wait()
            await soon(lambda: len(store.writes_of("k")) == 2)
            assert first.got.status == 0
            store.let_go()
            await first.task

            assert (first.got.status, first.got.body) == (201, b"x")

    run(main())


@pytest.mark.parametrize("headers", [(), (EVENTS,), ((b"content-length", b"10"),)], ids=["chunked", "events", "sized"])
def test_a_keyed_handler_never_sees_its_client_leave_before_its_response_is_complete(
    headers: tuple[tuple[bytes, bytes], ...],
) -> None:
    async def main() -> None:
        seen: list[str] = []

        async def app(_scope: Any, receive: Receive, send: Send) -> None:
            seen.append((await receive())["type"])
            listener = asyncio.ensure_future(receive())
            await start(send, *headers)
            await give(send, b"12345")
            seen.append("a piece")
            first.leave()
            done, _ = await asyncio.wait({listener}, timeout=0.02)
            assert not done
            await give(send, b"67890", more=False)
            seen.append((await listener)["type"])
            seen.append((await receive())["type"])

        with protected(app) as middleware:
            first = Call(middleware)
            await first.task
            await soon(lambda: not middleware._tasks)

            assert seen == ["http.request", "a piece", "http.disconnect", "http.disconnect"]
            assert (await send_request(middleware)).replayed

    run(main())


def test_the_start_of_a_failed_response_is_not_sent_after_its_end() -> None:
    """The ledger is closed, so the handler ends before anything was sent."""
    ledger = Ledger(MemoryStore())
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        ledger.close()
        raise ValueError

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}
        with pytest.raises(ValueError):  # noqa: PT011  # the handler's own
            await IdempotencyMiddleware(app, ledger)(scope, receive, send)
        loop = asyncio.get_running_loop()
        held_back = loop.create_future()
        loop.call_later(3 * HOLD_SECONDS, held_back.set_result, None)  # far behind what would send it
        await held_back

    asyncio.run(main())
    assert sent == []


@pytest.mark.parametrize("headers", [(), (EVENTS,), ((b"content-length", b"10"),)], ids=["chunked", "events", "sized"])
def test_work_after_the_response_is_not_cancelled_when_the_server_has_finished_with_its_client(
    headers: tuple[tuple[bytes, bytes], ...],
) -> None:
    """After a complete response, a server reports the same as for a disconnected client."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ended: list[str] = []

        async def app(_scope: Any, _receive: Receive, send: Send) -> None:
            await start(send, *headers)
            await give(send, b"data:")
            await give(send, b" 1\n\n\n", more=False)
            try:
                await first.has(lambda got: got.whole)
                first.leave()
                until = loop.time() + 0.05  # long after the stream of a client that left would be ended
                await soon(lambda: loop.time() > until)
                ended.append("well")
            except BaseException as error:
                ended.append(type(error).__name__)
                raise

        with protected(app, max_stream_seconds=0.001) as middleware:
            first = Call(middleware)
            await first.task
            await soon(lambda: not middleware._tasks)

            assert ended == ["well"]

    run(main())
