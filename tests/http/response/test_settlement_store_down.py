"""A response that cannot be settled: its client gets an error at once, and the response is recorded later if possible."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.http.asgi_server import Call, give, protected, reply, run, send_request, start
from tests.waiting import soon

from onceward.core.outcome import CHUNK_BYTES_MAX
from onceward.errors import StoreUnavailable
from onceward.http.asgi_types import Receive, Send
from onceward.http.response import settlement
from onceward.store.memory import MemoryStore
from onceward.testing import FaultyStore

WAITS = (b"prefer", b"wait=2")


class FailingStore:
    """A handler whose store fails from the start of the handler until the test ends the outage."""

    def __init__(self, *, streamed: bool = False, background: bool = False) -> None:
        self.store = FaultyStore(MemoryStore())
        self._down = self.store.unavailable()
        self._streamed = streamed
        self._background = background
        self.over = asyncio.Event()
        self.runs = 0

    async def app(self, _scope: Any, _receive: Receive, send: Send) -> None:
        self.runs += 1
        first = self.runs == 1
        if first:
            self._down.__enter__()
        if self._streamed:
            await start(send)
            await give(send, b"%d" % self.runs)
            await give(send, b"!", more=False)
        else:
            await reply(send, b"%d!" % self.runs)
        if first and self._background:
            await self.over.wait()

    def is_back(self) -> None:
        self._down.__exit__(None, None, None)


def test_an_unrecorded_response_is_recorded_when_the_store_is_back_and_replayed() -> None:
    async def main() -> None:
        failing = FailingStore()
        with protected(failing.app, failing.store, store_seconds=0) as middleware:
            first = await send_request(middleware)
            assert (first.status, first.headers["retry-after"]) == (503, "5")
            assert middleware._tasks, "the call is over, and the recording is not"
            failing.is_back()
            await soon(lambda: not middleware._tasks)

            retry = await send_request(middleware)

            assert (retry.status, retry.body, retry.replayed) == (201, b"1!", True)
            assert failing.runs == 1

    run(main())


def test_recording_a_response_is_given_up_after_a_long_outage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlement, "LATE_SECONDS", 0.1)

    async def main() -> None:
        failing = FailingStore()
        with protected(failing.app, failing.store, store_seconds=0, lease_seconds=0.1) as middleware:
            assert (await send_request(middleware)).status == 503
            await soon(lambda: not middleware._tasks)
            assert "response_not_recorded tried_for_seconds=0.1" in caplog.text
            failing.is_back()

            retry = await send_request(middleware, headers=[(b"idempotency-key", b"k"), WAITS])

            assert (retry.status, retry.body, failing.runs) == (201, b"2!", 2)

    run(main())


def test_a_response_is_still_recorded_after_an_outage_longer_than_the_lease() -> None:
    async def main() -> None:
        failing = FailingStore()
        with protected(failing.app, failing.store, store_seconds=0, lease_seconds=0.05) as middleware:
            tries: list[float] = []
            failing.store.at("before-settle", lambda: tries.append(time.monotonic()), times=1000)
            assert (await send_request(middleware)).status == 503
            await soon(lambda: tries[-1] - tries[0] > 0.1, "it was given up when the lease was over")
            failing.is_back()
            await soon(lambda: not middleware._tasks)

            retry = await send_request(middleware)

            assert (retry.status, retry.body, retry.replayed) == (201, b"1!", True)
            assert failing.runs == 1

    run(main())


def test_a_store_that_stays_down_is_retried_with_pauses() -> None:
    """Also with `store_seconds=0`, which only limits how long the client waits."""

    async def main() -> None:
        failing = FailingStore()
        with protected(failing.app, failing.store, store_seconds=0) as middleware:
            asked: list[float] = []
            failing.store.at("before-settle", lambda: asked.append(time.monotonic()), times=1000)
            await send_request(middleware)
            tries = len(asked)
            await soon(lambda: len(asked) >= tries + 2, "it is never asked again")
            failing.is_back()
            await soon(lambda: not middleware._tasks)

            assert asked[tries + 1] - asked[tries] > 0.04

    run(main())


def test_an_incomplete_response_is_cut_at_once_and_not_after_its_background_task() -> None:
    async def main() -> None:
        failing = FailingStore(streamed=True, background=True)
        with protected(failing.app, failing.store, store_seconds=0.05) as middleware:
            first = Call(middleware)
            with pytest.raises(StoreUnavailable):
                await first.task
            assert first.got.body == b"1"
            assert not first.got.whole
            failing.is_back()
            failing.over.set()
            await soon(lambda: not middleware._tasks)

            retry = await send_request(middleware)

            assert (retry.status, retry.body, failing.runs) == (201, b"2!", 2)

    run(main())


def test_an_unrecorded_response_is_reported_and_recorded_before_its_background_task_ends() -> None:
    async def main() -> None:
        failing = FailingStore(background=True)
        with protected(failing.app, failing.store, store_seconds=0) as middleware:
            first = Call(middleware)
            await first.has(lambda got: got.whole)
            assert first.got.status == 503
            failing.is_back()

            retry = await send_request(middleware, headers=[(b"idempotency-key", b"k"), WAITS])

            assert (retry.status, retry.body, retry.replayed) == (201, b"1!", True)
            failing.over.set()
            await first.task
            await soon(lambda: not middleware._tasks)

    run(main())


def test_a_response_whose_ledger_closes_before_it_is_recorded_is_given_up_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        failing = FailingStore()
        with protected(failing.app, failing.store, store_seconds=0) as middleware:
            assert (await send_request(middleware)).status == 503
            await asyncio.to_thread(middleware._admission.ledger.close)
            await soon(lambda: not middleware._tasks)

        assert [record.levelname for record in caplog.records if "recorded" in record.message] == ["WARNING"]
        assert "raised" not in caplog.text

    run(main())


def test_a_stored_body_whose_later_pages_cannot_be_read_now_is_cut_and_comes_whole_later() -> None:
    body = b"x" * (40 * CHUNK_BYTES_MAX)

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        await reply(send, body)

    async def main() -> None:
        store = FaultyStore(MemoryStore())
        with protected(app, store, store_seconds=0) as middleware:
            await send_request(middleware)
            store.at("before-chunks", lambda: None)
            store.lose_request("chunks")
            cut = Call(middleware)
            with pytest.raises(StoreUnavailable):
                await cut.task

            later = await send_request(middleware)

            assert (cut.got.status, cut.got.whole) == (201, False)
            assert (later.body, later.replayed) == (body, True)

    run(main())
