"""The hub as an object: one method for each thing that can be asked of it.

What changes something carries an idempotency key, the same on every try, so that it happens once, however often it is
sent. Whoever wants to repeat a call later, or after a restart, passes an `idempotency_key` of their own.
"""

from __future__ import annotations

import functools
import json
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx

from onceward.core.request import key_of as header_key
from onceward.errors import HubUnavailable, InvalidInput, InvalidOption, NotFound, StoreClosed
from onceward.http.client import AsyncRetryTransport
from onceward.http.events import is_event_stream
from onceward.hub.client import answers
from onceward.hub.client.following import Following, OnGap, check_cursor, check_on_gap, lost
from onceward.hub.client.values import (
    Attached,
    Attachment,
    Event,
    EventPage,
    Message,
    MessageMade,
    Readiness,
    Topic,
    TopicMade,
)
from onceward.terms import check_seconds

T = TypeVar("T")

LIMIT = 50
# Three heartbeats of a hub as it comes: one may be late, a second lost on the way.
SILENCE_SECONDS = 45.0
# The longest page that the hub gives.
_PAGE = 500
_SECONDS_MAX = 24 * 3600.0

_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class HubOptions(TypedDict, total=False):
    """How patient the client is, and over what it speaks.

    deadline_seconds  how long one call may take in all, with its retries (60)
    try_seconds       how long one try may be silent (20)
    transport         what sends each try: proxies, TLS and limits are given to it; it is closed with the hub
    """

    deadline_seconds: float
    try_seconds: float
    transport: httpx.AsyncBaseTransport


