"""Exceptions whose text cannot be read: they are recorded, and the caller gets the original."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceward import IdempotencyMiddleware, open_ledger
from onceward.core.claim import Status
from onceward.ledger.terms import EffectClass


class NamelessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def fail() -> None:
    raise NamelessError


@pytest.mark.parametrize(
    ("effect", "status"),
    [("idempotent", Status.FAILED), ("irreversible", Status.IN_DOUBT), ("compensatable", Status.FAILED)],
)
def test_an_unprintable_exception_is_recorded_and_raised(effect: EffectClass, status: Status) -> None:
    undone: list[int] = []
    options: Any = {"undo": lambda: undone.append(1)} if effect == "compensatable" else {}
    with open_ledger("memory:") as ledger:
        with pytest.raises(NamelessError):
            ledger.blocking.run("key", fail, effect=effect, **options)
        entry = ledger.blocking.read("call", "key")

    assert entry is not None
    assert (entry.status, entry.note) == (status, "NamelessError")
    assert len(undone) == len(options)


def test_an_unprintable_exception_of_an_undo_leaves_a_doubt() -> None:
    with open_ledger("memory:") as ledger:
        with pytest.raises(NamelessError):
            ledger.blocking.run("key", lambda: 1 / 0, effect="compensatable", undo=fail)
        entry = ledger.blocking.read("call", "key")

    assert entry is not None
    assert (entry.status, entry.note) == (Status.IN_DOUBT, "undo failed: NamelessError")


def test_an_unprintable_exception_of_a_handler_frees_its_key() -> None:
    async def handler(_scope: Any, _receive: Any, _send: Any) -> None:
        raise NamelessError

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(_message: Any) -> None:
        raise AssertionError("nothing is sent")

    with open_ledger("memory:") as ledger:
        headers = [(b"idempotency-key", b"key"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
        with pytest.raises(NamelessError):
            asyncio.run(IdempotencyMiddleware(handler, ledger)(scope, receive, send))
        (entry,) = ledger.blocking.scan().entries

    assert (entry.status, entry.note) == (Status.FAILED, "NamelessError")
