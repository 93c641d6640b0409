"""The operation of a handler, found through every framework's request."""

from __future__ import annotations

import asyncio
import io
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import flask
import pytest
import quart
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from litestar import Request as LitestarRequest
from starlette.requests import Request
from werkzeug.test import EnvironBuilder

from onceward.core.claim import Claim, Entry, Status
from onceward.errors import InsideBoundTransaction, InvalidOption, NotGuarded
from onceward.http import Rule, idempotency
from onceward.http.keyed.operation import ENVIRON_KEY, GUARDED, SCOPE_KEY, ClaimBinding, Operation
from onceward.http.stored.codec import ResponseCodec
from onceward.http.stored.encryption import Encryption
from onceward.ledger import Ledger
from onceward.ledger.internals import start_renewal
from onceward.ledger.open import open_ledger
from onceward.ledger.terms import MAX_RUN_SECONDS
from onceward.testing import guarded

OURS = Operation("k")


def scope(**more: Any) -> dict[str, Any]:
    return {
        "type": "http", "method": "POST", "path": "/pay", "root_path": "", "query_string": b"", "headers": [],
        "scheme": "http", "http_version": "1.1", "server": ("testserver", 80), "client": ("client", 1), "asgi": {}, **more,
    }  # fmt: skip


def environ(**more: Any) -> dict[str, Any]:
    return {**EnvironBuilder("/pay", method="POST").get_environ(), **more}


# Where it is found.


@pytest.mark.parametrize(
    "make",
    [dict, Request, LitestarRequest, lambda scope: ASGIRequest(scope, io.BytesIO())],
    ids=["scope", "starlette", "litestar", "django"],
)
def test_an_asgi_request_leads_to_its_operation(make: Any) -> None:
    assert idempotency(make(scope(**{SCOPE_KEY: OURS}))) is OURS
    assert idempotency(make(scope(**{SCOPE_KEY: GUARDED}))).key is None
    for unguarded in (scope(), scope(**{SCOPE_KEY: "a stranger's"})):
        with pytest.raises(NotGuarded):
            idempotency(make(unguarded))


@pytest.mark.parametrize("make", [dict, flask.Request, WSGIRequest], ids=["environ", "flask", "django"])
def test_a_wsgi_request_leads_to_its_operation(make: Any) -> None:
    assert idempotency(make(environ(**{ENVIRON_KEY: OURS}))) is OURS
    assert idempotency(make(environ(**{ENVIRON_KEY: GUARDED}))).key is None
    with pytest.raises(NotGuarded):
        idempotency(make(environ()))


def test_flasks_global_request_leads_to_the_operation() -> None:
    with flask.Flask("shop").request_context(environ(**{ENVIRON_KEY: OURS})):
        assert idempotency(flask.request) is OURS


def test_a_quart_request_leads_to_its_operation() -> None:
    async def main() -> Operation:
        app = quart.Quart("shop")
        async with app.test_request_context("/pay", method="POST", scope_base={SCOPE_KEY: OURS}):
            return idempotency(quart.request)

    assert asyncio.run(main()) is OURS


@pytest.mark.parametrize("thing", [None, {}, object(), "request"])
def test_a_request_without_a_middleware_has_no_operation(thing: object) -> None:
    with pytest.raises(NotGuarded, match=r"default=None.*onceward\.testing\.guarded"):
        idempotency(thing)

    assert idempotency(thing, default=None) is None
    assert idempotency(thing, OURS) is OURS


def test_a_test_may_call_a_handler_as_if_it_were_guarded() -> None:
    with guarded():
        assert idempotency(scope()).key is None
        assert idempotency(scope(**{SCOPE_KEY: OURS})) is OURS
    with pytest.raises(NotGuarded):
        idempotency(scope())


# Without a key.


def test_without_a_key_every_verb_does_nothing() -> None:
    operation = idempotency(scope(**{SCOPE_KEY: GUARDED}))
    operation.no_store()
    operation.release()
    operation.keep_for(5)
    bound = operation.bind(object())
    bound.settle({"a": 1})

    assert (operation.attempt, operation.version) == (1, 0)
    assert not bound.settled


def test_without_a_key_binding_and_settling_may_be_awaited_too() -> None:
    async def main() -> bool:
        bound = await idempotency(scope(**{SCOPE_KEY: GUARDED})).bind(object())
        settling = bound.settle({"a": 1})
        assert settling is not None
        await settling
        return bound.settled

    assert not asyncio.run(main())


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", None, True])
def test_a_response_is_stored_for_a_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(InvalidOption, match="keep_for"):
        OURS.keep_for(seconds)


# Bound to a transaction.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with open_ledger(f"sqlite:///{path}") as ledger:
        yield ledger


def begun(ledger: Ledger, rule: Rule) -> Operation:
    found = ledger.blocking.begin("s", "k", repeatable=True)
    assert isinstance(found, Claim)
    full = rule.over(Rule(store=True, max_response_bytes=100_000))
    renewal = start_renewal(ledger, found, None, None, MAX_RUN_SECONDS)
    return Operation("k", ClaimBinding(ledger, ResponseCodec(frozenset()), found, full, renewal))


