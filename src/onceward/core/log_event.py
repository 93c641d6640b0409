"""Log events: a name and its fields, readable with plain `logging`.

A message reads `claim_in_doubt scope=call version=7`. A formatter that prints the fields itself uses only `name`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Self


def log_event(write: Callable[..., object], name: str, error: BaseException | None = None, /, **fields: object) -> None:
    """Log an event by its name, with its fields both in the message and as attributes of the log record.

    Args:
        write: The logger's method for the level, such as `logger.warning`.
        name: A past-tense fact in snake case, such as `purge_failed`. Alerts match it, so it never changes.
        error: The exception whose traceback is logged with the event.
        fields: The details of the event. A field `hint` says what to do.
    """
    write(LogEvent(name, fields), extra=fields, exc_info=error, stacklevel=2)


class Command(str):
    """A shell command as a field, printed between backticks for copying."""

    __slots__ = ()


class LogEvent(str):
    """The `msg` of a log record. It equals the event's name, and `str()` adds the fields."""

    __slots__ = ("_fields",)
    _fields: Mapping[str, object]

    def __new__(cls, name: str, fields: Mapping[str, object]) -> Self:
        event = super().__new__(cls, name)
        event._fields = fields
        return event

    @property
    def name(self) -> str:
        return str.__str__(self)

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={_shown(value)}" for key, value in self._fields.items())])


def _shown(value: object) -> str:
    """Format a value on one line, in quotes if it contains a space."""
    if isinstance(value, Command):
        return f"`{value}`"
    text = str(value)
    return shlex.quote(text if text.isprintable() else repr(text)[1:-1])
