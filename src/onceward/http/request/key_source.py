"""Key sources: the place in a request that carries its key. The default is the two key headers.

    key=header("Webhook-Id")
    key=query("delivery")
    key=json_field("event.id")                              # on a route
    key=lambda head, body: head.header("X-Batch") or None   # on a route
    key=first_of(header("Idempotency-Key"), json_field("id"))

A source returns the key, or None if the request has none. A source that reads the body is allowed only on a route: a
middleware would have to hold back the body of every request to find out whether it has a key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from urllib.parse import parse_qsl

from onceward.errors import InvalidKey, InvalidOption
from onceward.http.plain_function import check_plain_function
from onceward.http.request.headers import KEY_CHARACTERS_MAX, key_of, unquoted

# A token, as defined in RFC 9110.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN = re.compile(r"[\x21-\x7e]{1,255}")
_HASHED = "sha256:"
# A request has at most this many query parameters. Servers limit the length of the query further.
_PARAMETERS_MAX = 1000


class BodyNeeded(Exception):
    """The key cannot be found without the body of the request."""


class RequestHead:
    """The request without its body, for functions that return its key.

    Args:
        method: The HTTP method, in upper case. Also an attribute.
        path: The path, decoded. Also an attribute.
        query: The query string as it was sent, without the question mark. Also an attribute.
        lines: Returns the lines of a header by its name in lower case.
    """

    __slots__ = ("_lines", "method", "path", "query")

    def __init__(self, method: str, path: str, query: str, lines: Callable[[str], Sequence[str]]) -> None:
        self.method = method
        self.path = path
        self.query = query
        self._lines = lines

    def header_lines(self, name: str) -> list[str]:
        """Return all lines of a header.

        Args:
            name: The name of the header, in any case.

        Returns:
            The values in the order in which they were sent.
        """
        return list(self._lines(name.lower()))

    def header(self, name: str) -> str:
        """Return the value of a header.

        Args:
            name: The name of the header, in any case.

        Returns:
            The value, several lines joined with commas; "" if the request does not have this header.
        """
        return ",".join(self._lines(name.lower()))


@runtime_checkable
class KeySource(Protocol):
    """Reads the key of a request."""

    @property
    def name(self) -> str:
        """The source in words, for messages."""
        ...

    @property
    def reads_body(self) -> bool: ...

    def find(self, head: RequestHead, body: bytes | None) -> str | None:
        """Return the key of a request.

        Args:
            head: The request without its body.
            body: The body, or None if it was not read yet.

        Returns:
            The key, or None if the request has none.

        Raises:
            InvalidKey: The request carries something that is not a key.
            BodyNeeded: The body is None, and the key cannot be found without it.
        """
        ...


KeyFunction = Callable[[RequestHead, bytes], str | None]


@dataclass(frozen=True, slots=True)
class KeyHeaders:
    """The default: `Idempotency-Key` and `X-Idempotency-Key`."""

    name = "the header Idempotency-Key"
    reads_body = False

    def find(self, head: RequestHead, body: bytes | None) -> str | None:  # noqa: ARG002  # same form for all sources
        lines = head.header_lines("idempotency-key"), head.header_lines("x-idempotency-key")
        return key_of(*lines) if any(lines) else None


KEY_HEADERS_SOURCE = KeyHeaders()


@dataclass(frozen=True, slots=True)
class HeaderKey:
    """A header that carries the key."""

    header_name: str
    reads_body = False

    @property
    def name(self) -> str:
        return f"the header {self.header_name}"

    def find(self, head: RequestHead, body: bytes | None) -> str | None:  # noqa: ARG002  # same form for all sources
        lines = head.header_lines(self.header_name)
        if len(lines) > 1:
            raise InvalidKey(f"the header {self.header_name} was sent {len(lines)} times; send it once")
        return unquoted(lines[0]) if lines else None


@dataclass(frozen=True, slots=True)
class QueryKey:
    """A query parameter that carries the key."""

    parameter: str
    reads_body = False

    @property
    def name(self) -> str:
        return f"the query parameter {self.parameter}"

    def find(self, head: RequestHead, body: bytes | None) -> str | None:  # noqa: ARG002  # same form for all sources
        try:
            pairs = parse_qsl(head.query, keep_blank_values=True, max_num_fields=_PARAMETERS_MAX)
        except ValueError:
            raise InvalidKey(f"the query has more than {_PARAMETERS_MAX} parameters") from None
        found = [value for name, value in pairs if name == self.parameter]
        if len(found) > 1:
            raise InvalidKey(f"the query parameter {self.parameter} was sent {len(found)} times; send it once")
        if not found:
            return None
        if not _PLAIN.fullmatch(found[0]):
            raise InvalidKey(f"an idempotency key must be 1 to {KEY_CHARACTERS_MAX} visible ASCII characters")
        return found[0]


@dataclass(frozen=True, slots=True)
class JsonFieldKey:
    """A field of the JSON body that carries the key."""

    field: str
    reads_body = True

    @property
    def name(self) -> str:
        return f"the JSON field {self.field}"

    def find(self, head: RequestHead, body: bytes | None) -> str | None:  # noqa: ARG002  # same form for all sources
        if body is None:
            raise BodyNeeded
        value = _parsed(body)
        for part in self.field.split("."):
            if not isinstance(value, _Object):
                return None
            if part in value.repeated:
                raise InvalidKey(f"the body has the JSON field {part} more than once, so its key is not certain")
            value = value.get(part)
        if value is None:
            return None
        if isinstance(value, str):
            return key_text(value, self.name)
        if isinstance(value, int) and not isinstance(value, bool):
            return key_text(str(value), self.name)
        raise InvalidKey(f"{self.name} must be a string or a whole number to be an idempotency key")


@dataclass(frozen=True, slots=True)
class FunctionKey:
    """A function of the application that returns the key."""

    function: KeyFunction
    name = "an idempotency key"
    reads_body = True

    def find(self, head: RequestHead, body: bytes | None) -> str | None:
        if body is None:
            raise BodyNeeded
        found: object = self.function(head, body)
        if found is None:
            return None
        if not isinstance(found, str):
            raise InvalidOption(f"key= must return the key as a string, or None, got {found!r}")
        return key_text(found, self.name)


@dataclass(frozen=True, slots=True)
class FirstOf:
    """The first of several sources that finds a key."""

    sources: tuple[KeySource, ...]

    @property
    def name(self) -> str:
        return " or ".join(source.name for source in self.sources)

    @property
    def reads_body(self) -> bool:
        return any(source.reads_body for source in self.sources)

    def find(self, head: RequestHead, body: bytes | None) -> str | None:
        for source in self.sources:
            found = source.find(head, body)
            if found is not None:
                return found
        return None


def header(name: str) -> KeySource:
    """Take the key from a header.

    Args:
        name: The name of the header, in any case. Its value may be quoted, as in the IETF draft.

    Returns:
        A source for `key=`.

    Raises:
        InvalidOption: The name is not a header name.
    """
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise InvalidOption(f"header() needs the name of a header, such as 'Webhook-Id', got {name!r}")
    return HeaderKey(name)


def query(name: str) -> KeySource:
    """Take the key from a query parameter.

    Args:
        name: The name of the parameter.

    Returns:
        A source for `key=`.

    Raises:
        InvalidOption: The name is not a string, or is empty.
    """
    if not isinstance(name, str) or not name:
        raise InvalidOption(f"query() needs the name of a parameter, such as 'delivery', got {name!r}")
    return QueryKey(name)


def json_field(name: str) -> KeySource:
    """Take the key from a field of the JSON body. Only for routes, because it needs the body.

    The field must be a string or a whole number. A text that is not 1 to 255 visible ASCII characters is hashed.

    Args:
        name: The name of the field; `event.id` is the field `id` of the object `event`.

    Returns:
        A source for `key=` of a route.

    Raises:
        InvalidOption: The name is not a string, or has an empty part.
    """
    if not isinstance(name, str) or not all(name.split(".")):
        raise InvalidOption(f"json_field() needs the name of a field, such as 'event.id', got {name!r}")
    return JsonFieldKey(name)


def first_of(*sources: KeySource | KeyFunction) -> KeySource:
    """Take the key from the first source that has one.

    Args:
        sources: Results of `header`, `query` and `json_field`, or functions of the head and the body.

    Returns:
        A source for `key=`.

    Raises:
        InvalidOption: No source is given, or one of them is neither a source nor a function.
    """
    if not sources:
        raise InvalidOption("first_of() needs at least one source, such as header('Webhook-Id')")
    return FirstOf(tuple(as_source(source) for source in sources))


def as_source(key: object) -> KeySource:
    """Return the source of a `key=` option. A function is wrapped. Raises `InvalidOption`."""
    if isinstance(key, KeySource):
        return key
    if callable(key):
        check_plain_function("key=", key, "the head", "the body")
        return FunctionKey(key)
    raise InvalidOption(
        f"key= must be header(), query(), json_field(), first_of() or a function of the head and the body, got {key!r}"
    )


def field_of(source: KeySource) -> str:
    """Return the field that the errors of a refusal name: where the key is, or else the source in words."""
    match source:
        case KeyHeaders():
            return "Idempotency-Key"
        case HeaderKey():
            return source.header_name
        case QueryKey():
            return source.parameter
        case JsonFieldKey():
            return source.field
        case _:
            return source.name


def key_text(text: str, name: str) -> str:
    """Return a key for any text. One that could not be a header value is hashed. Raises `InvalidKey` if it is empty."""
    if not text.strip():
        raise InvalidKey(f"{name} is empty")
    if _PLAIN.fullmatch(text) and not text.startswith(_HASHED):
        return text
    return _HASHED + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def joined(*parts: str) -> str:
    """Join several texts into one, so that no two lists of texts give the same result."""
    return "|".join(part.replace("%", "%25").replace("|", "%7C") for part in parts)


class _Object(dict[str, Any]):
    """A JSON object, and the names that it has more than once."""

    repeated: frozenset[str] = frozenset()


def _object(pairs: Iterable[tuple[str, Any]]) -> _Object:
    pairs = list(pairs)
    found = _Object(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        found.repeated = frozenset(name for name, count in counts.items() if count > 1)
    return found


def parsed(body: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None if the body is not one."""
    value = _parsed(body)
    return value if isinstance(value, _Object) else None


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body.decode(), object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return None
