"""The two ways out of the simulated world."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise was broken."""


class Crashed(BaseException):
    """Unwinds the code of a process that is dead. Nothing it does on the way out reaches anyone."""
