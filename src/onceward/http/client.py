"""httpx transports that make a retry safe: every mutating request gets an `Idempotency-Key`, and every try carries it.

    client = httpx.Client(transport=RetryTransport(deadline_seconds=30))
    client = httpx.AsyncClient(transport=AsyncRetryTransport())

What is tried again, and after which pause, is decided in `retry.py`. When the deadline or the number of tries is reached
the last answer is returned, or the last transport error raised; a `Retry-After` beyond the deadline is not waited for.
`response.extensions["tries"]` says how many it took.

The key belongs to the `httpx.Request`: a redirect that keeps the method and an authentication that asks again carry it
on, and so does sending the same object once more. Each of these is a call of its own for the deadline. A redirect that
turns into a GET leaves the key behind.

An answer that ends too early is a transport error too. So that it can be retried, the body is read here when it has a
`Content-Length` of at most `WHOLE_BYTES_MAX`, or is JSON. Every other body is handed on as it comes, and an error in the
middle of it is the reader's.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, Unpack, cast
from uuid import uuid4

from onceward.core.key import shown
from onceward.errors import missing_extra
from onceward.http.deadline import Timeouts
from onceward.http.intents import Intent, Intents
from onceward.http.retry import (
    SAFE,
    WHOLE_BYTES_MAX,
    Patience,
    PatienceOptions,
    asked_seconds,
    read_whole,
    worth_another_try,
)

try:
    import httpx
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "client") from error

__all__ = ["AsyncRetryTransport", "Intent", "Intents", "RetryTransport"]

KEY_HEADER = "Idempotency-Key"
KEY_HEADERS = (KEY_HEADER, "X-Idempotency-Key")
# Marks a key that was made here, so that a redirect to a GET can be told to drop it: httpx copies all headers.
MADE_HERE = "onceward.key"

# What is read of an answer that is thrown away, and for how long: a connection that is read to its end can be used
# again, but a new one is cheaper than a long wait.
DRAIN_BYTES_MAX = 64 * 1024
DRAIN_SECONDS_MAX = 1.0
TOO_LATE = "the deadline passed in the middle of the answer"

# Errors on the way. Not among them: what this side did wrong (an unknown protocol, a malformed header).
ON_THE_WAY = (httpx.TimeoutException, httpx.NetworkError, httpx.ProxyError, httpx.RemoteProtocolError)

Stream = httpx.SyncByteStream | httpx.AsyncByteStream
T = TypeVar("T")

_log = logging.getLogger(__name__)
_draw = random.SystemRandom().random


class RetryTransport(httpx.BaseTransport):
    """For `httpx.Client(transport=…)`. `inner` sends each try; proxies, TLS and limits are given to it."""

    def __init__(
        self,
        inner: httpx.BaseTransport | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        **options: Unpack[PatienceOptions],
    ) -> None:
        self._patience = Patience(**options)
        self._inner = inner or httpx.HTTPTransport()
        self._edge = _Blocking(self._inner, sleep)
        self._clock = clock

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return _finish(_converse(self._edge, self._clock, self._patience, request))

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(exc_type, exc_value, traceback)

    def close(self) -> None:
        self._inner.close()


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient(transport=…)`. Under another event loop than asyncio's give its `sleep`."""

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        **options: Unpack[PatienceOptions],
    ) -> None:
        self._patience = Patience(**options)
        self._inner = inner or httpx.AsyncHTTPTransport()
        self._edge = _Awaiting(self._inner, sleep)
        self._clock = clock

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await _converse(self._edge, self._clock, self._patience, request)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(exc_type, exc_value, traceback)

    async def aclose(self) -> None:
        await self._inner.aclose()


# The conversation, written once. On the blocking edge nothing in it ever waits, so `_finish` runs it in one step.


