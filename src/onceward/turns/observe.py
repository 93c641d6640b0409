"""What an operator sees of the checks of turns and tools; whoever serves them says where it goes."""

from __future__ import annotations

from typing import Protocol

# The labels of `idempotency_key_type_total`.
BEAT_BASED = "beat_based"
TOOL_BASED = "tool_based"


class Observer(Protocol):
    """Told of every check, in the words of the metrics."""

    def checked(self, key: str, status: str, *, cached: bool, seconds: float, key_type: str) -> None:
        """A key was looked up. `cached` says that the answer is a kept one, `seconds` how long it took."""

    def put_in_doubt(self, key: str) -> None:
        """An effect ended without anyone knowing whether it happened, and may not be repeated."""
