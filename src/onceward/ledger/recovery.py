"""Recovery points of a running effect: JSON of at most 16 KiB, recorded from async and from blocking code.

claim = current_claim()
batch = claim.recovered or submit()
await claim.recovery_point(batch)       # without await in a plain function
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any

from onceward.core.claim import Claim
from onceward.errors import InvalidOption
from onceward.store.dispatch.future import running_loop, wait

if TYPE_CHECKING:
    from onceward.ledger.ledger import Ledger

# Enough for the ids and cursors that a provider returns. The value is part of every read of the entry.
RECOVERY_BYTES_MAX = 16 * 1024


def encode_recovery(value: object) -> str:
    """Return the text that is stored for a recovery point.

    Args:
        value: A value that JSON can represent without loss: None, a bool, a number, a text, a list, or a dict with
            texts as keys.

    Returns:
        The value as JSON.

    Raises:
        InvalidOption: If the value is not JSON, or its JSON is longer than 16 KiB.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
        is_json = json.loads(text) == value
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidOption(f"a recovery point must be JSON: {error}") from error
    if not is_json:
        raise InvalidOption(
            "a recovery point must be JSON that reads back as the same value; use lists instead of tuples, and texts"
            " as the keys of dicts"
        )
    if size > RECOVERY_BYTES_MAX:
        raise InvalidOption(
            f"a recovery point may have at most {RECOVERY_BYTES_MAX} bytes of JSON, got {size}; record an id or a"
            " cursor instead of the data"
        )
    return text


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
