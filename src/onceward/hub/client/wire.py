"""How the client speaks with a hub: requests out, answers in, and what goes wrong as an error of the one tree."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypedDict, TypeVar
from urllib.parse import quote

import httpx

from onceward.core.request import key_of as header_key
from onceward.errors import HubUnavailable, InvalidInput, InvalidOption, NotFound, StoreClosed
from onceward.http.client import AsyncRetryTransport
from onceward.http.retry import DEADLINE_SECONDS
from onceward.hub.client import answers
from onceward.terms import check_seconds

T = TypeVar("T")

SECONDS_MAX = 24 * 3600.0
# The longest page that the hub gives.
PAGE_MAX = 500
TRANSFER_SECONDS = 6 * 3600.0
# How long a hub may work without a word: an upload is brought to the disk and looked into before it is answered, and a
# collection looks at every blob there is.
ANSWER_SECONDS = 3600.0

to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class HubOptions(TypedDict, total=False):
    """How patient the client is, and over what it speaks.

    deadline_seconds  how long one call may take in all, with its retries (90)
    transfer_seconds  the same for what may well take longer: uploads, downloads, and an admin's work (6 hours)
    try_seconds       how long one try may be silent (20)
    transport         what sends each try: proxies, TLS and limits are given to it; it is closed with the hub
    """

    deadline_seconds: float
    transfer_seconds: float
    try_seconds: float
    transport: httpx.AsyncBaseTransport


class Wire:
    """The connections to one hub."""

    def __init__(self, url: str, token: str | None, options: HubOptions) -> None:
        base = _base(url)
        self.url = str(base)
        self.try_seconds = check_seconds("try_seconds", options.get("try_seconds", 20.0), SECONDS_MAX, positive=True)
        self.transfer_seconds = check_seconds(
            "transfer_seconds", options.get("transfer_seconds", TRANSFER_SECONDS), SECONDS_MAX, positive=True
        )
        self._inner = options.get("transport") or _transport(base)
        self._client = httpx.AsyncClient(
            base_url=base,
            headers={"User-Agent": "onceward", **_authorization(token)},
            timeout=self.try_seconds,
            transport=AsyncRetryTransport(
                self._inner, deadline_seconds=options.get("deadline_seconds", DEADLINE_SECONDS)
            ),
        )
        self._patient = AsyncRetryTransport(self._inner, deadline_seconds=self.transfer_seconds)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def change(
        self,
        method: str,
        path: str,
        sent: Mapping[str, object] | None,
        key: str | None,
        made: Callable[[Any], T],
    ) -> T:
        """Ask for a change, with a key that is the same on every try."""
        return answers.read(await self.send(self._json(method, path, sent, key)), made)

    async def work(self, path: str, sent: Mapping[str, object], key: str | None, made: Callable[[Any], T]) -> T:
        """Ask for something that may take long."""
        request = self._json("POST", path, sent, key)
        request.headers["X-Confirm"] = "true"
        return answers.read(await self.send_patiently(request), made)

    async def look(self, path: str, asked: Mapping[str, object], made: Callable[[Any], T]) -> T:
        return answers.read(await self.send(self.get(path, asked)), made)

    async def pages(
        self,
        path: str,
        asked: Mapping[str, object],
        field: str,
        made: Callable[[Any], T],
        limit: int | None = None,
    ) -> list[T]:
        """The items of a list, in as many pages as it takes: all of them, or at most `limit`."""
        found: list[T] = []
        after: str | None = None
        while True:
            wanted = PAGE_MAX if limit is None else min(PAGE_MAX, limit - len(found))
            page = {**asked, "limit": wanted, "after": after}
            items, after = await self.look(path, page, lambda said: answers.page(said, field, made))
            found += items
            if after is None or len(found) == limit:
                return found

    async def open(self, request: httpx.Request, accepted: Callable[[httpx.Response], bool]) -> httpx.Response:
        """An answer whose body the caller reads, and closes; raises what any other answer stands for."""
        response = await self._answer(request, self._client.send(request, stream=True))
        if accepted(response):
            return response
        try:
            await response.aread()
        except httpx.TransportError as error:
            raise self.unavailable(request, error) from error
        finally:
            await response.aclose()
        raise answers.error_of(response)

    async def probe(self, path: str) -> httpx.Response:
        """Ask once."""
        return await self._ask(self._inner, self.get(path, {}))

    async def send(self, request: httpx.Request) -> httpx.Response:
        return await self._answer(request, self._client.send(request))

    async def send_patiently(self, request: httpx.Request) -> httpx.Response:
        timeout = httpx.Timeout(self.try_seconds, read=max(self.try_seconds, ANSWER_SECONDS))
        request.extensions = {**request.extensions, "timeout": timeout.as_dict()}
        return await self._ask(self._patient, request)

    def get(self, path: str, asked: Mapping[str, object]) -> httpx.Request:
        params: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        try:
            return self._client.build_request("GET", path, params=params)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"this cannot be asked: {error}") from error

    def request(self, method: str, path: str, content: bytes | None, key: str | None) -> httpx.Request:
        request = self._client.build_request(method, path, content=content)
        if key is not None:
            header_key([key], [])
            request.headers["Idempotency-Key"] = key
        return request

    def unavailable(self, request: httpx.Request, error: Exception) -> HubUnavailable:
        return HubUnavailable(f"no answer from {self.url}; does a hub run there? ({error!r})", answers.key_of(request))

    def _json(self, method: str, path: str, sent: Mapping[str, object] | None, key: str | None) -> httpx.Request:
        if sent is None:
            return self.request(method, path, None, key)
        request = self.request(method, path, as_json(sent), key)
        request.headers["Content-Type"] = "application/json"
        return request

    async def _ask(self, transport: httpx.AsyncBaseTransport, request: httpx.Request) -> httpx.Response:
        async def ask() -> httpx.Response:
            response = await transport.handle_async_request(request)
            response.request = request
            try:
                await response.aread()
            finally:
                await response.aclose()
            return response

        return await self._answer(request, ask())

    async def _answer(self, request: httpx.Request, asking: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
        if self._client.is_closed:
            asking.close()
            raise StoreClosed("this client was closed; open another")
        try:
            return await asking
        except httpx.RequestError as error:
            raise self.unavailable(request, error) from error


def as_json(sent: Mapping[str, object]) -> bytes:
    try:
        return to_json(sent).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"this cannot be sent as JSON: {error}") from error


def path_of(collection: str, kind: str, name: str, below: str = "") -> str:
    """The address of something by its name, as in `/v1/tasks/…`."""
    # These would lead to another address; nothing has such a name.
    if not name or name in {".", ".."} or "/" in name:
        raise NotFound(f"there is no {kind} {name[:64]!r}")
    return f"{collection}/{quote(name, safe='', errors='replace')}{below}"


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