async def _converse(
    edge: _Edge, clock: Callable[[], float], patience: Patience, request: httpx.Request
) -> httpx.Response:
    if request.method in patience.methods:
        _give_key(request)
    elif request.method in SAFE:
        _drop_key(request)
    else:
        return await edge.send(request)
    if not isinstance(request.stream, httpx.ByteStream):
        request.stream = await edge.take(request.stream, patience.max_body_bytes)
    end = clock() + patience.deadline_seconds
    tries = 0
    while True:
        tries += 1
        timeouts = Timeouts(request.extensions.get("timeout", {}), clock, end)
        try:
            response = await _attempt(edge, request, timeouts)
        except ON_THE_WAY as error:
            pause = None
            if not _hopeless(error) and _sendable(request.stream):
                pause = patience.pause(tries, 0.0, end - clock(), _draw())
            if pause is None:
                error.add_note(_last_words(request, tries))
                raise
            reason = repr(error)
        else:
            pause, headers = None, response.headers
            asked = asked_seconds(headers.get("Retry-After"), headers.get("Date"), datetime.now(UTC))
            final = not worth_another_try(response.status_code, asked, headers.get("Idempotent-Replayed"))
            if not final and _sendable(request.stream):
                pause = patience.pause(tries, asked or 0.0, end - clock(), _draw())
            if pause is None:
                timeouts.end = math.inf
                response.extensions = {**response.extensions, "tries": tries}
                return response
            timeouts.end = min(end, clock() + DRAIN_SECONDS_MAX)
            await _throw_away(edge, response, timeouts)
            reason = str(response.status_code)
        _log_pause(request, tries, reason, pause)
        await edge.pause(pause)


async def _attempt(edge: _Edge, request: httpx.Request, timeouts: Timeouts) -> httpx.Response:
    """Send once; the request stays as it is. The body of the answer is read if it may be: half an answer is none."""
    extensions = {**request.extensions, "timeout": timeouts}
    response = await edge.send(
        httpx.Request(
            request.method, request.url, headers=request.headers, stream=request.stream, extensions=extensions
        )
    )
    if not read_whole(response.headers.get("Content-Length"), response.headers.get("Content-Type")):
        return response
    try:
        body = await edge.take(response.stream, WHOLE_BYTES_MAX, timeouts.over)
    except BaseException:
        await edge.close(response.stream)
        raise
    if isinstance(body, httpx.ByteStream):
        await edge.close(response.stream)  # Read to its end: the connection goes back to the pool.
    return httpx.Response(response.status_code, headers=response.headers, stream=body, extensions=response.extensions)


async def _throw_away(edge: _Edge, response: httpx.Response, timeouts: Timeouts) -> None:
    """Read what little is left, so that the connection can be used again; otherwise it is closed."""
    try:
        with suppress(*ON_THE_WAY):
            await edge.take(response.stream, DRAIN_BYTES_MAX, timeouts.over)
    finally:
        await edge.close(response.stream)


def _give_key(request: httpx.Request) -> None:
    if not any(name in request.headers for name in KEY_HEADERS):
        key = str(uuid4())
        request.headers[KEY_HEADER] = key
        request.extensions = {**request.extensions, MADE_HERE: key}


def _drop_key(request: httpx.Request) -> None:
    """A POST that was redirected to a GET: the key is no business of whoever is asked now."""
    key = request.extensions.get(MADE_HERE)
    if key is not None and request.headers.get(KEY_HEADER) == key:
        del request.headers[KEY_HEADER]


def _sendable(stream: Stream) -> bool:
    """Whether the body can be sent once more: it is kept, or nothing was read of it yet."""
    return isinstance(stream, httpx.ByteStream) or not cast("_Joined | _AsyncJoined", stream).begun


