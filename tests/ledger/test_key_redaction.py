"""Exceptions and logs show the beginning of a key, which is enough for an operator, and never the whole key."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from onceward import errors
from onceward.core.claim import Claim, Move, Write, WriteResult
from onceward.core.key import short_key
from onceward.http.client.intents import Intents
from onceward.ledger import Ledger
from onceward.ledger.run import current_claim
from onceward.store.memory import MemoryStore
from onceward.store.sqlite import SqliteStore

KEY = "secret-key-0123456789-abcdefghijklmnopqrstuvwxyz"
CUT = "'secret-key-012345678...'"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(SqliteStore(tmp_path / "keys.db"), wait_seconds=0, patience_seconds=0.05) as ledger:
        yield ledger


@pytest.mark.parametrize(
    ("key", "seen"),
    [
        ("k", "k"),
        ("k" * 20, "k" * 20),
        ("k" * 21, "k" * 20 + "..."),
        ("\N{GRINNING FACE}" * 30, "\N{GRINNING FACE}" * 20 + "..."),
    ],
)
def test_a_key_is_shown_as_its_first_twenty_characters(key: str, seen: str) -> None:
    assert short_key(key) == seen


async def claimed(ledger: Ledger, *, repeatable: bool = True) -> Claim:
    claim = await ledger.begin("run", KEY, repeatable=repeatable)
    assert isinstance(claim, Claim)
    return claim


async def reused(ledger: Ledger) -> None:
    await ledger.run(KEY, lambda: 1, effect="idempotent", fingerprint=1)
    await ledger.run(KEY, lambda: 1, effect="idempotent", fingerprint=2)


async def busy(ledger: Ledger) -> None:
    async def again() -> None:
        await asyncio.create_task(ledger.run(KEY, lambda: 1, effect="idempotent"))

    await ledger.run(KEY, again, effect="idempotent")


async def doubted(ledger: Ledger) -> None:
    def crash() -> None:
        raise RuntimeError("nobody knows")

    with suppress(RuntimeError):
        await ledger.run(KEY, crash, effect="irreversible")
    await ledger.run(KEY, crash, effect="irreversible")


async def lost(ledger: Ledger) -> None:
    async def lose() -> None:
        (entry,) = (await ledger.scan()).entries
        await ledger.release(Claim(entry, None))

    await ledger.run(KEY, lose, effect="idempotent")


async def chunks_lost(ledger: Ledger) -> None:
    claim = await claimed(ledger)
    await ledger.release(claim)
    await ledger.append(claim, 1, [b"x"])


async def bound_to_nothing(ledger: Ledger) -> None:
    async def lose() -> None:
        (entry,) = (await ledger.scan()).entries
        await ledger.release(Claim(entry, None))
        assert isinstance(ledger._dispatcher.store, SqliteStore)
        with closing(sqlite3.connect(ledger._dispatcher.store.path)) as connection:
            current_claim().bind(connection)

    await ledger.run(KEY, lose, effect="idempotent")


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (reused, errors.KeyReused),
        (busy, errors.Busy),
        (doubted, errors.InDoubt),
        (lost, errors.ClaimLost),
        (chunks_lost, errors.ClaimLost),
        (bound_to_nothing, errors.ClaimLost),
    ],
)
def test_an_exception_shows_only_the_start_of_the_key(
    ledger: Ledger, what: Callable[[Ledger], Any], kind: type[errors.OncewardError]
) -> None:
    with pytest.raises(kind) as raised:
        asyncio.run(what(ledger))

    assert CUT in str(raised.value)
    assert KEY[:21] not in str(raised.value)


def test_a_locked_entry_is_reported_with_its_shortened_key() -> None:
    store = MemoryStore()
    whole = store.commit

    def commit(writes: Sequence[Write]) -> list[WriteResult]:
        if isinstance(writes[0], Move):
            return [WriteResult(applied=False, entry=None, now=0, locked=True) for _ in writes]
        return whole(writes)

    async def fail(ledger: Ledger) -> None:
        await ledger.fail(await claimed(ledger))

    store.commit = commit  # type: ignore[method-assign]  # a lock is the other transaction's, not this store's
    with Ledger(store, patience_seconds=0.01) as ledger, pytest.raises(errors.StoreUnavailable) as raised:
        asyncio.run(fail(ledger))

    assert str(raised.value) == f"the entry of {CUT} is still locked by another transaction"


def test_the_log_shortens_keys_too(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "onceward"):
        asyncio.run(ledger.run(KEY, object, effect="idempotent"))

    (record,) = (record for record in caplog.records if record.msg == "result_not_stored")
    assert repr(record.key) == CUT  # type: ignore[attr-defined]
    assert KEY[:21] not in caplog.text


def test_an_intent_that_is_too_old_is_reported_with_its_shortened_key(tmp_path: Path) -> None:
    book = Intents(tmp_path / "intents.db", retain_seconds=0)
    key = book.key_for("order-42")

    with pytest.raises(errors.InDoubt) as raised:
        book.key_for("order-42")

    assert short_key(key) in str(raised.value)
    assert key not in str(raised.value)
