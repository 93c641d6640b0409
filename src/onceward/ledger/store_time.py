"""The time of the store's clock, for a reconcile hook: the age of a claim must not depend on this machine's clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from onceward.core.claim import SECOND, Entry

_store_time: ContextVar[int] = ContextVar("onceward_store_time", default=0)


@contextmanager
def at_store_time(now: int) -> Iterator[None]:
    """Let a hook that is called in this block see when the store found the doubt."""
    token = _store_time.set(now)
    try:
        yield
    finally:
        _store_time.reset(token)


def claim_age_seconds(entry: Entry) -> float | None:
    """Return how long ago the claim of an entry began, by the store's clock.

    None if that is not known: outside a reconcile hook, or if a process of the previous version claimed the key again
    and recorded only its first attempt.
    """
    now = _store_time.get()
    began = entry.claimed_at
    if not now or not began or (entry.attempt > 1 and began <= entry.created_at):
        return None
    return (now - began) / SECOND
