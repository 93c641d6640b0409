"""`open_ledger`: the one way in."""

from __future__ import annotations

from onceward.doubts import OnDoubt
from onceward.ledger import LEASE_SECONDS, RETAIN_SECONDS, WAIT_SECONDS, Ledger
from onceward.store.open import open_store


def open_ledger(
    url: str,
    *,
    lease_seconds: float = LEASE_SECONDS,
    retain_seconds: float = RETAIN_SECONDS,
    wait_seconds: float = WAIT_SECONDS,
    namespace: str = "onceward",
    on_doubt: OnDoubt | None = None,
) -> Ledger:
    """A ledger on `memory:`, `sqlite:///path`, `postgresql://…` or `redis://…`. It connects on first use.

    lease_seconds   how long a silent holder keeps a key; renewed while its effect runs
    retain_seconds  how long an outcome is replayed, counted from the moment it was settled
    wait_seconds    how long a racing caller waits for the winner before `errors.Busy`
    namespace       separates ledgers that share one store
    on_doubt        a function, sync or async, that gets the entry of each claim that this process puts in doubt; it is
                    called on a thread of its own
    """
    return Ledger(
        open_store(url),
        lease_seconds=lease_seconds,
        retain_seconds=retain_seconds,
        wait_seconds=wait_seconds,
        namespace=namespace,
        on_doubt=on_doubt,
    )
