"""Recovery points of a running effect: numbered, and recorded from async and from blocking code.

claim = current_claim()
batch = claim.recovered or submit()
await claim.recovery_point(batch)       # without await in a plain function
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any

from onceward.core.claim import Claim
from onceward.core.recovery import encode_recovery
from onceward.store.dispatch.future import running_loop, wait

if TYPE_CHECKING:
    from onceward.ledger.ledger import Ledger


class RecoveryPoints:
    """The recovery points of one claim. Numbers continue after that of the earlier holder.

    Args:
        ledger: The ledger of the claim.
        claim: The claim of the running effect.
        encrypt: A function that encrypts the text to be stored, or None.
    """

    __slots__ = ("_claim", "_encrypt", "_ledger", "_seq")

    def __init__(self, ledger: Ledger, claim: Claim, encrypt: Callable[[str], str] | None = None) -> None:
        self._ledger = ledger
        self._claim = claim
        self._encrypt = encrypt
        self._seq = claim.entry.recovery_seq

    def record(self, value: object, *, blocks: bool) -> Awaitable[None]:
        """Record a value: at once with `blocks` or without an event loop, otherwise when the result is awaited.

        Raises:
            InvalidOption: If the value is not JSON, or is too large.
            ClaimLost: If the claim was taken over, or its doubt was resolved.
            InsideBoundTransaction: If the task has an open bound transaction.
            StoreUnavailable: If the store did not respond; the value may have been stored.
        """
        text = encode_recovery(value)
        self._seq += 1
        write = self._ledger.mark(self._claim, self._seq, text if self._encrypt is None else self._encrypt(text))
        if not blocks and running_loop() is not None:
            return write
        wait(write)
        return _Recorded()


class _Recorded:
    """The result of a recovery point that is already stored. It may be awaited."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield
