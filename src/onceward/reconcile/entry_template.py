"""A text with fields of the entry: `https://api.example.com/batches/{recovery_point[batch_id]}`."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Any

from onceward.core.claim import Entry
from onceward.errors import InvalidOption
from onceward.reconcile.evidence import NoEvidence

_FIELD = re.compile(r"(key|version|attempt|recovery_point)((?:\[[^\[\]]+\])*)")
_INDEX = re.compile(r"\[([^\[\]]+)\]")


class EntryTemplate:
    """A template whose fields are `key`, `version`, `attempt` and `recovery_point`, with any `[name]` of the latter.

    Args:
        option: The name of the option, for messages.
        text: The template.
        quote: Escapes a value, so that it cannot change the structure of the result.
    """

    def __init__(self, option: str, text: str, quote: Callable[[str], str]) -> None:
        self._quote = quote
        self._parts: list[tuple[str, str | None, tuple[str, ...]]] = []
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise InvalidOption(f"{option} is not a valid template: {error}") from error
        for literal, name, spec, conversion in parts:
            if name is None:
                self._parts.append((literal, None, ()))
                continue
            field = _FIELD.fullmatch(name)
            if field is None or spec or conversion or (field[2] and field[1] != "recovery_point"):
                raise InvalidOption(
                    f"{option} has a field {{{name}}}; the fields are {{key}}, {{version}}, {{attempt}},"
                    " {recovery_point} and {recovery_point[name]}"
                )
            self._parts.append((literal, field[1], tuple(_INDEX.findall(field[2]))))

    def fill(self, entry: Entry) -> str:
        """Return the text for an entry, or raise `NoEvidence` if a value is missing."""
        return "".join(
            literal if name is None else literal + self._quote(_value(entry, name, path))
            for literal, name, path in self._parts
        )


def _value(entry: Entry, name: str, path: tuple[str, ...]) -> str:
    value: Any = getattr(entry, name)
    for step in path:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (LookupError, TypeError, ValueError):
            raise NoEvidence(f"the recovery point has no {step!r}") from None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise NoEvidence(f"the entry has no {name} that can be part of an address")
    # Empty values and dots would name another resource.
    if value in {"", ".", ".."}:
        raise NoEvidence(f"{value!r} cannot be part of an address")
    return str(value)