@pytest.mark.parametrize("keys", [[], [b"k" * 16]], ids=["plain", "encrypted"])
def test_a_recovery_point_is_recorded_and_read_by_the_next_attempt(ledger: Ledger, keys: list[bytes]) -> None:
    codec = ResponseCodec(frozenset(), Encryption(keys) if keys else None)
    seen: list[object] = []

    def operation() -> Operation:
        found = ledger.blocking.begin("s", "k", repeatable=True)
        assert isinstance(found, Claim)
        renewal = start_renewal(ledger, found, None, None, MAX_RUN_SECONDS)
        made = Operation("k", ClaimBinding(ledger, codec, found, Rule(), renewal))
        seen.append(made.recovered)
        return made

    async def record(made: Operation) -> None:
        await made.recovery_point({"intent": "pi_2"})

    first = operation()
    first.recovery_point({"intent": "pi_1"})
    asyncio.run(record(first))
    entry = ledger.blocking.read("s", "k")
    assert entry is not None
    assert ("pi_2" in str(entry.recovery), entry.recovery_seq) == (not keys, 2)
    ledger.blocking.lapse(Claim(entry, None))

    operation()
    assert seen == [None, {"intent": "pi_2"}]


def test_a_recovery_point_without_a_key_is_not_recorded() -> None:
    operation = Operation(None)

    async def record() -> None:
        await operation.recovery_point("x")

    operation.recovery_point("x")
    asyncio.run(record())
    assert operation.recovered is None


def test_a_recovery_point_is_refused_inside_a_bound_transaction(ledger: Ledger, path: Path) -> None:
    operation = begun(ledger, Rule())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        operation.bind(connection)
        with ThreadPoolExecutor() as threads, pytest.raises(InsideBoundTransaction):
            threads.submit(operation.recovery_point, "x").result()


def settled(ledger: Ledger) -> Entry:
    entry = ledger.blocking.read("s", "k")
    assert entry is not None
    assert entry.status is Status.COMPLETED
    return entry


@pytest.mark.parametrize("size", [0, 10, 70_000, 100_000])
def test_a_bound_response_is_written_with_its_transaction(ledger: Ledger, path: Path, size: int) -> None:
    operation = begun(ledger, Rule())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        bound = operation.bind(connection)
        bound.settle((201, {"X-A": "1"}, b"x" * size))
        assert bound.settled
        assert operation.bound is bound
        connection.execute("COMMIT")

    entry = settled(ledger)
    assert entry.outcome.code == 201
    assert entry.outcome.kept
    assert (entry.outcome.chunks > 0) == (size > 65536)


def settle_bound(operation: Operation, path: Path, response: object, *, say_no: str = "") -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        if say_no == "before":
            operation.no_store()
        bound = operation.bind(connection)
        if say_no == "after":
            operation.no_store()
        bound.settle(response)
        connection.execute("COMMIT")


@pytest.mark.parametrize("say_no", ["before", "after"])
def test_a_bound_response_is_not_stored_if_the_handler_says_so(ledger: Ledger, path: Path, say_no: str) -> None:
    settle_bound(begun(ledger, Rule()), path, "secret", say_no=say_no)

    assert not settled(ledger).outcome.kept
    assert settled(ledger).outcome.headers is None


@pytest.mark.parametrize(
    ("rule", "response"),
    [
        (Rule(store=False), "secret"),
        (Rule(max_response_bytes=5), b"x" * 6),
        (Rule(max_response_bytes=0), b"x"),
        (Rule(), (200, {"x-long": "x" * 70_000}, b"x" * 70_000)),
    ],
    ids=["rule", "large", "nothing", "headers"],
)
def test_a_bound_response_that_cannot_be_stored_still_counts_as_done(
    ledger: Ledger, path: Path, rule: Rule, response: object
) -> None:
    settle_bound(begun(ledger, rule), path, response)

    assert settled(ledger).outcome.code == 200
    assert not settled(ledger).outcome.kept


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_bound_response_is_stored_for_as_long_as_the_handler_says(ledger: Ledger, path: Path, when: str) -> None:
    operation = begun(ledger, Rule(retain_seconds=50.0))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        if when == "before":
            operation.keep_for(500)
        bound = operation.bind(connection)
        if when == "after":
            operation.keep_for(500)
        bound.settle("kept")
        connection.execute("COMMIT")

    entry = settled(ledger)
    assert entry.expires_at is not None
    assert entry.completed_at is not None
    assert entry.expires_at - entry.completed_at == 500_000_000


@pytest.mark.parametrize(("after_retention", "refused"), [("run", False), ("refuse", True)])
def test_a_bound_response_decides_about_its_key_after_the_retention(
    ledger: Ledger, path: Path, after_retention: str, refused: bool
) -> None:
    settle_bound(begun(ledger, Rule(after_retention=after_retention)), path, "kept")

    assert (settled(ledger).refuse_until is not None) == refused


def test_binding_needs_a_database(path: Path) -> None:
    with (
        open_ledger("memory:") as ledger,
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(InvalidOption, match="SQLite or PostgreSQL"),
    ):
        begun(ledger, Rule()).bind(connection)


def test_the_operation_has_the_version_of_its_claim(ledger: Ledger) -> None:
    first = begun(ledger, Rule())
    assert (first.key, first.attempt) == ("k", 1)
    assert first.version > 0


def test_the_key_for_a_provider_is_the_same_in_every_attempt_of_a_request(ledger: Ledger) -> None:
    first = begun(ledger, Rule())

    assert first.key_for("psp") == first.key_for("psp")
    assert len({first.key_for("psp"), first.key_for("psp", "refund"), first.key_for("mail")}) == 3
    assert len({Operation(None).key_for("psp") for _ in range(2)}) == 2, "without a key, every call has its own"
    with pytest.raises(InvalidOption, match="provider must be a text"):
        first.key_for(7)  # type: ignore[arg-type]  # as a caller without types may
