"""Answers that come from the ledger, sent over ASGI: a kept response, or a recorded body, finished or still running."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Iterable
from typing import Any

from onceward.core.claim import Entry
from onceward.core.response import CONTENT_LENGTH, Headers
from onceward.errors import ClaimLost, OutcomeNotKept, StoreUnavailable
from onceward.http import problem
from onceward.http.events import interrupted, is_event_stream
from onceward.http.kept import Form
from onceward.http.problem import Answer
from onceward.http.stream import Recorded
from onceward.http.wire import Receive, Send
from onceward.ledger import Ledger

REPLAYED = (b"idempotent-replayed", b"true")
INTERRUPTED = "The stream's producer is gone. Retry with the same key."

_PAUSE_SECONDS = 0.05

logger = logging.getLogger("onceward.http")


async def answer(send: Send, whole: Answer) -> None:
    """Send a whole response."""
    await send({"type": "http.response.start", "status": whole.status, "headers": list(whole.headers)})
    await send({"type": "http.response.body", "body": whole.body, "more_body": False})


def kept_answer(form: Form, entry: Entry) -> Answer:
    """The kept response of a settled entry whose body lies with it; a problem when it was not kept."""
    outcome = entry.outcome
    if outcome.body is None:
        return problem.not_kept()
    try:
        status, headers = form.read_settled(entry)
        return Answer(status, (*headers, REPLAYED), form.read_inline(entry, outcome.body))
    except OutcomeNotKept as error:
        logger.error("a kept response cannot be read: %s", error)  # noqa: TRY400  # the message says it all
        return problem.not_kept()


async def replay(ledger: Ledger, form: Form, entry: Entry, last_event_id: str, receive: Receive, send: Send) -> None:
    """Send what is recorded of this entry, following it to its end if it is still being written."""
    if not entry.outcome.chunks:
        await answer(send, kept_answer(form, entry))
        return
    recorded = Recorded(ledger, form, entry)
    behind = True
    try:
        head = await recorded.head()
        if last_event_id and head is not None and has_events(head[1]):
            behind = await recorded.resume(last_event_id)
    except StoreUnavailable:
        await answer(send, problem.unavailable())
        return
    if head is None:
        await answer(send, problem.busy() if recorded.interrupted else problem.not_kept())
        return
    status, headers = head
    await send({"type": "http.response.start", "status": status, "headers": [*headers, REPLAYED]})
    events = has_events(headers)
    if not behind:
        await _piece(send, interrupted(INTERRUPTED))
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        while pieces := await _page(recorded, gone):
            await _piece(send, b"".join(pieces))
        if gone.done():
            return
    except OSError:
        return  # the client went away
    finally:
        gone.cancel()
    if recorded.interrupted:
        if not events:
            raise ClaimLost("a recorded response stops before its end: its producer is gone")
        await _piece(send, interrupted(INTERRUPTED))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _page(recorded: Recorded, gone: asyncio.Future[None]) -> list[bytes]:
    """What comes next; nothing at the end, or when the client goes away while it is waited for."""
    page = asyncio.ensure_future(recorded.page())
    try:
        either: list[asyncio.Future[Any]] = [page, gone]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return page.result() if page.done() else []
    finally:
        page.cancel()


# Most responses of a route have the same headers; that many are remembered.
@functools.lru_cache(maxsize=256)
def told_of_body(headers: Headers) -> tuple[int | None, bool]:
    """Its length, if that is told, and `has_events`."""
    lengths = [int(value) for name, value in headers if name.lower() == CONTENT_LENGTH and value.isdigit()]
    return lengths[-1] if lengths else None, has_events(headers)


def has_events(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the body is a stream of events that can be told apart: a compressed one cannot."""
    events = False
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-type":
            events = is_event_stream(value)
        elif lower == b"content-encoding" and value.strip().lower() != b"identity":
            return False
    return events


async def until_gone(receive: Receive) -> None:
    """Returns when the client goes away."""
    while (await receive())["type"] != "http.disconnect":  # noqa: ASYNC110  # the server is what is asked
        await asyncio.sleep(_PAUSE_SECONDS)  # a server that keeps giving the same is not asked without end


async def client_gone(receive: Receive) -> bool:
    """Whether the server says at once that the client went away."""
    probe = asyncio.ensure_future(until_gone(receive))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gone = probe.done() and not probe.cancelled() and probe.exception() is None
    if not probe.done():
        probe.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await probe
    return gone


async def _piece(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
