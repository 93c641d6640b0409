"""Log events: a name and its fields, readable with plain `logging`.

The message is `claim_in_doubt scope=call version=7`; a formatter that shows fields by itself takes `name` alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Self


class Command(str):
    """A shell command as a field: shown between backticks, so that it can be copied as it is."""

    __slots__ = ()


class LogEvent(str):
    """The `msg` of a log record. It equals its name, and its text shows the fields; they go into `extra`, too."""

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
    """On one line, and quoted where a blank would end it."""
    if isinstance(value, Command):
        return f"`{value}`"
    text = str(value)
    return shlex.quote(text if text.isprintable() else repr(text)[1:-1])
