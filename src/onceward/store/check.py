"""Startup check: find out whether a store can be used before the first request arrives."""

from __future__ import annotations

from onceward.store import Store


def check(store: Store) -> None:
    """Connect, and raise the error that a first write would raise, such as `StoreMisconfigured`.

    If the store has a `check` method, which must not change anything, it is called. Otherwise the store is read from.
    """
    own = getattr(store, "check", None) if hasattr(type(store), "check") else None
    if own is None:
        store.read([])
    else:
        own()
