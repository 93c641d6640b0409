"""An exception that cannot say what it is: what it means is recorded all the same, and the caller gets that very one."""

from __future__ import annotations

from typing import Any

import pytest

from onceward import open_ledger
from onceward.core.claim import Status


class NamelessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def fail() -> None:
    raise NamelessError


@pytest.mark.parametrize(
    ("effect", "status"),
    [("idempotent", Status.FAILED), ("irreversible", Status.IN_DOUBT), ("compensatable", Status.FAILED)],
)
def test_it_is_recorded_and_raised(effect: str, status: Status) -> None:
    undone: list[int] = []
    options: Any = {"undo": lambda: undone.append(1)} if effect == "compensatable" else {}
    with open_ledger("memory:") as ledger:
        with pytest.raises(NamelessError):
            ledger.blocking.run("key", fail, effect=effect, **options)
        entry = ledger.blocking.read("call", "key")

    assert entry is not None
    assert (entry.status, entry.note) == (status, "NamelessError")
    assert len(undone) == len(options)


def test_an_undo_that_fails_so_leaves_a_doubt() -> None:
    with open_ledger("memory:") as ledger:
        with pytest.raises(NamelessError):
            ledger.blocking.run("key", lambda: 1 / 0, effect="compensatable", undo=fail)
        entry = ledger.blocking.read("call", "key")

    assert entry is not None
    assert (entry.status, entry.note) == (Status.IN_DOUBT, "undo failed: NamelessError")
