"""Rows of the load benchmark: the requests of each route, and the check of every response.

A response must have the expected status, and must belong to its request: each request carries a random token (a key, a
text or the digest of its bytes) that the response repeats. A writer that mixes up the answers of a batch fails here.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import itertools
import json
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from bench.blobs.transfer import BOUNDARY, HEAD, TAIL
from bench.ingest import messages
from onceward.hub.ingest.telegram import normalize_telegram

NEW = "new"
NEW_KEYED = "new-keyed"
DUPLICATE = "duplicate"
CHAT = "chat"
INSERT = "insert"
UPLOAD = "upload"
HEALTH = "health"
BARE_POST = "bare-post"
BARE_GET = "bare-get"
TITLES = {
    NEW: "topic attachment, new",
    NEW_KEYED: "topic attachment, new, with an `Idempotency-Key`",
    DUPLICATE: "topic attachment, duplicate",
    CHAT: "`/chat` with `Prefer: wait`, idle brain",
    INSERT: "`/db/insert`, one entry",
    UPLOAD: "upload of 4 KiB",
    HEALTH: "`GET /healthz`",
}
ROWS = tuple(TITLES)

UPLOAD_BYTES = 4096
TASK = "bench-task"
# Attachments that the row of duplicates sends again.
DUPLICATES = 64
# A client waits this long for the response to its message.
_WAIT_SECONDS = 15

JSON_HEADER = b"Content-Type: application/json\r\n"
_HEAD_OF_UPLOAD, _TAIL_OF_UPLOAD = HEAD.encode(), TAIL.encode()
# Message numbers of entries: every one is used once in a process.
_numbers = itertools.count(random.randrange(10**11, 5 * 10**11))


def bare_of(row: str) -> str:
    """Return the bare route that a row is compared with."""
    return BARE_GET if row == HEALTH else BARE_POST


class WrongResponse(Exception):
    """A server gave a response that it must not give. The run is worthless."""


@dataclass(frozen=True, slots=True)
class Row:
    """The requests of one route on one server.

    Attributes:
        build: Returns the next request of a connection, and a token that its response repeats.
        status: The expected status line, or its beginning.
        has: Bytes in every response.
        lacks: Bytes in no response.
    """

    name: str
    build: Callable[[int], tuple[bytes, bytes]]
    status: bytes
    has: bytes = b""
    lacks: bytes | None = None
    _tokens: dict[int, bytes] = field(default_factory=dict)

    def request(self, connection: int, _number: int) -> bytes:
        request, self._tokens[connection] = self.build(connection)
        return request

    def check(self, connection: int, response: bytes) -> None:
        if (
            not response.startswith(self.status)
            or self.has not in response
            or self._tokens[connection] not in response
            or (self.lacks is not None and self.lacks in response)
        ):
            wanted = [self.status, self.has, self._tokens[connection]]
            raise WrongResponse(f"{self.name}: expected {wanted} without {self.lacks!r}, got {response[:2000]!r}")


@dataclass(frozen=True, slots=True)
class Place:
    """The data of a hub before it is measured: a topic with some attachments, and a task."""

    topic_id: str
    duplicates: Sequence[bytes]


def prepare(port: int) -> Place:
    """Create the topic, its attachments and the task. A copy of the data has them too."""
    duplicates = [new_token() for _ in range(DUPLICATES)]
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        topic_id = post_json(connection, "/api/v1/topics", b'{"title":"Bench"}')["topic"]["id"]
        post_json(connection, "/v1/tasks", b'{"id":"%b","title":"Bench"}' % TASK.encode())
        for token in duplicates:
            post_json(connection, f"/api/v1/topics/{topic_id}/attachments", attachment_json(token))
    return Place(topic_id, duplicates)


def rows_of(port: int, place: Place) -> dict[str, Row]:
    """Return the rows of a hub."""

    def post(path: str, headers: bytes, body: bytes) -> bytes:
        return http_request(port, "POST", path, headers, body)

    def attach(token: bytes, headers: bytes = JSON_HEADER) -> tuple[bytes, bytes]:
        return post(f"/api/v1/topics/{place.topic_id}/attachments", headers, attachment_json(token)), token

    def keyed(_connection: int) -> tuple[bytes, bytes]:
        return attach(new_token(), b"%bIdempotency-Key: %b\r\n" % (JSON_HEADER, new_token()))

    def chat(connection: int) -> tuple[bytes, bytes]:
        token = new_token()
        body = b'{"message":"Hello, this is %b","session_key":"%b"}' % (token, session_of(connection).encode())
        return post("/chat", b"%bPrefer: wait=%d\r\n" % (JSON_HEADER, _WAIT_SECONDS), body), token

    def insert(_connection: int) -> tuple[bytes, bytes]:
        digest = new_token() * 2
        body = _ENTRY.replace(_NUMBER_HERE, b"%d" % next(_numbers)).replace(_DIGEST_HERE, digest)
        return post("/db/insert", JSON_HEADER, body), digest

    def upload(_connection: int) -> tuple[bytes, bytes]:
        content = random.randbytes(UPLOAD_BYTES)
        headers = b"Content-Type: multipart/form-data; boundary=%b\r\n" % BOUNDARY.encode()
        body = b"".join((_HEAD_OF_UPLOAD, content, _TAIL_OF_UPLOAD))
        return post(f"/v1/tasks/{TASK}/attachments", headers, body), hashlib.sha256(content).hexdigest().encode()

    rows = [
        Row(NEW, lambda _: attach(new_token()), _CREATED, b'"event_id":', b'"event_id":null'),
        Row(NEW_KEYED, keyed, _CREATED, b'"event_id":', b"\r\nidempotent-replayed:"),
        Row(DUPLICATE, lambda _: attach(random.choice(place.duplicates)), _OK, b'"event_id":null'),
        Row(CHAT, chat, _OK, b'"status":"complete"', b'"duplicate_of"'),
        Row(INSERT, insert, _OK, b'"action":"inserted"', b'"event_id":null'),
        Row(UPLOAD, upload, _CREATED, b'"sha256":'),
        Row(HEALTH, lambda _: (get_health(port), b""), _OK),
    ]
    return {row.name: row for row in rows}


def bare_rows(port: int) -> dict[str, Row]:
    """Return the rows of the bare routes. The POST route gets the same JSON as an attachment."""

    def attach(_connection: int) -> tuple[bytes, bytes]:
        token = new_token()
        return http_request(port, "POST", "/attachments", JSON_HEADER, attachment_json(token)), token

    return {
        BARE_POST: Row(BARE_POST, attach, _CREATED),
        BARE_GET: Row(BARE_GET, lambda _: (get_health(port), b""), _OK),
    }


def session_of(connection: int) -> str:
    """Return the session in which a connection chats."""
    return f"bench-{connection}"


@functools.cache
def get_health(port: int) -> bytes:
    """Return a request that changes nothing, for every server of the contest."""
    return http_request(port, "GET", "/healthz", b"", b"")


_CREATED, _OK = b"HTTP/1.1 201 ", b"HTTP/1.1 200 "


def new_token() -> bytes:
    return b"%032x" % random.getrandbits(128)


def attachment_json(token: bytes) -> bytes:
    value = b'{"url":"https://example.com/articles/%b","title":"A page that somebody found"}' % token
    return b'{"kind":"citation","value_json":%b,"dedupe_key":"url:%b"}' % (value, token)


def http_request(port: int, method: str, path: str, headers: bytes, body: bytes) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: */*\r\n".encode()
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    return b"%b%b%b\r\n%b" % (head, headers, length, body)


def post_json(connection: http.client.HTTPConnection, path: str, body: bytes, **headers: str) -> Any:
    """Send one request outside of the measurement."""
    connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    text = response.read().decode()
    if response.status not in {200, 201}:
        raise WrongResponse(f"POST {path}: expected 200 or 201, got {response.status} {text}")
    return json.loads(text)


def _entry() -> tuple[bytes, bytes, bytes]:
    """Return a normalized Telegram message as JSON, with the number of the message and the digest of its text."""
    update, number = messages.update(1), next(_numbers)
    update["message"]["message_id"] = number
    payload = normalize_telegram(update)
    return json.dumps(payload).encode(), b"%d" % number, str(payload["content_hash"]).encode()


_ENTRY, _NUMBER_HERE, _DIGEST_HERE = _entry()
