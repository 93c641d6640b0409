"""A coroutine that is closed unfinished, as by a loop that is closed, ends without a warning."""

from __future__ import annotations

from typing import cast

import pytest

from onceward import Ledger
from onceward.core.outcome import INLINE_BYTES_MAX
from onceward.store.dispatch.future import StoreFuture, driving
from onceward.store.memory import MemoryStore


@pytest.mark.parametrize("length", [1, INLINE_BYTES_MAX + 1])
def test_a_call_can_be_closed_at_every_step(length: int) -> None:
    steps = 0
    while True:
        steps += 1
        with Ledger(MemoryStore()) as ledger, driving():
            call = ledger.run("key", lambda: "x" * length, effect="irreversible")
            try:
                for _ in range(steps):
                    pending = cast("StoreFuture[object]", call.send(None))
                    pending.block()
            except StopIteration:
                break
            call.close()

    assert steps == (3 if length == 1 else 4)
