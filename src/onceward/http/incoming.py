"""A keyed ASGI request on its way in: its headers, and its body, which is read before anything is claimed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from onceward.core.request import length_of
from onceward.http import problem
from onceward.http.parts import is_form
from onceward.http.principal import CREDENTIAL_HEADERS
from onceward.http.problem import Answer
from onceward.http.rules import Rule
from onceward.http.spool import Body, TooLarge, digest_header, promised_digest
from onceward.http.wire import Message, Receive

_CREDENTIALS = {name.encode(): name for name in CREDENTIAL_HEADERS}


# The only header lines that matter here. A request has a dozen others.
_WANTED = frozenset(_CREDENTIALS) | {
    b"idempotency-key", b"x-idempotency-key", b"content-type", b"content-length", b"prefer", b"last-event-id",
    b"content-digest", b"repr-digest",
}  # fmt: skip


class Headers:
    """The header lines of a request that matter here, by lower-case name."""

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
        """The first line, or nothing."""
        found = self._lines.get(name)
        return found.partition("\n")[0] if found else ""


class Whole:
    """A body that came in one message, as nearly all do."""

    __slots__ = ("_message", "digest")

    all_read: asyncio.Event | None = None
    broken: Answer | None = None

    def __init__(self, message: Message) -> None:
        self._message: Message | None = message
        self.digest = hashlib.sha256(message.get("body", b"")).digest()

    async def message(self) -> Message | None:
        message, self._message = self._message, None
        return message

    def close(self) -> None:
        """Nothing was spooled."""


class Spooled:
    """A body that was read whole."""

    __slots__ = ("_ahead", "_begun", "_body", "_pieces", "digest")

    all_read: asyncio.Event | None = None
    broken: Answer | None = None

    def __init__(self, body: Body, rule: Rule) -> None:
        self._body = body
        self.digest = body.digest(rule.fields)
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

    def close(self) -> None:
        self._body.close()


class Verified:
    """A body that is passed on as it comes, and must be what its `Content-Digest` promised.

    Should it not be, the handler sees its client go away before the end, and the client gets 400. Before all of it has
    been read, what the server says next is for the handler, and nobody else may ask.
    """

    def __init__(self, receive: Receive, promised: bytes, bytes_max: int, header: str) -> None:
        self._receive = receive
        self._header = header
        self._bytes_max = bytes_max
        self._hash = hashlib.sha256()
        self._size = 0
        self.all_read = asyncio.Event()
        self.digest = promised
        self.broken: Answer | None = None

    async def message(self) -> Message | None:
        if self.all_read.is_set():
            return None
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.all_read.set()
            # Half a body is not the request: what the handler makes of it must not answer the retry.
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

    def close(self) -> None:
        """Nothing was spooled."""


# `broken` is the answer when a body is not what its request promised. `all_read` is set when none of it is left at the
# server, and None where that was so before the handler was called.
Incoming: TypeAlias = Whole | Spooled | Verified


async def read(headers: Headers, rule: Rule, receive: Receive) -> Incoming | Answer | None:
    """The body, or why it is refused; None when the client went away before all of it had come."""
    bytes_max = rule.max_body_bytes or 0
    if (length_of(headers.one(b"content-length")) or 0) > bytes_max:
        return problem.too_large(bytes_max)
    if rule.digest:
        # In a form a client may mean the file by its `Repr-Digest`, of which nothing is known here.
        whole = "" if is_form(headers.one(b"content-type")) else headers.one(b"repr-digest")
        content = headers.one(b"content-digest")
        promised = promised_digest(content, whole)
        if promised is not None:
            return Verified(receive, promised, bytes_max, digest_header(content))
    message = await receive()
    kind = headers.one(b"content-type")
    if message["type"] == "http.request" and not message.get("more_body", False) and rule.fields is None:
        if len(message.get("body", b"")) > bytes_max:
            return problem.too_large(bytes_max)
        if not is_form(kind):
            return Whole(message)
    body = Body(kind, bytes_max)
    try:
        while True:
            if message["type"] == "http.disconnect":
                body.close()
                return None
            body.feed(message.get("body", b""))
            if not message.get("more_body", False):
                break
            message = await receive()
    except TooLarge:
        body.close()
        return problem.too_large(bytes_max)
    return Spooled(body, rule)


def given_again(incoming: Incoming, receive: Receive) -> Receive:
    """The body once more, then whatever else the server says; for a handler that runs unprotected."""

    async def again() -> Any:
        message = await incoming.message()
        return await receive() if message is None else message

    return again
