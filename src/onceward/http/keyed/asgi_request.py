"""The headers and the body of a keyed ASGI request. The body is read before the key is claimed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from onceward.http import problem
from onceward.http.asgi_types import Message, Receive
from onceward.http.keyed.principal import CREDENTIAL_HEADERS
from onceward.http.keyed.rules import BODY, JSON, Rule
from onceward.http.problem import Response
from onceward.http.request.buffered_body import BodyTooLarge, BufferedBody, digest_header, promised_digest
from onceward.http.request.form_digest import is_form
from onceward.http.request.headers import length_of
from onceward.http.request.json_digest import json_digest
from onceward.http.request.key_source import BodyNeeded, RequestHead

# A larger JSON body is parsed in a thread, so that other requests continue meanwhile.
_INLINE_BYTES_MAX = 64 * 1024
_CREDENTIALS = {name.encode(): name for name in CREDENTIAL_HEADERS}


# Only these headers are decoded, to save time: a request has a dozen others.
_WANTED = frozenset(_CREDENTIALS) | {
    b"idempotency-key", b"x-idempotency-key", b"content-type", b"content-length", b"prefer", b"last-event-id",
    b"content-digest", b"repr-digest",
}  # fmt: skip


class AsgiHeaders:
    """The header lines of a request that the middleware reads, by lower-case name."""

    __slots__ = ("_lines", "credentials")

    def __init__(self, lines: Iterable[tuple[bytes, bytes]]) -> None:
        self._lines: dict[bytes, str] = {}
        self.credentials: tuple[tuple[str, bytes], ...] = ()
        for name, value in lines:
            if name in _WANTED:
                if name in _CREDENTIALS:
                    self.credentials += ((_CREDENTIALS[name], value),)
                else:
                    text = value.decode("latin-1")
                    self._lines[name] = f"{self._lines[name]}\n{text}" if name in self._lines else text

    def all(self, name: bytes) -> list[str]:
        found = self._lines.get(name)
        return [] if found is None else found.split("\n")

    def one(self, name: bytes) -> str:
        """Return the first line with this name, or ""."""
        found = self._lines.get(name)
        return found.partition("\n")[0] if found else ""


class SingleMessageBody:
    """A body that arrived in one message, as nearly all do."""

    __slots__ = ("_message", "digest")

    all_read: asyncio.Event | None = None
    broken: Response | None = None

    def __init__(self, message: Message, digest: bytes) -> None:
        self._message: Message | None = message
        self.digest = digest

    def content(self) -> bytes:
        return b"" if self._message is None else bytes(self._message.get("body", b""))

    async def message(self) -> Message | None:
        message, self._message = self._message, None
        return message

    def close(self) -> None:
        """Do nothing: this body has no temporary file."""


class BufferedAsgiBody:
    """A body that was read completely into memory or a temporary file."""

    __slots__ = ("_ahead", "_begun", "_body", "_pieces", "digest")

    all_read: asyncio.Event | None = None
    broken: Response | None = None

    def __init__(self, body: BufferedBody, digest: bytes) -> None:
        self._body = body
        self.digest = digest
        self._pieces: Iterator[bytes] = iter(())
        self._ahead: bytes | None = b""
        self._begun = False

    async def message(self) -> Message | None:
        if not self._begun:
            self._begun = True
            self._pieces = self._body.pieces()
            self._ahead = next(self._pieces, b"")
        piece = self._ahead
        if piece is None:
            return None
        self._ahead = next(self._pieces, None)
        return {"type": "http.request", "body": piece, "more_body": self._ahead is not None}

    def content(self) -> bytes:
        return self._body.content()

    def close(self) -> None:
        self._body.close()


class VerifiedBody:
    """A body that is passed on as it arrives, and is compared with the digest in its header.

    On a mismatch the handler gets `http.disconnect` before the end, and the client gets 400. Until the body has been
    read completely, only the handler may call `receive`: the next message is part of the body.
    """

    def __init__(self, receive: Receive, promised: bytes, bytes_max: int, header: str) -> None:
        self._receive = receive
        self._header = header
        self._bytes_max = bytes_max
        self._hash = hashlib.sha256()
        self._size = 0
        self.all_read = asyncio.Event()
        self.digest = promised
        self.broken: Response | None = None

    async def message(self) -> Message | None:
        if self.all_read.is_set():
            return None
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.all_read.set()
            # The body is incomplete: the response to it must not be replayed to a retry with the complete body.
            self.broken = problem.wrong_digest(self._header)
            return message
        data = message.get("body", b"")
        self._size += len(data)
        self._hash.update(data)
        ended = not message.get("more_body", False)
        if self._size > self._bytes_max:
            self.broken = problem.too_large(self._bytes_max)
        elif ended and self._hash.digest() != self.digest:
            self.broken = problem.wrong_digest(self._header)
        if ended or self.broken is not None:
            self.all_read.set()
        return message if self.broken is None else {"type": "http.disconnect"}

    def content(self) -> bytes:
        raise BodyNeeded  # it has not been read; `Rule` refuses a key in such a body

    def close(self) -> None:
        """Do nothing: this body has no temporary file."""


# `broken` is the response to send if the body does not match its digest or is too large. `all_read` is set when the
# body has been read completely from the server; it is None if that happened before the handler was called.
AsgiBody: TypeAlias = SingleMessageBody | BufferedAsgiBody | VerifiedBody


async def read(headers: AsgiHeaders, rule: Rule, receive: Receive) -> AsgiBody | Response | None:
    """Read the body. Return a problem if it is refused, and None if the client disconnected before it was complete."""
    bytes_max = rule.max_body_bytes or 0
    if (length_of(headers.one(b"content-length")) or 0) > bytes_max:
        return problem.too_large(bytes_max)
    if rule.digest:
        # In a form, `Repr-Digest` may be the digest of the file in it, which cannot be compared here.
        representation = "" if is_form(headers.one(b"content-type")) else headers.one(b"repr-digest")
        content = headers.one(b"content-digest")
        promised = promised_digest(content, representation)
        if promised is not None:
            return VerifiedBody(receive, promised, bytes_max, digest_header(content))
    message = await receive()
    content_type = headers.one(b"content-type")
    as_json = rule.compare == JSON
    if message["type"] == "http.request" and not message.get("more_body", False) and rule.fields is None:
        data = message.get("body", b"")
        if len(data) > bytes_max:
            return problem.too_large(bytes_max)
        if rule.compare == BODY or not is_form(content_type):
            digest = None
            if as_json:
                large = len(data) > _INLINE_BYTES_MAX
                digest = await asyncio.to_thread(json_digest, data) if large else json_digest(data)
            return SingleMessageBody(message, digest or hashlib.sha256(data).digest())
    body = BufferedBody("" if rule.compare == BODY else content_type, bytes_max)
    try:
        while True:
            if message["type"] == "http.disconnect":
                body.close()
                return None
            body.feed(message.get("body", b""))
            if not message.get("more_body", False):
                break
            message = await receive()
    except BodyTooLarge:
        body.close()
        return problem.too_large(bytes_max)
    if as_json and body.size > _INLINE_BYTES_MAX:
        return BufferedAsgiBody(body, await asyncio.to_thread(body.digest, rule.fields, as_json=True))
    return BufferedAsgiBody(body, body.digest(rule.fields, as_json=as_json))


def head_of(scope: Any) -> RequestHead:
    """Return the head of a request, for sources of its key."""
    lines: list[tuple[bytes, bytes]] = scope["headers"]

    def find(name: str) -> list[str]:
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for line, value in lines if line == wanted]

    return RequestHead(scope["method"], scope["path"], scope.get("query_string", b"").decode("latin-1"), find)


def receive_from(body: AsgiBody, receive: Receive) -> Receive:
    """Return a `receive` that yields the body, then the server's messages; for a handler that runs unprotected."""

    async def receive_again() -> Any:
        message = await body.message()
        return await receive() if message is None else message

    return receive_again
