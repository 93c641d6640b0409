"""httpx transports that make retries safe: every mutating request gets an `Idempotency-Key`, the same for all tries.

    client = httpx.Client(transport=RetryTransport(deadline_seconds=30))
    client = httpx.AsyncClient(transport=AsyncRetryTransport())

`policy.py` decides what is retried and after which pause. When the deadline or the number of tries is reached, the last
response is returned, or the last transport error is raised. A `Retry-After` beyond the deadline is not waited for.
`response.extensions["tries"]` is the number of tries.

The key belongs to the `httpx.Request`: a redirect that keeps the method, a repeated request of an authentication flow,
and sending the same object again all use the same key. Each of these is a separate call with its own deadline. A
redirect to a GET drops the key.

An incomplete response is a transport error, too. To be able to retry it, the transport reads a body that is JSON or has
a `Content-Length` of at most `WHOLE_BYTES_MAX`. Every other body is passed on as it arrives, and its reader gets the
error.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, Unpack, cast
from uuid import uuid4

from onceward.core.key import short_key
from onceward.core.log_event import log_event
from onceward.errors import missing_extra
from onceward.http.client.intents import Intent, Intents
from onceward.http.client.policy import (
    CONFLICT,
    SAFE,
    WHOLE_BYTES_MAX,
    RetryOptions,
    RetryPolicy,
    Timeouts,
    read_whole,
    retry_after_seconds,
    worth_another_try,
)
from onceward.http.client.profile import client_profile, code_in, shows_processed, state_path

try:
    import httpx

    from onceward.http.client.joined_stream import AsyncJoinedStream, JoinedStream
except ModuleNotFoundError as error:
    raise missing_extra(error, "onceward.http.client", "client") from error

__all__ = ["AsyncRetryTransport", "Intent", "Intents", "RetryTransport"]

KEY_HEADER = "Idempotency-Key"
KEY_HEADERS = (KEY_HEADER, "X-Idempotency-Key")
# Headers of a request that do not belong to the GET of its resource.
_NOT_FOR_GET = ("content-length", "content-type", "transfer-encoding", "idempotency-key", "x-idempotency-key", "signature",
                "signature-input", "content-digest")  # fmt: skip
# Marks a key that this transport generated, so that a redirect to a GET can drop it: httpx copies all headers.
GENERATED_KEY = "onceward.key"

# Limits for reading a response that is discarded. A connection can be reused after its response was read to the end,
# but a new connection is cheaper than a long wait.
DRAIN_BYTES_MAX = 64 * 1024
DRAIN_SECONDS_MAX = 1.0
OTHER_KEY = "the response carries the idempotency key of another request"
TOO_LATE = "the deadline passed before the response was complete"

# Failures of the connection. Errors of the client itself (an unknown protocol, a malformed header) are not included.
TRANSPORT_ERRORS = (httpx.TimeoutException, httpx.NetworkError, httpx.ProxyError, httpx.RemoteProtocolError)

Stream = httpx.SyncByteStream | httpx.AsyncByteStream
T = TypeVar("T")

_log = logging.getLogger("onceward.http.client")
_random_fraction = random.SystemRandom().random


class RetryTransport(httpx.BaseTransport):
    """Transport with retries for `httpx.Client(transport=…)`.

    Args:
        inner: The transport that sends each try. Configure proxies, TLS and limits there.
        clock: Returns the time in seconds.
        sleep: Waits for a number of seconds.
        options: See `RetryPolicy`.

    Raises:
        InvalidOption: An option has a wrong value.
    """

    def __init__(
        self,
        inner: httpx.BaseTransport | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        **options: Unpack[RetryOptions],
    ) -> None:
        self._policy = RetryPolicy(**options)
        self._inner = inner or httpx.HTTPTransport()
        self._edge = _Blocking(self._inner, sleep)
        self._clock = clock

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, with retries; called by httpx.

        Args:
            request: The request. It gets an `Idempotency-Key` if its method is one of `methods` and it has none.

        Returns:
            The response of the last try.

        Raises:
            httpx.TransportError: The last try failed, and another one is not allowed or would be too late.
        """
        return _run_blocking(_send_with_retries(self._edge, self._clock, self._policy, request))

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
        """Close the inner transport."""
        self._inner.close()


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """Transport with retries for `httpx.AsyncClient(transport=…)`.

    Args:
        inner: The transport that sends each try. Configure proxies, TLS and limits there.
        clock: Returns the time in seconds.
        sleep: Waits for a number of seconds. Give it if the event loop is not asyncio's.
        options: See `RetryPolicy`.

    Raises:
        InvalidOption: An option has a wrong value.
    """

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        **options: Unpack[RetryOptions],
    ) -> None:
        self._policy = RetryPolicy(**options)
        self._inner = inner or httpx.AsyncHTTPTransport()
        self._edge = _Awaiting(self._inner, sleep)
        self._clock = clock

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, with retries; called by httpx.

        Args:
            request: The request. It gets an `Idempotency-Key` if its method is one of `methods` and it has none.

        Returns:
            The response of the last try.

        Raises:
            httpx.TransportError: The last try failed, and another one is not allowed or would be too late.
        """
        return await _send_with_retries(self._edge, self._clock, self._policy, request)

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
        """Close the inner transport."""
        await self._inner.aclose()


# The retry loop for both transports. With a blocking edge it never suspends, so `_run_blocking` runs it in one step.


async def _send_with_retries(
    edge: _Edge, clock: Callable[[], float], policy: RetryPolicy, request: httpx.Request
) -> httpx.Response:
    if request.method in policy.methods:
        _give_key(request)
    elif request.method in SAFE:
        _drop_key(request)
    else:
        return await edge.send(request)
    if not isinstance(request.stream, httpx.ByteStream):
        request.stream = await edge.take(request.stream, policy.max_body_bytes)
    end, profile = clock() + policy.deadline_seconds, client_profile(policy.profile)
    tries = 0
    while True:
        tries += 1
        timeouts = Timeouts(request.extensions.get("timeout", {}), clock, end)
        try:
            response = await _attempt(edge, request, timeouts)
            if profile.echoes:
                await _check_echo(edge, request, response)
        except TRANSPORT_ERRORS as error:
            pause, lost = None, True
            if not _is_permanent(error) and _can_resend(request.stream):
                pause = policy.pause(tries, 0.0, end - clock(), _random_fraction())
            if pause is None:
                error.add_note(_give_up_note(request, tries))
                raise
            reason = repr(error)
        else:
            pause, lost, headers = None, False, response.headers
            retry_after = retry_after_seconds(headers.get("Retry-After"), headers.get("Date"), datetime.now(UTC))
            code = code_in(_body_of(response)) if profile.running and response.status_code == CONFLICT else ""
            should_retry = headers.get("Stripe-Should-Retry", "").lower()
            final = not worth_another_try(
                response.status_code, retry_after, headers.get("Idempotent-Replayed"), profile, code, should_retry
            )
            if not final and _can_resend(request.stream):
                pause = policy.pause(tries, retry_after or 0.0, end - clock(), _random_fraction())
            if pause is None:
                timeouts.end = math.inf
                response.extensions = {**response.extensions, "tries": tries}
                return response
            timeouts.end = min(end, clock() + DRAIN_SECONDS_MAX)
            await _drain(edge, response, timeouts)
            reason = str(response.status_code)
        _log_pause(request, tries, reason, pause)
        await edge.pause(pause)
        if lost and profile.gets_first and request.method not in SAFE:
            timeouts = Timeouts(request.extensions.get("timeout", {}), clock, end)
            state = await _processed_state(edge, request, timeouts)
            if state is not None:
                timeouts.end = math.inf
                state.extensions = {**state.extensions, "tries": tries, "recovered": True}
                return state


async def _processed_state(edge: _Edge, request: httpx.Request, timeouts: Timeouts) -> httpx.Response | None:
    """GET the state of the resource (UCP). Return it if it shows that the request was processed, else None."""
    headers = [(name, value) for name, value in request.headers.multi_items() if name not in _NOT_FOR_GET]
    url = request.url.copy_with(path=state_path(request.url.path), query=None)
    question = httpx.Request("GET", url, headers=headers, extensions=request.extensions)
    try:
        response = await _attempt(edge, question, timeouts)
    except TRANSPORT_ERRORS:
        return None
    if shows_processed(request.url.path, response.status_code, _body_of(response)):
        return response
    await _drain(edge, response, timeouts)
    return None


async def _check_echo(edge: _Edge, request: httpx.Request, response: httpx.Response) -> None:
    """Treat a response with another key as lost: it belongs to another request, and a retry gets the right one."""
    sent, echoed = request.headers.get(KEY_HEADER), response.headers.get(KEY_HEADER)
    if sent is not None and echoed is not None and echoed.strip().strip('"') != sent.strip().strip('"'):
        await edge.close(response.stream)
        raise httpx.RemoteProtocolError(OTHER_KEY)


def _body_of(response: httpx.Response) -> bytes:
    """Return the decompressed body of a response that was read completely; b"" for one that is still being read."""
    if not isinstance(response.stream, httpx.ByteStream):
        return b""
    try:
        return httpx.Response(response.status_code, headers=response.headers, content=b"".join(response.stream)).content
    except httpx.DecodingError:
        return b""


async def _attempt(edge: _Edge, request: httpx.Request, timeouts: Timeouts) -> httpx.Response:
    """Send a copy of the request once. Read the body of the response if `read_whole` allows it."""
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
        await edge.close(response.stream)  # It was read to its end: the connection returns to the pool.
    return httpx.Response(response.status_code, headers=response.headers, stream=body, extensions=response.extensions)


async def _drain(edge: _Edge, response: httpx.Response, timeouts: Timeouts) -> None:
    """Read the rest of a short response, so that the connection can be reused; otherwise it is closed."""
    try:
        with suppress(*TRANSPORT_ERRORS):
            await edge.take(response.stream, DRAIN_BYTES_MAX, timeouts.over)
    finally:
        await edge.close(response.stream)


def _give_key(request: httpx.Request) -> None:
    if not any(name in request.headers for name in KEY_HEADERS):
        key = str(uuid4())
        request.headers[KEY_HEADER] = key
        request.extensions = {**request.extensions, GENERATED_KEY: key}


def _drop_key(request: httpx.Request) -> None:
    """Remove our key from a POST that was redirected to a GET: the new server does not need it."""
    key = request.extensions.get(GENERATED_KEY)
    if key is not None and request.headers.get(KEY_HEADER) == key:
        del request.headers[KEY_HEADER]


def _can_resend(stream: Stream) -> bool:
    """Return whether the body can be sent again: it is in memory, or nothing of it was read yet."""
    return isinstance(stream, httpx.ByteStream) or not cast("JoinedStream | AsyncJoinedStream", stream).begun


def _is_permanent(error: BaseException | None) -> bool:
    """Return whether a retry cannot help: the certificate is invalid."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def _give_up_note(request: httpx.Request, tries: int) -> str:
    note = f"Gave up after {tries} {'try' if tries == 1 else 'tries'}."
    if not _can_resend(request.stream):
        note += " The body is longer than max_body_bytes, so it cannot be sent again."
    elif request.method not in SAFE:
        note += " The request may have been carried out; to use the same key, send error.request again."
    return note