def _hopeless(error: BaseException | None) -> bool:
    """A certificate that does not hold will not hold in a minute either."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def _last_words(request: httpx.Request, tries: int) -> str:
    said = f"Given up after {tries} {'try' if tries == 1 else 'tries'}."
    if not _sendable(request.stream):
        said += " The body is longer than max_body_bytes and was not kept to be sent again."
    elif request.method not in SAFE:
        said += " It may have happened: send error.request again to go on with the same key."
    return said


def _log_pause(request: httpx.Request, tries: int, reason: str, pause: float) -> None:
    key = request.headers.get(KEY_HEADER, "")
    _log.info(
        "try %d of %s %s ended with %s; again in %.3f s with key %s",
        tries, request.method, request.url.copy_with(query=None, userinfo=b""), reason, pause, shown(key) or "none",
    )  # fmt: skip


# The edges: the same four verbs, blocking and awaited.


class _Edge(Protocol):
    async def send(self, request: httpx.Request) -> httpx.Response: ...

    async def take(self, stream: Stream, bytes_max: int, over: Callable[[], bool] = ...) -> Stream:
        """The stream as bytes if it has at most so many, else a stream of what was read and of the rest, in turn."""
        ...

    async def close(self, stream: Stream) -> None: ...

    async def pause(self, seconds: float) -> None: ...


def _finish(talk: Coroutine[Any, Any, T]) -> T:
    try:
        talk.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    talk.close()
    raise RuntimeError("the blocking edge waited for an event loop")


def _never_over() -> bool:
    """A request's body takes as long as its source takes."""
    return False


class _Blocking:
    def __init__(self, inner: httpx.BaseTransport, sleep: Callable[[float], None]) -> None:
        self._inner = inner
        self._sleep = sleep

    async def send(self, request: httpx.Request) -> httpx.Response:
        return self._inner.handle_request(request)

    async def take(self, stream: Stream, bytes_max: int, over: Callable[[], bool] = _never_over) -> Stream:
        whole = cast("httpx.SyncByteStream", stream)
        rest, taken, size = iter(whole), [], 0
        for chunk in rest:
            taken.append(chunk)
            size += len(chunk)
            if size > bytes_max:
                return _Joined(taken, rest, whole)
            if over():
                raise httpx.ReadTimeout(TOO_LATE)
        return httpx.ByteStream(b"".join(taken))

    async def close(self, stream: Stream) -> None:
        cast("httpx.SyncByteStream", stream).close()

    async def pause(self, seconds: float) -> None:
        self._sleep(seconds)


class _Awaiting:
    def __init__(self, inner: httpx.AsyncBaseTransport, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._inner = inner
        self._sleep = sleep

    async def send(self, request: httpx.Request) -> httpx.Response:
        return await self._inner.handle_async_request(request)

    async def take(self, stream: Stream, bytes_max: int, over: Callable[[], bool] = _never_over) -> Stream:
        whole = cast("httpx.AsyncByteStream", stream)
        rest, taken, size = aiter(whole), [], 0
        async for chunk in rest:
            taken.append(chunk)
            size += len(chunk)
            if size > bytes_max:
                return _AsyncJoined(taken, rest, whole)
            if over():
                raise httpx.ReadTimeout(TOO_LATE)
        return httpx.ByteStream(b"".join(taken))

    async def close(self, stream: Stream) -> None:
        await cast("httpx.AsyncByteStream", stream).aclose()

    async def pause(self, seconds: float) -> None:
        await self._sleep(seconds)


class _Joined(httpx.SyncByteStream):
    """What was read of a stream, then the rest of it, once."""

    def __init__(self, taken: list[bytes], rest: Iterator[bytes], whole: httpx.SyncByteStream) -> None:
        self._taken, self._rest, self._whole = taken, rest, whole
        self.begun = False

    def __iter__(self) -> Iterator[bytes]:
        if self.begun:
            raise httpx.StreamConsumed
        self.begun = True
        yield from self._taken
        yield from self._rest

    def close(self) -> None:
        self._whole.close()


class _AsyncJoined(httpx.AsyncByteStream):
    """What was read of a stream, then the rest of it, once."""

    def __init__(self, taken: list[bytes], rest: AsyncIterator[bytes], whole: httpx.AsyncByteStream) -> None:
        self._taken, self._rest, self._whole = taken, rest, whole
        self.begun = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.begun:
            raise httpx.StreamConsumed
        self.begun = True
        for chunk in self._taken:
            yield chunk
        async for chunk in self._rest:
            yield chunk

    async def aclose(self) -> None:
        await self._whole.aclose()
