"""Encrypted responses that were changed in the store: refused on every store with rows, and never run again."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, Protocol
from urllib.parse import parse_qs

import psycopg
import pytest
import redis
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.http.asgi_server import Call, ReceivedResponse, give, protected, reply, run, send_request, start
from tests.http.wsgi_server import CountingApp
from tests.http.wsgi_server import send_request as ask_wsgi

from onceward.core.claim import Claim
from onceward.core.outcome import CHUNK_BYTES_MAX, Outcome
from onceward.errors import ClaimLost, OutcomeNotKept
from onceward.http import IdempotencyMiddleware, WSGIIdempotencyMiddleware
from onceward.http.asgi_types import Receive, Send
from onceward.http.stored.encryption import _id_of
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore

KEY = bytes(range(32))
SECRET = b"card 4242 "
BODIES = {"inline": SECRET, "chunks": SECRET * (3 * CHUNK_BYTES_MAX // len(SECRET))}

on_rows = pytest.mark.parametrize("backend", ["sqlite", "postgres", "redis"], indirect=True)


class Rows(Protocol):
    """The rows of a store, for somebody with write access."""

    def get(self, key: str, name: str) -> Any: ...

    def set(self, key: str, name: str, value: Any) -> None: ...

    def chunks(self, key: str) -> list[bytes]: ...

    def set_chunks(self, key: str, chunks: list[bytes]) -> None: ...

    def close(self) -> None: ...


class SqlRows:
    def __init__(self, url: str) -> None:
        path = url.removeprefix("sqlite:///")
        self._is_sqlite = path != url
        self._connection: Any = (
            sqlite3.connect(path, isolation_level=None) if self._is_sqlite else psycopg.connect(url, autocommit=True)
        )

    def _do(self, sql: str, *values: Any) -> Any:
        return self._connection.execute(sql if self._is_sqlite else sql.replace("?", "%s"), values)

    def get(self, key: str, name: str) -> Any:
        return self._do(f"SELECT {name} FROM platform_idempotency_keys WHERE key = ?", key).fetchone()[0]  # noqa: S608

    def set(self, key: str, name: str, value: Any) -> None:
        self._do(f"UPDATE platform_idempotency_keys SET {name} = ? WHERE key = ?", value, key)  # noqa: S608

    def chunks(self, key: str) -> list[bytes]:
        rows = self._do("SELECT data FROM platform_idempotency_chunks WHERE key = ? ORDER BY seq", key)
        return [bytes(row[0]) for row in rows.fetchall()]

    def set_chunks(self, key: str, chunks: list[bytes]) -> None:
        scope = self.get(key, "scope")
        self._do("DELETE FROM platform_idempotency_chunks WHERE key = ?", key)
        for seq, data in enumerate(chunks, 1):
            self._do(
                "INSERT INTO platform_idempotency_chunks (scope, key, seq, data) VALUES (?, ?, ?, ?)",
                scope,
                key,
                seq,
                data,
            )

    def close(self) -> None:
        self._connection.close()


# Names of the columns in Redis.
FIELDS = {
    "response_status": "code",
    "response_headers": "headers",
    "response_body": "body",
    "response_chunks": "chunks",
}


class RedisRows:
    def __init__(self, url: str) -> None:
        address, _, query = url.partition("?")
        self._redis = redis.Redis.from_url(address)
        self._prefix = parse_qs(query)["prefix"][0]

    def _place(self, kind: str, key: str) -> Any:
        names = self._redis.scan_iter(f"{self._prefix}:{{??}}:{kind}:*")
        return next(name for name in names if name.endswith(b"\0" + key.encode()))

    def get(self, key: str, name: str) -> Any:
        return self._redis.hget(self._place("e", key), FIELDS.get(name, name))

    def set(self, key: str, name: str, value: Any) -> None:
        if value is None:
            self._redis.hdel(self._place("e", key), FIELDS.get(name, name))
        else:
            self._redis.hset(self._place("e", key), FIELDS.get(name, name), value)

    def chunks(self, key: str) -> list[bytes]:
        found: Any = self._redis.lrange(self._place("c", key), 0, -1)
        return list(found)

    def set_chunks(self, key: str, chunks: list[bytes]) -> None:
        place = self._place("c", key)
        self._redis.delete(place)
        self._redis.rpush(place, *chunks)

    def close(self) -> None:
        self._redis.close()


@pytest.fixture
def rows(store_url: str) -> Iterator[Callable[[], Rows]]:
    """Opens the rows, after the ledger has created them."""
    opened: list[Rows] = []

    def get() -> Rows:
        opened.append(RedisRows(store_url) if store_url.startswith("redis") else SqlRows(store_url))
        return opened[-1]

    yield get
    for one in opened:
        one.close()


class PaymentApp:
    """An application whose responses have the length that their path names, behind a middleware with encryption."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.runs = 0

    async def _app(self, scope: Any, _receive: Receive, send: Send) -> None:
        self.runs += 1
        body = BODIES[scope["path"][1:]]
        await start(send, (b"content-length", b"%d" % len(body)), (b"x-card", b"4242"))
        await give(send, body, more=False)

    def pay(self, kind: str, key: str = "k") -> ReceivedResponse:
        """Send a request to a new process, which has no claim cache."""

        async def main() -> ReceivedResponse:
            middleware = IdempotencyMiddleware(self._app, self._url, encryption_keys=[KEY], metrics=False)
            try:
                call = Call(middleware, f"/{kind}", key=key)
                with suppress(OutcomeNotKept):
                    await call.task
                return call.got
            finally:
                await asyncio.to_thread(middleware._admission.ledger.close)

        return run(main())


