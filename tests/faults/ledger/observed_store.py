"""A store that calls a hook before and after every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from onceward.core.claim import Entry, Ref, Status, Write, WriteResult
from onceward.ledger.transaction import Bindable
from onceward.store import Page, Reading, Store
from onceward.store.bind import BoundConnection

# Called with the name of the point that is reached, such as "before begin"; raises to make trouble there.
Hook: TypeAlias = Callable[[str], None]


class ObservedStore:
    """Any store with trouble around every call. Closing it leaves the inner store open for the next one."""

    def __init__(self, inner: Store, hook: Hook) -> None:
        self._inner = inner
        self._hook = hook

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        name = " and ".join(_name(write) for write in writes)
        self._hook(f"before {name}")
        results = self._inner.commit(writes)
        self._hook(f"after {name}")
        return results

    def read(self, refs: Sequence[Ref]) -> Reading:
        self._hook("before read")
        reading = self._inner.read(refs)
        self._hook("after read")
        return reading

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        self._hook("before chunks")
        chunks = self._inner.chunks(ref, version, after, limit)
        self._hook("after chunks")
        return chunks

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        return self._inner.scan(scope, status, after, limit)

    def lapsed(self, limit: int) -> Sequence[Entry]:
        return self._inner.lapsed(limit)

    def purge(self, limit: int) -> int:
        return self._inner.purge(limit)

    def bind(self, connection: object) -> BoundConnection:
        """Bind without observation: a bound transaction uses the caller's own connection."""
        if not isinstance(self._inner, Bindable):
            raise TypeError(f"{self._inner!r} cannot be bound to a transaction")
        return self._inner.bind(connection)

    def abandon(self) -> None:
        self._inner.abandon()

    def close(self) -> None:
        """Do nothing: the inner store stays open."""


def _name(write: Write) -> str:
    verb = getattr(write, "verb", None)
    return str(verb) if verb is not None else type(write).__name__.lower()
