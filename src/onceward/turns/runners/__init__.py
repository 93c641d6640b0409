"""What carries turns out. All runners recover in one way: the database says which turns are unfinished, and the claim
on a turn's beat says who runs it.
"""

from __future__ import annotations

from typing import Protocol


class Runner(Protocol):
    """Runs the turns of one brain. Its methods are called on one event loop."""

    async def start(self) -> None:
        """Begin, with what others left unfinished."""

    def wake(self, turn_id: str) -> None:
        """There may be something to do for this turn."""

    def interrupt(self, turn_id: str) -> None:
        """If a run of this turn goes on here, it is over: its epoch has passed."""

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Take on nothing more, let runs finish for so long, and leave the rest to others."""