def status(rows: Rows) -> None:
    rows.set("k", "response_status", 200)


def no_status(rows: Rows) -> None:
    rows.set("k", "response_status", None)


def headers(rows: Rows) -> None:
    rows.set("k", "response_headers", '[["x-card","0000"]]')


def no_headers(rows: Rows) -> None:
    rows.set("k", "response_headers", None)


def headers_of_another(rows: Rows) -> None:
    rows.set("k", "response_headers", rows.get("other", "response_headers"))


def body_of_another(rows: Rows) -> None:
    rows.set("k", "response_body", rows.get("other", "response_body"))
    rows.set("k", "response_headers", rows.get("other", "response_headers"))
    with suppress(StopIteration):
        rows.set_chunks("k", rows.chunks("other"))


def plain_body(rows: Rows) -> None:
    rows.set("k", "response_body", b"mine")


def last_chunk(rows: Rows) -> None:
    rows.set_chunks("k", rows.chunks("k")[:-1])


def last_chunk_and_its_count(rows: Rows) -> None:
    last_chunk(rows)
    rows.set("k", "response_chunks", len(rows.chunks("k")))


def swapped_chunks(rows: Rows) -> None:
    head, one, two, *rest = rows.chunks("k")
    rows.set_chunks("k", [head, two, one, *rest])


def doubled_chunk(rows: Rows) -> None:
    head, one, _, *rest = rows.chunks("k")
    rows.set_chunks("k", [head, one, one, *rest])


def one_chunk_more(rows: Rows) -> None:
    chunks = rows.chunks("k")
    rows.set_chunks("k", [*chunks, chunks[-1]])
    rows.set("k", "response_chunks", len(chunks) + 1)


ALIKE = [status, no_status, headers, no_headers, headers_of_another, body_of_another]
INLINE = [("inline", change) for change in (*ALIKE, plain_body)]
CHUNKS = [
    ("chunks", change)
    for change in (*ALIKE, last_chunk, last_chunk_and_its_count, swapped_chunks, doubled_chunk, one_chunk_more)
]


