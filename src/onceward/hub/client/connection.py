"""HTTP connection of the client to a hub: sends requests with retries, and turns failures into `onceward.errors`."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypedDict, TypeVar
from urllib.parse import quote

import httpx

from onceward.errors import HubUnavailable, InvalidInput, InvalidOption, NotFound, StoreClosed
from onceward.http.client.policy import DEADLINE_SECONDS
from onceward.http.client.transport import AsyncRetryTransport
from onceward.http.request.headers import key_of as header_key
from onceward.hub.client import responses
from onceward.ledger.terms import check_seconds

T = TypeVar("T")

SECONDS_MAX = 24 * 3600.0
# The hub's limit for a page.
PAGE_MAX = 500
TRANSFER_SECONDS = 6 * 3600.0
# Time for which a hub may work before it responds: an upload is synced to disk and inspected first, and garbage
# collection reads every blob.
RESPONSE_SECONDS = 3600.0

# One JSON object in each line.
LINES = "application/x-ndjson"

to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class HubOptions(TypedDict, total=False):
    """Options of `Hub` and `BlockingHub`.

    Attributes:
        deadline_seconds: The time limit of a call, including its retries. 90 by default.
        transfer_seconds: The same for uploads, downloads and administration. 6 hours by default.
        try_seconds: The time that one attempt may receive nothing. 20 by default.
        ca_file: A file with the certificates, in PEM format, that an https hub may be signed by. By default, those of
            httpx, or of the variable SSL_CERT_FILE.
        transport: The httpx transport that sends each attempt, with its proxies, TLS and limits. It is closed with the
            client.
    """

    deadline_seconds: float
    transfer_seconds: float
    try_seconds: float
    ca_file: str | Path
    transport: httpx.AsyncBaseTransport


class HubConnection:
    """Connections to one hub, with the requests over them."""

    def __init__(self, url: str, token: str | None, options: HubOptions) -> None:
        base = _base(url)
        self.url = str(base)
        self.try_seconds = check_seconds("try_seconds", options.get("try_seconds", 20.0), SECONDS_MAX, positive=True)
        self.transfer_seconds = check_seconds(
            "transfer_seconds", options.get("transfer_seconds", TRANSFER_SECONDS), SECONDS_MAX, positive=True
        )
        self._inner = options.get("transport") or _transport(base, options.get("ca_file"))
        self._client = httpx.AsyncClient(
            base_url=base,
            headers={"User-Agent": "onceward", **_authorization(token)},
            timeout=self.try_seconds,
            transport=AsyncRetryTransport(
                self._inner, deadline_seconds=options.get("deadline_seconds", DEADLINE_SECONDS)
            ),
        )
        self._transfer_transport = AsyncRetryTransport(self._inner, deadline_seconds=self.transfer_seconds)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def change(
        self,
        method: str,
        path: str,
        sent: Mapping[str, object] | None,
        key: str | None,
        decode: Callable[[Any], T],
    ) -> T:
        """Send a request that writes, with the same key on every attempt."""
        return responses.read(await self.send(self._json(method, path, sent, key)), decode)

    async def work(self, path: str, sent: Mapping[str, object], key: str | None, decode: Callable[[Any], T]) -> T:
        """Send an administrative request, which may take long."""
        return responses.read(await self.send_transfer(self.work_request(path, sent, key)), decode)

    def work_request(self, path: str, sent: Mapping[str, object], key: str | None) -> httpx.Request:
        request = self._json("POST", path, sent, key)
        request.headers["X-Confirm"] = "true"
        return request

    async def read(self, path: str, query: Mapping[str, object], decode: Callable[[Any], T]) -> T:
        return responses.read(await self.send(self.get(path, query)), decode)

    async def pages(
        self,
        path: str,
        query: Mapping[str, object],
        field: str,
        decode: Callable[[Any], T],
        limit: int | None = None,
    ) -> list[T]:
        """Return all items of a list, or at most `limit`, reading as many pages as needed."""
        found: list[T] = []
        after: str | None = None
        while True:
            wanted = PAGE_MAX if limit is None else min(PAGE_MAX, limit - len(found))
            page = {**query, "limit": wanted, "after": after}
            items, after = await self.read(path, page, lambda body: responses.page(body, field, decode))
            found += items
            if after is None or len(found) == limit:
                return found

    async def open(self, request: httpx.Request, accepted: Callable[[httpx.Response], bool]) -> httpx.Response:
        """Return a response whose body the caller reads and closes. Raise the error of a response not `accepted`."""
        response = await self._response_to(request, self._client.send(request, stream=True))
        if accepted(response):
            return response
        try:
            await response.aread()
        except httpx.TransportError as error:
            raise self.unavailable(request, error) from error
        finally:
            await response.aclose()
        raise responses.error_of(response)

    async def probe(self, path: str) -> httpx.Response:
        """Send a GET request once, without retries."""
        return await self._send_once(self._inner, self.get(path, {}))

    async def send(self, request: httpx.Request) -> httpx.Response:
        return await self._response_to(request, self._client.send(request))

    async def send_transfer(
        self, request: httpx.Request, on_line: Callable[[str], None] | None = None
    ) -> httpx.Response:
        """Send a request that may take long. If the response is lines of JSON, `on_line` gets each as it arrives."""
        timeout = httpx.Timeout(self.try_seconds, read=max(self.try_seconds, RESPONSE_SECONDS))
        request.extensions = {**request.extensions, "timeout": timeout.as_dict()}
        return await self._send_once(self._transfer_transport, request, on_line)

    def get(self, path: str, query: Mapping[str, object]) -> httpx.Request:
        params: dict[str, Any] = {name: value for name, value in query.items() if value is not None}
        try:
            return self._client.build_request("GET", path, params=params)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"cannot build the request: {error}") from error

    def request(self, method: str, path: str, content: bytes | None, key: str | None) -> httpx.Request:
        request = self._client.build_request(method, path, content=content)
        if key is not None:
            header_key([key], [])
            request.headers["Idempotency-Key"] = key
        return request

    def unavailable(self, request: httpx.Request, error: Exception) -> HubUnavailable:
        return HubUnavailable(
            f"no response from {self.url}; is a hub running there? ({error!r})", responses.key_of(request)
        )

    def _json(self, method: str, path: str, sent: Mapping[str, object] | None, key: str | None) -> httpx.Request:
        if sent is None:
            return self.request(method, path, None, key)
        request = self.request(method, path, as_json(sent), key)
        request.headers["Content-Type"] = "application/json"
        return request

    async def _send_once(
        self,
        transport: httpx.AsyncBaseTransport,
        request: httpx.Request,
        on_line: Callable[[str], None] | None = None,
    ) -> httpx.Response:
        async def send() -> httpx.Response:
            response = await transport.handle_async_request(request)
            response.request = request
            try:
                if on_line is not None and response.headers.get("Content-Type", "").startswith(LINES):
                    async for line in response.aiter_lines():
                        on_line(line)
                else:
                    await response.aread()
            finally:
                await response.aclose()
            return response

        return await self._response_to(request, send())

    async def _response_to(
        self, request: httpx.Request, sending: Coroutine[Any, Any, httpx.Response]
    ) -> httpx.Response:
        if self._client.is_closed:
            sending.close()
            raise StoreClosed("this client is closed; create a new one")
        try:
            return await sending
        except httpx.RequestError as error:
            raise self.unavailable(request, error) from error


def as_json(sent: Mapping[str, object]) -> bytes:
    try:
        return to_json(sent).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"cannot encode the value as JSON: {error}") from error


def path_of(collection: str, kind: str, name: str, below: str = "") -> str:
    """Return the path of a resource by its name, as in `/v1/tasks/…`."""
    # These names would lead to another path. No resource has such a name.
    if not name or name in {".", ".."} or "/" in name:
        raise NotFound(f"the {kind} {name[:64]!r} does not exist")
    return f"{collection}/{quote(name, safe='', errors='replace')}{below}"


def _base(url: str) -> httpx.URL:
    try:
        base = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise InvalidOption(f"the URL of the hub is not valid: {error}") from error
    if base.scheme not in {"http", "https"} or not base.host:
        raise InvalidOption("the URL of a hub must begin with http:// or https:// and have a host")
    if base.userinfo or base.query or base.fragment:
        raise InvalidOption("the URL of a hub must not have a user, query or fragment; pass a token as token=")
    return base


def _authorization(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidOption("a token must be visible ASCII text without spaces and line ends")
    return {"Authorization": f"Bearer {token}"}


def certificates_in(ca_file: str | Path) -> ssl.SSLContext:
    """Return a context that trusts the certificates in a PEM file, or raise `InvalidOption`."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise InvalidOption(f"ca_file: {str(ca_file)!r} is not a file with certificates in PEM format") from error


def _transport(base: httpx.URL, ca_file: str | Path | None) -> httpx.AsyncHTTPTransport:
    verify: ssl.SSLContext | bool = True
    if base.scheme != "https":
        # Loading all CA certificates takes longer than most calls. Without TLS, an empty context is enough.
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    elif ca_file is not None:
        verify = certificates_in(ca_file)
    # No connection limit, because each stream holds a connection.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    return httpx.AsyncHTTPTransport(verify=verify, limits=limits)
