"""What a check of a key finds, and what an operator sees of it; whoever serves turns says where it goes."""

from __future__ import annotations

import enum
from typing import Protocol

# The labels of `idempotency_key_type_total`.
BEAT_BASED = "beat_based"
TOOL_BASED = "tool_based"


class IdempotencyStatus(enum.StrEnum):
    """What a check found. The last is ours: an entry that nobody may repeat, and whose outcome nobody knows."""

    PROCESSING_STARTED = "processing_started"
    DUPLICATE_PROCESSING = "duplicate_processing"
    DUPLICATE_COMPLETED = "duplicate_completed"
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    IN_DOUBT = "in_doubt"


class Observer(Protocol):
    """Told of every check, in the words of the metrics."""

    def checked(self, key: str, status: str, *, cached: bool, seconds: float, key_type: str) -> None:
        """A key was looked up. `cached` says that the answer is a kept one, `seconds` how long it took."""

    def put_in_doubt(self, key: str) -> None:
        """An effect ended without anyone knowing whether it happened, and may not be repeated."""
