"""Keys, scopes and key templates: what they may be, and how a template is filled."""

from __future__ import annotations

import datetime
import decimal
import enum
import re
import string
import uuid
from collections.abc import Mapping

from onceward.errors import InvalidKey

# Wide enough for every layer's key with a tenant in front; narrow enough for a B-tree page on every store.
SCOPE_BYTES_MAX = 255
KEY_BYTES_MAX = 1024
# The seed's column widths.
LABEL_BYTES_MAX = 255
NOTE_BYTES_MAX = 1024

_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FORMATTER = string.Formatter()


def check_text(what: str, text: object, bytes_max: int) -> str:
    """A non-empty text of at most `bytes_max` UTF-8 bytes without NUL, or `InvalidKey`."""
    if not isinstance(text, str):
        raise InvalidKey(f"{what} must be text, not {type(text).__name__}")
    if not text:
        raise InvalidKey(f"{what} must not be empty")
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise InvalidKey(f"{what} has a lone surrogate, which is not text") from error
    if size > bytes_max:
        raise InvalidKey(f"{what} is {size} bytes long; the limit is {bytes_max}")
    if "\x00" in text:
        raise InvalidKey(f"{what} must not contain NUL")
    return text


def check_key(key: object) -> str:
    return check_text("the key", key, KEY_BYTES_MAX)


def check_scope(scope: object) -> str:
    return check_text("the scope", scope, SCOPE_BYTES_MAX)


def check_namespace(namespace: object) -> str:
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise InvalidKey("a namespace is 1 to 64 of A-Z a-z 0-9 . _ -")
    return namespace


def clip(text: str, bytes_max: int) -> str:
    """A label cut to what its column holds, never in the middle of a character."""
    text = text.replace("\x00", "")
    data = text.encode("utf-8", "replace")
    return text if len(data) <= bytes_max and text.isascii() else data[:bytes_max].decode("utf-8", "ignore")


def fill(template: str, values: Mapping[str, object]) -> str:
    """A key from its template: `"charge:{order_id}"`. `%` and `:` inside a value are percent-encoded, so that two
    different sets of values never give one key.
    """
    parts: list[str] = []
    for literal, name, spec, conversion in parse(template):
        parts.append(literal)
        if name is None:
            continue
        if spec or conversion:
            raise InvalidKey(f"the key template {template!r} may not format {name!r}; name the field alone")
        try:
            found, _ = _FORMATTER.get_field(name, (), values)
        except (LookupError, AttributeError) as error:
            raise InvalidKey(f"the key template {template!r} names {name!r}, which the call does not have") from error
        parts.append(escape(part_text(name, found)))
    return check_key("".join(parts))


def parse(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(_FORMATTER.parse(template))
    except ValueError as error:
        raise InvalidKey(f"the key template {template!r} is malformed: {error}") from error


def escape(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")


def part_text(name: str, value: object) -> str:
    """The text of one key field. Null and types without one obvious text are refused."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool) or value is None:
        raise InvalidKey(f"the key field {name!r} is {value!r}; it must identify the work")
    if isinstance(value, str | int | uuid.UUID | decimal.Decimal):
        return str(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise InvalidKey(f"the key field {name!r} is a {type(value).__name__}, which has no one text; pass an id")
