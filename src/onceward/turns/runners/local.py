"""`LocalRunner`, which runs turns in this process."""

from onceward.hub.turns.runners.local import LocalRunner

__all__ = ["LocalRunner"]
