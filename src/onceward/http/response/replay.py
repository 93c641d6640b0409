"""Replay over ASGI: a stored response, or a recorded body that is finished or still being written."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Iterable
from typing import Any

from onceward.core.claim import Entry
from onceward.core.log_event import log_event
from onceward.errors import ClaimLost, OutcomeNotKept, StoreUnavailable
from onceward.http import problem
from onceward.http.asgi_types import Receive, Send
from onceward.http.problem import Response
from onceward.http.response.recorded_stream import RecordedStream
from onceward.http.response.shape import shaped
from onceward.http.response.sse import interrupted, is_event_stream
from onceward.http.stored.codec import ResponseCodec
from onceward.http.stored.policy import CONTENT_LENGTH, Headers
from onceward.ledger.ledger import Ledger

REPLAYED = (b"idempotent-replayed", b"true")
INTERRUPTED = "The process that produced this stream has stopped. Retry with the same key."

_PAUSE_SECONDS = 0.05

logger = logging.getLogger("onceward.http")


async def send_response(send: Send, response: Response) -> None:
    """Send a complete response, a refusal in the format of its route."""
    if response.refusal is not None:
        response = shaped(send, response)
    await send({"type": "http.response.start", "status": response.status, "headers": list(response.headers)})
    await send({"type": "http.response.body", "body": response.body, "more_body": False})


def stored_response(codec: ResponseCodec, entry: Entry) -> Response:
    """Return the response that is stored in a settled entry; a problem if it was not stored or cannot be read."""
    outcome = entry.outcome
    if outcome.body is None:
        return problem.not_kept()
    try:
        status, headers = codec.decode_settled(entry)
        return Response(status, (*headers, REPLAYED), codec.decode_body(entry, outcome.body))
    except OutcomeNotKept as error:
        log_event(logger.error, "stored_response_unreadable", reason=str(error))
        return problem.not_kept()


async def replay(
    ledger: Ledger, codec: ResponseCodec, entry: Entry, last_event_id: str, receive: Receive, send: Send
) -> None:
    """Send the recorded response of an entry. If it is still being written, follow it to its end."""
    if not entry.outcome.chunks:
        await send_response(send, stored_response(codec, entry))
        return
    recorded = RecordedStream(ledger, codec, entry)
    resumed = True
    try:
        head = await recorded.head()
        if last_event_id and head is not None and has_events(head[1]):
            resumed = await recorded.resume(last_event_id)
    except StoreUnavailable as error:
        await send_response(send, problem.store_failed(error))
        return
    if head is None:
        await send_response(send, problem.busy() if recorded.interrupted else problem.not_kept())
        return
    status, headers = head
    await send({"type": "http.response.start", "status": status, "headers": [*headers, REPLAYED]})
    events = has_events(headers)
    if not resumed:
        await _piece(send, interrupted(INTERRUPTED))
    gone = asyncio.ensure_future(until_gone(receive))
    try:
        while pieces := await _page(recorded, gone):
            await _piece(send, b"".join(pieces))
        if gone.done():
            return
    except OSError:
        return  # the client has disconnected
    finally:
        gone.cancel()
    if recorded.interrupted:
        if not events:
            raise ClaimLost("the recorded response is incomplete: the process that produced it has stopped")
        await _piece(send, interrupted(INTERRUPTED))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _page(recorded: RecordedStream, gone: asyncio.Future[None]) -> list[bytes]:
    """Read the next pieces; empty at the end, or if the client disconnects during the wait."""
    page = asyncio.ensure_future(recorded.page())
    try:
        either: list[asyncio.Future[Any]] = [page, gone]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return page.result() if page.done() else []
    finally:
        page.cancel()


# Most responses of a route have the same headers, so the results are cached.
@functools.lru_cache(maxsize=256)
def length_and_events(headers: Headers) -> tuple[int | None, bool]:
    """Return the Content-Length of the body, or None, and `has_events`."""
    lengths = [int(value) for name, value in headers if name.lower() == CONTENT_LENGTH and value.isdigit()]
    return lengths[-1] if lengths else None, has_events(headers)


def has_events(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the body is an event stream that can be split into events. A compressed one cannot."""
    events = False
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-type":
            events = is_event_stream(value)
        elif lower == b"content-encoding" and value.strip().lower() != b"identity":
            return False
    return events


async def until_gone(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":  # noqa: ASYNC110  # `receive` is the only source
        await asyncio.sleep(_PAUSE_SECONDS)  # avoid a busy loop if the server returns the same message at once


async def client_gone(receive: Receive) -> bool:
    """Return whether the server reports without delay that the client has disconnected."""
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