@on_rows
@pytest.mark.parametrize(("kind", "change"), [*INLINE, *CHUNKS], ids=lambda value: getattr(value, "__name__", value))
def test_a_changed_response_is_refused_and_never_run_again(
    store_url: str,
    rows: Callable[[], Rows],
    kind: str,
    change: Callable[[Rows], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    paying = PaymentApp(store_url)
    first, other = paying.pay(kind), paying.pay(kind, "other")
    assert (first.status, first.body, other.body) == (201, BODIES[kind], BODIES[kind])
    replayed = paying.pay(kind)
    assert (replayed.status, replayed.body, replayed.replayed) == (201, BODIES[kind], True)

    change(rows())
    with caplog.at_level(logging.ERROR, "onceward.http"):
        again = paying.pay(kind)

    assert (again.status, json.loads(again.body)["code"], again.whole) == (409, "outcome-not-kept", True)
    assert SECRET not in again.body
    assert "x-card" not in again.headers
    assert paying.runs == 2, "the two first requests alone"
    assert "stored_response_unreadable" in caplog.text or change is no_status
    assert paying.pay(kind, "other").body == BODIES[kind]


@on_rows
def test_a_response_encrypted_in_version_1_is_refused_and_never_run_again(
    store_url: str, rows: Callable[[], Rows], caplog: pytest.LogCaptureFixture
) -> None:
    paying = PaymentApp(store_url)
    paying.pay("inline")
    written = rows()
    scope, version = written.get("k", "scope") if "redis" not in store_url else "", written.get("k", "version")

    def encrypted_v1(data: bytes, what: str) -> bytes:
        prefix, nonce = b"\x01" + _id_of(KEY), bytes(12)
        place = f"{scope}\x00k\x00{int(version)}\x00{what}".encode()
        return prefix + nonce + AESGCM(KEY).encrypt(nonce, data, prefix + place)

    written.set("k", "response_body", encrypted_v1(SECRET, "body"))
    written.set("k", "response_headers", "sealed:" + base64.b64encode(encrypted_v1(b"[]", "headers")).decode())

    again = paying.pay("inline")

    assert (again.status, json.loads(again.body)["code"]) == (409, "outcome-not-kept")
    assert "encrypted in version 1" in caplog.text
    assert paying.runs == 1


# While it is read, and while it is written.


def test_a_long_response_that_lost_its_end_is_cut_and_not_completed() -> None:
    """The first page is complete, so the response starts; the missing chunk is noticed before the end."""
    body = b"x" * (40 * CHUNK_BYTES_MAX)

    async def app(_scope: Any, _receive: Receive, send: Send) -> None:
        await reply(send, body)

    async def main() -> None:
        store = MemoryStore()
        with protected(app, store, encryption_keys=[KEY]) as middleware:
            await send_request(middleware)
            (chunks,) = store._chunks.values()
            del chunks[-1]

            again = Call(middleware)
            with pytest.raises(OutcomeNotKept, match="missing"):
                await again.task

            assert again.got.status == 201
            assert not again.got.whole

    run(main())


def test_a_joined_stream_is_not_completed_by_an_end_that_its_producer_did_not_settle() -> None:
    async def main() -> None:
        store, going_on = MemoryStore(), asyncio.Event()

        async def app(_scope: Any, _receive: Receive, send: Send) -> None:
            await start(send)
            await give(send, b"one ")
            await going_on.wait()
            await give(send, b"two", more=False)

        with Ledger(store) as ledger, protected(app, ledger, encryption_keys=[KEY]) as middleware:
            first = Call(middleware)
            await first.has(lambda got: got.pieces)
            joined = Call(middleware)
            await joined.has(lambda got: got.pieces)
            (entry,) = (await ledger.scan()).entries
            head = (await ledger.chunks(entry, 0, 1))[0].partition(b" ")[2].decode()
            claim = Claim(entry, None)
            assert await ledger.settle(claim, Outcome(200, head, None, entry.outcome.chunks))

            with pytest.raises(OutcomeNotKept):
                await joined.task
            assert joined.got.body == b"one "
            assert not joined.got.whole
            going_on.set()
            with suppress(ClaimLost):
                await first.task

    run(main())


def test_under_wsgi_a_changed_response_is_refused_too() -> None:
    def handler(_: int, __: Any, start_response: Any) -> list[bytes]:
        start_response("201 Created", [("Content-Type", "text/plain")])
        return [BODIES["chunks"]]

    store, shop = MemoryStore(), CountingApp(handler)
    with closing(WSGIIdempotencyMiddleware(shop, store, encryption_keys=[KEY], metrics=False)) as middleware:
        assert ask_wsgi(middleware).status == 201
        (chunks,) = store._chunks.values()
        chunks[1], chunks[2] = chunks[2], chunks[1]

        again = ask_wsgi(middleware)

        assert (again.status, json.loads(again.body)["code"]) == (409, "outcome-not-kept")
        assert shop.runs == 1
