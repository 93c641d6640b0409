"""Bodies and chunks given to the ledger as any bytes-like object are stored as bytes."""

from __future__ import annotations

from typing import Any

import pytest

from onceward import Ledger, errors, open_ledger
from onceward.core.claim import Claim
from onceward.core.outcome import Outcome


class Bytes(bytes):
    """A class of an application's own."""


HOLDERS: dict[str, Any] = {"a bytearray": bytearray(b"hi"), "a view": memoryview(b"hi"), "a subclass": Bytes(b"hi")}


def claim(ledger: Ledger) -> Claim:
    claim = ledger.blocking.begin("calls", "k", repeatable=True)
    assert isinstance(claim, Claim)
    return claim


@pytest.mark.parametrize("data", HOLDERS.values(), ids=HOLDERS)
def test_every_bytes_like_object_is_stored_as_its_bytes(store_url: str, data: Any) -> None:
    with open_ledger(store_url) as ledger:
        held = claim(ledger)
        ledger.blocking.append(held, 1, [data, data])
        ledger.blocking.settle(held, Outcome(body=data, chunks=2))
        entry = ledger.blocking.read("calls", "k")

        assert entry is not None
        assert type(entry.outcome.body) is bytes
        assert entry.outcome.body == b"hi"
        assert ledger.blocking.chunks(entry) == [b"hi", b"hi"]


def test_headers_that_are_too_large_for_a_batch_are_refused_and_nothing_is_written(store_url: str) -> None:
    with open_ledger(store_url) as ledger:
        held = claim(ledger)
        with pytest.raises(errors.InvalidOption, match="the headers of an outcome may have at most 131072 bytes"):
            ledger.blocking.settle(held, Outcome(200, "ä" * 70_000))

        assert ledger.blocking.read("calls", "k") == held.entry


@pytest.mark.parametrize("data", ["text", 5], ids=["text", "a number"])
def test_other_objects_are_refused_and_nothing_is_written(store_url: str, data: Any) -> None:
    with open_ledger(store_url) as ledger:
        held = claim(ledger)
        with pytest.raises(errors.InvalidOption, match="must be bytes"):
            ledger.blocking.append(held, 1, [data])
        with pytest.raises(errors.InvalidOption, match="bytes"):
            ledger.blocking.settle(held, Outcome(body=data))

        entry = ledger.blocking.read("calls", "k")
        assert entry == held.entry
