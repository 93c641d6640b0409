"""A keyed request whose call is cancelled: by a timeout or a shutdown, which ends it, or for a client that left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from tests.http.asgi_server import Call, give, protected, read, reply, run, send_request, start
from tests.store.blockable_store import BlockableStore
from tests.waiting import soon

from onceward.core.claim import Append, Move, Verb, Write
from onceward.errors import StoreUnavailable
from onceward.http.asgi_types import App, Receive, Send
from onceward.http.request.buffered_body import MEMORY_BYTES_MAX

WAITS = (b"prefer", b"wait=2")
PIECE = b"x" * 65536
IN_MEMORY = (PIECE,) * 3
IN_A_FILE = (PIECE,) * (MEMORY_BYTES_MAX // len(PIECE) + 2)


class Slow:
    """A handler that reads its body only on request."""

    def __init__(self) -> None:
        self.runs = 0
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended: list[str] = []

    async def __call__(self, _scope: Any, receive: Receive, send: Send) -> None:
        self.runs += 1
        self.began.set()
        try:
            await self.go_on.wait()
            await reply(send, b"%d" % len(await read(receive)))
            self.ended.append("well")
        except BaseException as error:
            self.ended.append(type(error).__name__)
            raise


class Timed:
    """A timeout around an application. One of anyio cancels in every iteration of the loop until the task ends."""

    def __init__(self, app: App, kind: str) -> None:
        self._app = app
        self._kind = kind
        self.expire: Callable[[], None] = lambda: None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if self._kind == "anyio":
            with anyio.CancelScope() as scoped:
                self.expire = scoped.cancel
                await self._app(scope, receive, send)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as timeout:
                    self.expire = lambda: timeout.reschedule(asyncio.get_running_loop().time())
                    await self._app(scope, receive, send)


@pytest.mark.parametrize("body", [IN_MEMORY, IN_A_FILE], ids=["in memory", "in a file"])
def test_a_handler_cancelled_because_its_client_left_still_reads_its_whole_body(
    body: tuple[bytes, ...],
) -> None:
    async def main() -> None:
        app = Slow()
        with protected(app) as middleware:
            first = Call(middleware, "/", *body)
            await app.began.wait()
            first.leave()
            await first.cancelled()
            app.go_on.set()
            await soon(lambda: not middleware._tasks)

            retry = await send_request(middleware, "/", *body)

            assert app.ended == ["well"]
            assert (retry.status, retry.body, retry.replayed) == (201, b"%d" % sum(map(len, body)), True)
            assert app.runs == 1

    run(main())


def test_a_handler_cancelled_repeatedly_because_its_client_left_runs_on() -> None:
    async def main() -> None:
        app = Slow()
        with protected(app) as middleware:
            timed = Timed(middleware, "anyio")
            first = Call(timed, "/", *IN_MEMORY)
            await app.began.wait()
            first.leave()
            timed.expire()
            await first.task
            assert app.ended == []
            app.go_on.set()
            await soon(lambda: not middleware._tasks)

            retry = await send_request(middleware, "/", *IN_MEMORY)

            assert (retry.status, retry.body, retry.replayed) == (201, b"%d" % sum(map(len, IN_MEMORY)), True)
            assert app.runs == 1

    run(main())


@pytest.mark.parametrize("kind", ["anyio", "asyncio"])
@pytest.mark.parametrize(("on_crash", "status"), [("repeat", 201), ("hold", 409)])
def test_a_timeout_around_the_application_ends_the_handler_with_an_unknown_outcome(
    kind: str, on_crash: str, status: int
) -> None:
    async def main() -> None:
        app = Slow()
        with protected(app, on_crash=on_crash) as middleware:
            timed = Timed(middleware, kind)
            first = Call(timed)
            await app.began.wait()
            timed.expire()
            await first.task
            await soon(lambda: not middleware._tasks)
            assert app.ended == ["CancelledError"]
            assert first.got.status == 0
            app.go_on.set()

            retry = await send_request(middleware)

            assert retry.status == status
            assert (b"in-doubt" in retry.body) is (on_crash == "hold")
            assert app.runs == (2 if on_crash == "repeat" else 1)

    run(main())


@pytest.mark.parametrize("background", [3, 10**9], ids=["over", "not over"])
@pytest.mark.parametrize("kind", ["sized", "streamed"])
def test_a_response_being_settled_when_its_call_is_cancelled_is_still_settled(kind: str, background: int) -> None:
    async def main() -> None:
        store = BlockableStore()
        gate = threading.Event()

        def hold_up(writes: Sequence[Write]) -> None:
            assert not _recordings(writes) or gate.wait(10)

        store.spoil = hold_up

        async def app(_scope: Any, _receive: Receive, send: Send) -> None:
            if kind == "streamed":
                await start(send)
                await give(send, b"pi")
                await give(send, b"ece", more=False)
            else:
                await reply(send, b"piece")
            for _ in range(background):
                await asyncio.sleep(0)

        with protected(app, store) as middleware:
            first = Call(middleware)
            await soon(lambda: _recordings(store.writes_of("k")))
            for _ in range(10):
                await asyncio.sleep(0)
            first.task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            gate.set()
            await asyncio.wait({first.task})
            assert first.task.cancelled()

            retry = await send_request(middleware)

            assert (retry.status, retry.body, retry.replayed) == (201, b"piece", True)

    run(main())


@pytest.mark.parametrize(("on_crash", "again"), [("repeat", 201), ("hold", 409)])
def test_a_response_that_could_not_be_settled_when_its_call_was_cancelled_frees_its_key(
    on_crash: str, again: int
) -> None:
    """The response is a stream with a background task: a failed settle must not hide that the handler was cancelled."""

    async def main() -> None:
        store = BlockableStore()
        runs = 0

        def refuse_to_settle(writes: Sequence[Write]) -> None:
            if runs == 1 and _settlings(writes):
                raise StoreUnavailable("down")

        store.spoil = refuse_to_settle

        async def app(_scope: Any, _receive: Receive, send: Send) -> None:
            nonlocal runs
            runs += 1
            await start(send)
            await give(send, b"a")
            await give(send, b"b", more=False)
            if runs == 1:
                await asyncio.Event().wait()

        with protected(app, store, store_seconds=0.05, on_crash=on_crash) as middleware:
            first = Call(middleware)
            await soon(lambda: _settlings(store.writes_of("k")))
            await first.cancelled()

            retry = await send_request(middleware)

            assert (retry.status, runs) == (again, 2 if on_crash == "repeat" else 1)
            assert not retry.replayed

    run(main())


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_after_a_cancellation_at_any_step_the_key_is_free_or_the_response_is_stored(
    streamed: bool, background: bool
) -> None:
    async def main() -> None:
        runs = 0

        async def app(_scope: Any, receive: Receive, send: Send) -> None:
            nonlocal runs
            runs += 1
            await read(receive)
            await asyncio.sleep(0)
            answer = b"%d" % runs
            if streamed:
                await start(send)
                await give(send, answer)
                await asyncio.sleep(0)
                await give(send, answer, more=False)
            else:
                await reply(send, answer)
            for _ in range(4 * background):
                await asyncio.sleep(0)

        with protected(app) as middleware:
            for steps in range(45):
                first = Call(middleware, "/", b"a", b"b", key=f"k{steps}")
                for _ in range(steps):
                    await asyncio.sleep(0)
                first.task.cancel()
                await asyncio.wait({first.task})
                await soon(lambda: not middleware._tasks)

                headers = [(b"idempotency-key", f"k{steps}".encode()), WAITS]  # a claim may be on its way back
                retry = await send_request(middleware, "/", b"a", b"b", headers=headers)

                assert retry.status == 201, f"cancelled after {steps} steps"
                if first.got.whole:
                    assert (retry.body, retry.replayed) == (first.got.body, True), f"cancelled after {steps} steps"

    run(main())


def test_a_handler_cancelled_before_its_first_step_releases_its_key() -> None:
    """A loop that ends, or an application that stops, cancels all its tasks."""

    def cancelling(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        if coroutine.__qualname__ == "AsgiExchange.run":
            task.cancel()
        return task

    async def main() -> None:
        app, store = Slow(), BlockableStore()
        loop = asyncio.get_running_loop()
        with protected(app, store, on_crash="hold") as middleware:
            loop.set_task_factory(cancelling)
            first = Call(middleware, "/", *IN_A_FILE)
            await asyncio.wait({first.task})
            loop.set_task_factory(None)
            assert first.task.cancelled()
            assert app.runs == 0
            last = store.writes_of("k")[-1]
            assert isinstance(last, Move)
            assert last.verb is Verb.RELEASE, "nothing happened, and nobody need doubt it"
            app.go_on.set()

            assert (await send_request(middleware, "/", *IN_A_FILE)).status == 201

    run(main())


def test_a_released_claim_is_no_longer_renewed() -> None:
    """A later renewal would restore the lease of a claim without a holder."""

    async def main() -> None:
        app, store = Slow(), BlockableStore()
        with protected(app, store) as middleware:
            renewed: list[int] = []

            def count_renewals(writes: Sequence[Write]) -> None:
                kept = len(middleware._admission.ledger._dispatcher._renewals._active)
                renewed.extend(kept for write in writes if isinstance(write, Move) and write.verb is Verb.RENEW)

            store.spoil = count_renewals
            first = Call(middleware)
            await app.began.wait()
            await first.cancelled()

            assert renewed == [0]

    run(main())


def test_a_handler_that_is_cancelled_twice_still_releases_its_claim() -> None:
    async def main() -> None:
        app, store = Slow(), BlockableStore()
        with protected(app, store) as middleware:
            first = Call(middleware)
            await app.began.wait()
            (handler,) = middleware._tasks
            store.hold()
            other = asyncio.ensure_future(middleware._admission.ledger.begin("s", "another", repeatable=True))
            await soon(lambda: store.writes_of("another"))
            handler.cancel()
            await soon(lambda: app.ended)
            handler.cancel()  # the lapse is queued behind the other's write
            await asyncio.wait({first.task})
            store.let_go()
            await other
            app.go_on.set()

            retry = await send_request(middleware, headers=[(b"idempotency-key", b"k"), WAITS])

            assert (retry.status, app.runs) == (201, 2)

    run(main())


def _recordings(writes: Sequence[Write]) -> list[Write]:
    return [*_settlings(writes), *(write for write in writes if isinstance(write, Append))]


def _settlings(writes: Sequence[Write]) -> list[Write]:
    return [write for write in writes if isinstance(write, Move) and write.verb is Verb.SETTLE]
