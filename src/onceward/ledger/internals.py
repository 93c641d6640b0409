"""Internals of a ledger for the rest of the package. Not for applications.

These were public methods in 0.1. `earlier` still finds them under those names, with a warning.
"""

# ruff: noqa: SLF001  # The only module that uses private attributes of a ledger; all others go through it.
from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from onceward.core.claim import Claim, Entry, Ref
from onceward.ledger.terms import Effect
from onceward.store.dispatch.batcher import Batcher
from onceward.store.dispatch.renewal import Renewal

if TYPE_CHECKING:
    from onceward.ledger.ledger import Ledger


def dispatcher_of(ledger: Ledger) -> Batcher:
    """Return the dispatcher of a ledger."""
    return ledger._dispatcher


def read_ref(ledger: Ledger, ref: Ref) -> Coroutine[Any, Any, Entry | None]:
    """Read an entry by its ref, like `Ledger.read`."""
    return ledger._read_ref(ref)


def retain_microseconds(ledger: Ledger, seconds: float | None) -> int:
    """Return a retention in microseconds; for None, the ledger's own."""
    return ledger._retain_of(seconds)


def key_for(ledger: Ledger, entry: Entry, effect: str, attempt: int, provider: str, step: str = "") -> str:
    """Return the key of an attempt for the idempotency of a provider.

    The earlier attempts of a compensatable effect were undone, so all of them count as attempts that did nothing.
    """
    count = attempt - 1 if effect == Effect.COMPENSATABLE else entry.not_done_count
    return ledger._secrets.key_for(ledger.namespace, entry, count, provider, step)


def start_renewal(
    ledger: Ledger, claim: Claim, lease_seconds: float | None, retain_seconds: float | None, seconds: float
) -> Renewal:
    """Renew a claim in the background until `stop_renewal`, for at most `seconds`."""
    lease, retain = ledger._lease_of(lease_seconds), ledger._retain_of(retain_seconds)
    return ledger._dispatcher.start_renewal(claim.entry, lease, retain, seconds)


def stop_renewal(ledger: Ledger, renewal: Renewal) -> None:
    ledger._dispatcher.stop_renewal(renewal)


# Name in 0.1: its replacement.
_EARLIER: dict[str, Callable[[Ledger], object]] = {
    "line": dispatcher_of,
    "look": lambda ledger: ledger._read_ref,
    "keep": lambda ledger: lambda *given: start_renewal(ledger, *given),
    "drop": lambda ledger: ledger._dispatcher.stop_renewal,
    "lease": lambda ledger: ledger._lease_of,
    "retain": lambda ledger: ledger._retain_of,
}


def earlier(ledger: Ledger, name: str) -> object:
    """Return an attribute by its name in 0.1, with a warning."""
    found = _EARLIER.get(name)
    if found is None:
        raise AttributeError(f"{type(ledger).__name__!r} object has no attribute {name!r}")
    warnings.warn(
        f"Ledger.{name} is internal and will be removed; see docs/reference.md", DeprecationWarning, stacklevel=3
    )
    return found(ledger)
