"""Whether a store can be used, asked when an application starts, not when its first request has come."""

from __future__ import annotations

from onceward.store import Store


def check(store: Store) -> None:
    """Connect, and raise what a first write would meet: `StoreMisconfigured` for what an operator has to correct.

    A store may have a `check` of its own, which changes nothing; any other is read from.
    """
    own = getattr(store, "check", None) if hasattr(type(store), "check") else None
    if own is None:
        store.read([])
    else:
        own()