class Hub:
    """`async with Hub("http://127.0.0.1:8787", token="…") as hub:`. Raises what `onceward.errors` has, nothing else."""

    def __init__(self, url: str, token: str | None = None, **options: Unpack[HubOptions]) -> None:
        base = _base(url)
        self._url = str(base)
        self._try_seconds = check_seconds("try_seconds", options.get("try_seconds", 20.0), _SECONDS_MAX, positive=True)
        self._inner = options.get("transport") or _transport(base)
        self._client = httpx.AsyncClient(
            base_url=base,
            headers={"User-Agent": "onceward", **_authorization(token)},
            timeout=self._try_seconds,
            transport=AsyncRetryTransport(self._inner, deadline_seconds=options.get("deadline_seconds", 60.0)),
        )

    def __repr__(self) -> str:
        return f"Hub({self._url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; whoever still follows is told `StoreClosed`."""
        await self._client.aclose()

    # Topics and messages.

    async def create_topic(self, title: str, *, idempotency_key: str | None = None) -> TopicMade:
        return await self._change("POST", "/api/v1/topics", {"title": title}, idempotency_key, answers.topic_made)

    async def topics(self, *, limit: int = LIMIT) -> list[Topic]:
        """The newest first."""
        return await self._look("/api/v1/topics", {"limit": limit}, answers.topic_list)

    async def topic(self, topic_id: str) -> Topic:
        return await self._look(_path(topic_id), {}, answers.topic_found)

    async def post_message(
        self, topic_id: str, sender: str, content: str, *, idempotency_key: str | None = None
    ) -> MessageMade:
        sent = {"sender": sender, "content": content}
        return await self._change("POST", _path(topic_id, "/messages"), sent, idempotency_key, answers.message_made)

    async def messages(self, topic_id: str, *, limit: int = LIMIT) -> list[Message]:
        """The newest first."""
        return await self._look(_path(topic_id, "/messages"), {"limit": limit}, answers.message_list)

    # Attachments. Their `key` is a name within the kind.

    async def attach(
        self,
        topic_id: str,
        kind: str,
        value_json: Mapping[str, object],
        *,
        key: str | None = None,
        dedupe_key: str | None = None,
        source_message_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Attached:
        """Add an attachment, or find the one that is there: what it is follows from its kind, key and dedupe key."""
        sent = _attachment(kind, value_json, key, dedupe_key, source_message_id)
        return await self._change("POST", _path(topic_id, "/attachments"), sent, idempotency_key, answers.attached)

    async def update_attachment(
        self,
        topic_id: str,
        kind: str,
        value_json: Mapping[str, object],
        *,
        dedupe_key: str,
        key: str | None = None,
        source_message_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Attached:
        """Give the attachment that is there another value; `NotFound` when there is none."""
        sent = _attachment(kind, value_json, key, dedupe_key, source_message_id)
        return await self._change("PUT", _path(topic_id, "/attachments"), sent, idempotency_key, answers.attached)

    async def find_attachment(
        self, topic_id: str, kind: str, dedupe_key: str, *, key: str | None = None
    ) -> Attachment | None:
        """The one attachment that these name, if it is there."""
        found = await self.attachments(topic_id, kind=kind, key=key or "", dedupe_key=dedupe_key, limit=1)
        return found[0] if found else None

    async def attachments(
        self,
        topic_id: str,
        *,
        kind: str | None = None,
        key: str | None = None,
        dedupe_key: str | None = None,
        limit: int = LIMIT,
    ) -> list[Attachment]:
        """The newest first. The empty key finds those without one."""
        asked = {"kind": kind, "key": key, "dedupe_key": dedupe_key, "limit": limit}
        return await self._look(_path(topic_id, "/attachments"), asked, answers.attachment_list)

    # Events.

    async def events(self, after: int = 0, *, limit: int = 100, topic_id: str | None = None) -> EventPage:
        """A page of the log. Events that were asked for and are no longer kept are its `gap`."""
        asked = {"after": check_cursor(after), "limit": limit, "topic_id": topic_id}
        return await self._look("/api/v1/events", asked, answers.event_page)

    async def all_events(
        self, after: int = 0, *, topic_id: str | None = None, on_gap: OnGap = "raise"
    ) -> AsyncGenerator[Event, None]:
        """Every event from the cursor to the end of the log; `EventsLost` when some of them are no longer kept."""
        more, passes_over = True, check_on_gap(on_gap) == "continue"
        while more:
            page = await self.events(after, limit=_PAGE, topic_id=topic_id)
            if page.gap is not None and not passes_over:
                raise lost(page.gap)
            for event in page.events:
                yield event
            after, more = page.next_after, page.has_more

    def follow(
        self,
        after: int | None = None,
        *,
        topic_id: str | None = None,
        log_epoch: str | None = None,
        on_gap: OnGap = "raise",
        silence_seconds: float = SILENCE_SECONDS,
    ) -> Following:
        """Every event behind the cursor, once and in order, for ever; without a cursor, from now on: from the first
        `anext`, or from the beginning of `async with hub.follow() as following:`.

        The first connection is made within `deadline_seconds`, or `HubUnavailable` is raised; later ones are tried until
        the hub is back. A connection that says nothing for `silence_seconds` is given up. Raises `EventsLost` when
        events behind the cursor are no longer kept (with `on_gap="continue"` they are passed over), and `OtherLog` when
        the log is not the one of the cursor, or of `log_epoch`.
        """
        check_seconds("silence_seconds", silence_seconds, _SECONDS_MAX, positive=True)
        connect = functools.partial(self._stream, topic_id, silence_seconds)
        return Following(connect, after, log_epoch, on_gap)

    # The hub itself. Asked once: whoever asks wants to know how it is now.

    async def healthz(self) -> bool:
        """Whether the hub answers."""
        try:
            return (await self._probe("/healthz")).is_success
        except HubUnavailable:
            return False

    async def readyz(self) -> Readiness:
        """Whether the hub and its stores answer."""
        try:
            response = await self._probe("/readyz")
        except HubUnavailable:
            return Readiness(ready=False, checks={"hub": "no answer"})
        try:
            return answers.readiness(response.json())
        except (KeyError, TypeError, ValueError) as error:
            raise answers.unexpected(response) from error

    # The wire.

    async def _change(
        self, method: str, path: str, sent: Mapping[str, object], key: str | None, made: Callable[[Any], T]
    ) -> T:
        headers = {"Content-Type": "application/json"}
        if key is not None:
            header_key([key], [])
            headers["Idempotency-Key"] = key
        try:
            content = _to_json(sent).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"this cannot be sent as JSON: {error}") from error
        request = self._client.build_request(method, path, content=content, headers=headers)
        return answers.read(await self._send(request), made)

    async def _look(self, path: str, asked: Mapping[str, object], made: Callable[[Any], T]) -> T:
        return answers.read(await self._send(self._get(path, asked)), made)

    async def _stream(self, topic_id: str | None, silence_seconds: float, after: int | None) -> httpx.Response:
        request = self._get("/api/v1/events/stream", {"topic_id": topic_id})
        request.headers.update({"Accept": "text/event-stream", "Accept-Encoding": "identity"})
        if after is not None:
            request.headers["Last-Event-ID"] = str(after)
        timeout = httpx.Timeout(self._try_seconds, read=silence_seconds)
        request.extensions = {**request.extensions, "timeout": timeout.as_dict()}
        response = await self._send(request, stream=True)
        if response.is_success and is_event_stream(response.headers.get("Content-Type", "").encode()):
            return response
        try:
            await response.aread()
        finally:
            await response.aclose()
        raise answers.error_of(response)

    async def _probe(self, path: str) -> httpx.Response:
        request = self._get(path, {})

        async def ask() -> httpx.Response:
            response = await self._inner.handle_async_request(request)
            response.request = request
            try:
                await response.aread()
            finally:
                await response.aclose()
            return response

        return await self._answer(request, ask())

    def _get(self, path: str, asked: Mapping[str, object]) -> httpx.Request:
        params: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        try:
            return self._client.build_request("GET", path, params=params)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"this cannot be asked: {error}") from error

    async def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        return await self._answer(request, self._client.send(request, stream=stream))

    async def _answer(self, request: httpx.Request, asking: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
        if self._client.is_closed:
            asking.close()
            raise StoreClosed("this client was closed; open another")
        try:
            return await asking
        except httpx.RequestError as error:
            raise HubUnavailable(f"no answer from {self._url}: {error!r}", answers.key_of(request)) from error


def _base(url: str) -> httpx.URL:
    try:
        base = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise InvalidOption(f"not the URL of a hub: {error}") from error
    if base.scheme not in {"http", "https"} or not base.host:
        raise InvalidOption("the URL of a hub begins with http:// or https:// and has a host")
    if base.userinfo or base.query or base.fragment:
        raise InvalidOption("the URL of a hub has no user, query or fragment; a token is given as token=")
    return base


def _authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidOption("a token is visible ASCII text without blanks and line ends")
    return {"Authorization": f"Bearer {token}"}


def _transport(base: httpx.URL) -> httpx.AsyncHTTPTransport:
    # Reading the certificates of all authorities takes longer than most calls. Without TLS nobody is trusted.
    verify = True if base.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Every stream that is followed holds a connection.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    return httpx.AsyncHTTPTransport(verify=verify, limits=limits)


def _path(topic_id: str, below: str = "") -> str:
    # These would lead to another address; no topic has such an id.
    if not topic_id or topic_id in {".", ".."} or "/" in topic_id:
        raise NotFound(f"there is no topic {topic_id[:64]!r}")
    return f"/api/v1/topics/{quote(topic_id, safe='', errors='replace')}{below}"


def _attachment(
    kind: str, value_json: Mapping[str, object], key: str | None, dedupe_key: str | None, source_message_id: str | None
) -> dict[str, object]:
    return {
        "kind": kind,
        "value_json": dict(value_json),
        "key": key,
        "dedupe_key": dedupe_key,
        "source_message_id": source_message_id,
    }
