"""The results of checks of keys, and the protocol of observers that report them to operators."""

from __future__ import annotations

import enum
from typing import Protocol

# The labels of `idempotency_key_type_total`.
BEAT_BASED = "beat_based"
TOOL_BASED = "tool_based"


class IdempotencyStatus(enum.StrEnum):
    """The result of a check.

    `IN_DOUBT`: the outcome of the entry is unknown, and its effect must not be repeated. `EXPIRED`: its effect has
    happened, its outcome is no longer kept, and its key is refused.
    """

    PROCESSING_STARTED = "processing_started"
    DUPLICATE_PROCESSING = "duplicate_processing"
    DUPLICATE_COMPLETED = "duplicate_completed"
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    IN_DOUBT = "in_doubt"
    EXPIRED = "expired"


class Observer(Protocol):
    """Notified of every check, with the labels of the metrics."""

    def checked(self, key: str, status: str, *, cached: bool, seconds: float, key_type: str) -> None:
        """Report a check of a key.

        Args:
            key: The idempotency key.
            status: The result of the check, as the metrics label it.
            cached: Whether the caller gets a stored outcome.
            seconds: The duration of the check.
            key_type: The origin of the key, as the metrics label it.
        """

    def put_in_doubt(self, key: str) -> None:
        """Report an effect in doubt: it may have happened, and must not be repeated.

        Args:
            key: The idempotency key.
        """
