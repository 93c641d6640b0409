"""Keys, scopes and key templates: their limits, and how a template is filled."""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import re
import string
import uuid
from collections.abc import Mapping

from onceward.core.record import record
from onceward.errors import InvalidKey

# Wide enough for the keys of every layer with a tenant prefix, and narrow enough for a B-tree page on every store.
SCOPE_BYTES_MAX = 255
KEY_BYTES_MAX = 1024
# The column widths of the HTTP contract.
LABEL_BYTES_MAX = 255
NOTE_BYTES_MAX = 1024
# The part of a key that messages and logs show: enough to find its entry, too little to request its outcome.
KEY_CHARACTERS_SHOWN = 20
# Shown in place of the rest of a key.
CUT = "..."

_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")
# The default text of a Python object: `<Order object at 0x7f3a5c0b1d90>`.
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]{1,32}>")
_FORMATTER = string.Formatter()


def check_text(what: str, text: object, bytes_max: int) -> str:
    """Return the text if it is non-empty, without NUL and at most `bytes_max` UTF-8 bytes; else raise `InvalidKey`."""
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
            raise InvalidKey(f"{what} must not contain a lone surrogate, which is not valid text") from error
    if size > bytes_max:
        raise InvalidKey(f"{what} may have at most {bytes_max} bytes, got {size}")
    if "\x00" in text:
        raise InvalidKey(f"{what} must not contain a NUL character")
    return text


def check_key(key: object) -> str:
    return check_text("the key", key, KEY_BYTES_MAX)


def check_built_key(key: object) -> str:
    """Check a key that code has built, and refuse memory addresses, which differ in the next process."""
    text = check_key(key)
    if has_address(text):
        raise InvalidKey(
            f"the key {short_key(text)!r} contains the memory address of an object, so a retry would never find it;"
            " build the key from the object's id"
        )
    return text


def has_address(text: str) -> bool:
    """Return whether a text contains the default `repr` of a Python object."""
    return " at 0x" in text and _ADDRESS.search(text) is not None


def check_scope(scope: object) -> str:
    return check_text("the scope", scope, SCOPE_BYTES_MAX)


def check_namespace(namespace: object) -> str:
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise InvalidKey("a namespace must be 1 to 64 characters of A-Z a-z 0-9 . _ -")
    return namespace


def short_key(key: str) -> str:
    """Return the key cut to the length that messages and logs may show."""
    return key if len(key) <= KEY_CHARACTERS_SHOWN else key[:KEY_CHARACTERS_SHOWN] + CUT


def clip(text: str, bytes_max: int) -> str:
    """Cut a label to the width of its column, never in the middle of a character."""
    if not isinstance(text, str):
        raise InvalidKey(f"a label must be text, not {type(text).__name__}")
    if text.isascii() and len(text) <= bytes_max and "\x00" not in text:
        return text
    text = text.replace("\x00", "")
    data = text.encode("utf-8", "replace")
    return text if len(data) <= bytes_max and text.isascii() else data[:bytes_max].decode("utf-8", "ignore")


def fill(template: str, values: Mapping[str, object]) -> str:
    """Build a key from its template, such as `"charge:{order_id}"`.

    Inside a value, `%`, `:` and the separators between the template's fields are percent-encoded, so that two different
    sets of values never give the same key.
    """
    plan = parse(template)
    parts: list[str] = []
    for literal, name in plan.parts:
        parts.append(literal)
        if name is None:
            continue
        try:
            found, _ = _FORMATTER.get_field(name, (), values)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise InvalidKey(
                f"the key template {template!r} names {name!r}, which is not an argument of the call"
            ) from error
        parts.append(part_text(name, found).translate(plan.escapes))
    return check_built_key("".join(parts))


@record(frozen=True, slots=True)
class Template:
    """A parsed key template: literals, each with the field that follows it, and the characters to escape in values."""

    parts: tuple[tuple[str, str | None], ...]
    escapes: dict[int, str]


@functools.cache
def parse(template: str) -> Template:
    """Parse a template; raise `InvalidKey` if it is malformed or different values could give the same key."""
    try:
        parsed = list(_FORMATTER.parse(template))
    except ValueError as error:
        raise InvalidKey(f"the key template {template!r} is malformed: {error}") from error
    for _, name, spec, conversion in parsed:
        if spec or conversion:
            raise InvalidKey(
                f"the key template {template!r} must not format {name!r}; write the field name without ':' or '!'"
            )
    parts = tuple((literal, name) for literal, name, _, _ in parsed)
    return Template(parts, {ord(mark): _percent(mark) for mark in {"%", ":"} | _separators(template, parts)})


def _separators(template: str, parts: tuple[tuple[str, str | None], ...]) -> set[str]:
    """Return the separators between fields. Letters and digits do not count: encoded values contain them too."""
    marks: set[str] = set()
    between, after_field = "", False
    for literal, name in parts:
        between += literal
        if name is None:
            continue
        found = {mark for mark in between if not mark.isalnum() and mark != "%"}
        if after_field and not found:
            raise InvalidKey(f"the key template {template!r} has no separator between two fields; write '{{a}}:{{b}}'")
        marks |= found if after_field else set()
        between, after_field = "", True
    return marks


def _percent(mark: str) -> str:
    return "".join(f"%{byte:02X}" for byte in mark.encode())


def part_text(name: str, value: object) -> str:
    """Return the text of one key field. None, booleans and types without an obvious text are refused."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool) or value is None:
        raise InvalidKey(f"the key field {name!r} is {value!r}; pass a value that identifies the work")
    # Use the method of the base type, because a subclass may override `__str__`.
    for kind in (str, int, uuid.UUID, decimal.Decimal):
        if isinstance(value, kind):
            return kind.__str__(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise InvalidKey(
        f"the key field {name!r} has the type {type(value).__name__}, which has no unambiguous text; pass an id"
    )
