"""Runners: start attempts at turns, in this process, on DBOS or on Hatchet.

All runners recover in the same way: the database says which turns are unfinished, and the claim on a turn's beat says
which process runs it. Not here: one attempt (`execution/`).
Start with `local.py`.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Runner", "dbos", "hatchet", "local"]


class Runner(Protocol):
    """Runs the turns of one engine. All methods must be called on the same event loop."""

    async def start(self) -> None:
        """Start to run turns, including those that other processes left unfinished."""

    def wake(self, turn_id: str) -> None:
        """Check soon whether this turn can run.

        Args:
            turn_id: The turn.
        """

    def interrupt(self, turn_id: str) -> None:
        """Cancel a run of this turn in this process, because its epoch has passed.

        Args:
            turn_id: The turn.
        """

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Start no more runs, let those in progress finish, and cancel the rest. Other processes take them over.

        Args:
            grace_seconds: How long to wait for runs in progress.
        """
