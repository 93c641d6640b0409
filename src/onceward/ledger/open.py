"""`open_ledger`: create a ledger from a store URL."""

from __future__ import annotations

from collections.abc import Sequence

from onceward.ledger.doubts import LogKeys, OnDoubt
from onceward.ledger.ledger import LEASE_SECONDS, RETAIN_SECONDS, WAIT_SECONDS, Ledger
from onceward.store.open import open_store


def open_ledger(
    url: str,
    *,
    lease_seconds: float = LEASE_SECONDS,
    retain_seconds: float = RETAIN_SECONDS,
    wait_seconds: float = WAIT_SECONDS,
    namespace: str = "onceward",
    on_doubt: OnDoubt | None = None,
    log_keys: LogKeys = "short",
    secret: str | bytes | None = None,
    secrets: Sequence[str | bytes] | None = None,
) -> Ledger:
    """Open a ledger on the store that a URL names. It connects on first use.

    Args:
        url: `memory:`, `sqlite:///path`, `postgresql://…`, `redis://…` or `redis+cluster://…`. `valkey` means the same as
            `redis`.
        lease_seconds: The time for which a silent holder keeps its claim. Claims are renewed while their effects run.
        retain_seconds: The time for which an outcome is replayed, counted from its settle.
        wait_seconds: The time for which a concurrent caller waits for the holder before it gets `errors.Busy`.
        namespace: Separates ledgers that share one store: 1 to 64 characters of `A-Z a-z 0-9 . _ -`.
        on_doubt: A function, sync or async, that is called with the entry of each claim that this process puts in
            doubt. It runs on a separate thread.
        log_keys: How the log event `claim_in_doubt` shows keys that clients chose: `"short"` or `"whole"`.
        secret: A text or bytes of at least 16 bytes, from which `key_for` derives keys that nobody else can guess.
        secrets: Instead of `secret`, several of them, the newest first. An entry keeps the one with which it was begun.

    Returns:
        The ledger. Close it, or use it in a `with` or `async with` block.

    Raises:
        InvalidStoreUrl: If the URL is not valid, or its driver is not installed.
        InvalidOption: If a number of seconds is out of range, or a secret or `log_keys` is not valid.
        InvalidKey: If the namespace is not valid.
    """
    return Ledger(
        open_store(url),
        lease_seconds=lease_seconds,
        retain_seconds=retain_seconds,
        wait_seconds=wait_seconds,
        namespace=namespace,
        on_doubt=on_doubt,
        log_keys=log_keys,
        secret=secret,
        secrets=secrets,
    )
