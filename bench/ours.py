"""Onceward as a contestant, through its two APIs: awaited by tasks of one event loop, and blocking in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bench.load import SETTLED, Effects, Mode, Scenario, in_parallel, namer, with_tasks, with_threads
from bench.names import AWAITED, BLOCKING
from onceward.core.claim import Write, WriteResult
from onceward.ledger import Ledger
from onceward.store import Store

_FINGERPRINT = {"amount": 10, "currency": "EUR"}


class OneByOne:
    """Store that commits each write of a batch separately, to measure the ledger without shared batches."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        return [result for write in writes for result in self._inner.commit([write])]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Awaited:
    def __init__(self, ledger: Ledger, name: str = AWAITED) -> None:
        self.name = name
        self._ledger = ledger
        self._effects = Effects()

    async def _call(self, key: str) -> object:
        return await self._ledger.run(key, self._effects, fingerprint=_FINGERPRINT, effect="irreversible")

    def warm(self) -> None:
        async def settle() -> None:
            await asyncio.gather(*[self._call(key) for key in SETTLED])

        self._effects.forget()
        asyncio.run(settle())
        self._effects.check(Mode.FRESH, len(SETTLED))

    def rate(self, scenario: Scenario, seconds: float) -> float:
        self._effects.forget()
        load = asyncio.run(with_tasks(self._call, scenario.callers, seconds, namer(scenario.mode)))
        self._effects.check(scenario.mode, load.calls)
        return load.rate

    def close(self) -> None:
        self._ledger.close()


class Blocking:
    name = BLOCKING

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._effects = Effects()

    def call(self, key: str) -> object:
        return self._ledger.blocking.run(key, self._effects, fingerprint=_FINGERPRINT, effect="irreversible")

    def warm(self) -> None:
        self._effects.forget()
        in_parallel(self.call, SETTLED)
        self._effects.check(Mode.FRESH, len(SETTLED))

    def rate(self, scenario: Scenario, seconds: float) -> float:
        self._effects.forget()
        load = with_threads(self.call, scenario.callers, seconds, namer(scenario.mode))
        self._effects.check(scenario.mode, load.calls)
        return load.rate

    def close(self) -> None:
        self._ledger.close()
