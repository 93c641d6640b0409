"""The filter bar: `key:… scope:… status:… endpoint:… user:…`, and words that occur anywhere.

A value with spaces is put in double quotes. `key:` and `scope:` may end with `*`, for everything that begins like this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from onceward.core.claim import WIRE_STATUSES, Entry, wire_status
from onceward.core.json_text import refused

FIELDS = ("key", "scope", "status", "endpoint", "user")
TEXT_CHARACTERS_MAX = 1000
_REST = "*"


@dataclass(frozen=True, slots=True)
class ClaimQuery:
    """A parsed filter. Empty fields match everything."""

    key: str = ""
    scope: str = ""
    status: str = ""
    endpoint: str = ""
    user: str = ""
    words: tuple[str, ...] = ()

    @property
    def exact_key(self) -> str:
        """The whole key, if the filter names one."""
        return "" if self.key.endswith(_REST) else self.key

    @property
    def exact_scope(self) -> str:
        """The whole scope, if the filter names one."""
        return "" if self.scope.endswith(_REST) else self.scope

    def matches(self, entry: Entry, namespace: str, now: int) -> bool:
        """Return whether an entry matches.

        Args:
            entry: The entry.
            namespace: The namespace of its ledger, which the filter omits.
            now: The time of the store's clock.

        Returns:
            Whether every field matches.
        """
        scope = entry.scope.removeprefix(f"{namespace}:")
        status = wire_status(entry, now)
        return (
            _begins(entry.key, self.key)
            and _begins(scope, self.scope)
            and self.status in ("", status)
            and self.endpoint.lower() in (entry.endpoint or entry.key).lower()
            and self.user in ("", entry.user_id)
            and all(
                any(word in text.lower() for text in (entry.key, scope, entry.endpoint, entry.user_id, entry.note))
                for word in self.words
            )
        )


def _begins(text: str, wanted: str) -> bool:
    return text.startswith(wanted.removesuffix(_REST)) if wanted.endswith(_REST) else wanted in ("", text)


def parse_query(text: str) -> ClaimQuery:
    """Parse the text of a filter bar, or raise `InvalidInput` with what is wrong in it."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise refused("q", f"must have at most {TEXT_CHARACTERS_MAX} characters")
    found = ClaimQuery()
    for name, value in _terms(text):
        if name not in FIELDS:
            # A key such as `order:17` is also typed as a word.
            found = replace(found, words=(*found.words, f"{name}:{value}".lower() if name else value.lower()))
        elif not value:
            raise refused("q", f"needs a value after {name}:")
        elif name == "status" and value not in WIRE_STATUSES:
            raise refused("q", f"has the status {value[:40]!r}; it must be one of {', '.join(WIRE_STATUSES)}")
        else:
            field: dict[str, Any] = {name: value}
            found = replace(found, **field)
    return found


def _terms(text: str) -> list[tuple[str, str]]:
    """Split a text at spaces outside of double quotes, and each part at its first colon."""
    parts: list[str] = []
    part, quoted, begun = "", False, False
    for one in text:
        if one == '"':
            quoted, begun = not quoted, True
        elif one.isspace() and not quoted:
            parts += [part] if begun else []
            part, begun = "", False
        else:
            part, begun = part + one, True
    parts += [part] if begun else []
    return [(name, value) if colon else ("", name) for name, colon, value in (one.partition(":") for one in parts)]


def term(name: str, value: str) -> str:
    """Return a field of the filter bar, with quotes where they are needed."""
    quotes = '"' if any(one.isspace() for one in value) else ""
    return f"{name}:{quotes}{value}{quotes}"
