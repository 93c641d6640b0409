"""The two exceptions that end code in the simulated world."""

from __future__ import annotations


class Violation(AssertionError):
    """A guarantee was broken."""


class Crashed(BaseException):
    """Unwinds the code of a dead process. Nothing that the code does meanwhile reaches anything."""