def _log_pause(request: httpx.Request, tries: int, reason: str, pause: float) -> None:
    key = request.headers.get(KEY_HEADER, "")
    log_event(
        _log.info,
        "request_retry_scheduled",
        method=request.method,
        url=str(request.url.copy_with(query=None, userinfo=b"")),
        tries=tries,
        reason=reason,
        retry_in_seconds=round(pause, 3),
        idempotency_key=short_key(key) or "none",
    )


# The two edges of the retry loop, with the same four methods: one blocks, the other awaits.


class _Edge(Protocol):
    async def send(self, request: httpx.Request) -> httpx.Response: ...

    async def take(self, stream: Stream, bytes_max: int, over: Callable[[], bool] = ...) -> Stream:
        """Read a stream of at most `bytes_max` into memory; of a longer one, return a stream that begins with it."""
        ...

    async def close(self, stream: Stream) -> None: ...

    async def pause(self, seconds: float) -> None: ...


def _run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    coroutine.close()
    raise RuntimeError("the blocking transport awaited an event loop; this is a bug in Onceward")


def _never_over() -> bool:
    """Never end: reading a request body may take as long as its source needs."""
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
                return JoinedStream(taken, rest, whole)
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
                return AsyncJoinedStream(taken, rest, whole)
            if over():
                raise httpx.ReadTimeout(TOO_LATE)
        return httpx.ByteStream(b"".join(taken))

    async def close(self, stream: Stream) -> None:
        await cast("httpx.AsyncByteStream", stream).aclose()

    async def pause(self, seconds: float) -> None:
        await self._sleep(seconds)
