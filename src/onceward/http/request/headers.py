"""The headers of a keyed request: its key, how long it waits for a running duplicate, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

from onceward.core.canonical import Json, canonical
from onceward.core.fingerprint import Digest
from onceward.errors import InvalidKey

KEY_HEADERS = ("idempotency-key", "x-idempotency-key")
KEY_CHARACTERS_MAX = 255
# The longest wait for a running duplicate that a client may ask for. Proxies may close connections that wait longer.
PREFER_WAIT_SECONDS_MAX = 60

_VISIBLE = re.compile(r"[\x21-\x7e]{1,255}")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_WAIT = re.compile(r'(?:^|[,;])\s*wait\s*=\s*"?([0-9]+)"?\s*(?=$|[,;])', re.IGNORECASE)
_WAIT_DIGITS_MAX = 9
_LENGTH = re.compile(r"[0-9]+")
_LENGTH_DIGITS_MAX = 18


def key_of(key_lines: Sequence[str], x_key_lines: Sequence[str]) -> str:
    """Return the key in the lines of `Idempotency-Key` and `X-Idempotency-Key`, quoted or bare. Raises `InvalidKey`."""
    lines = (*key_lines, *x_key_lines)
    if len(lines) == 1:
        return unquoted(lines[0])
    for name, sent in (("Idempotency-Key", key_lines), ("X-Idempotency-Key", x_key_lines)):
        if len(sent) > 1:
            raise InvalidKey(f"the header {name} was sent {len(sent)} times; send it once")
    keys = {unquoted(line) for line in lines}
    if len(keys) > 1:
        raise InvalidKey("Idempotency-Key and X-Idempotency-Key differ; send only one of them")
    return keys.pop()


def unquoted(line: str) -> str:
    """Return the key in a header line, quoted or bare. Raises `InvalidKey`."""
    text = line.strip(" \t")
    if text.startswith('"'):
        quoted = _QUOTED.fullmatch(text)
        if quoted is None:
            raise InvalidKey("the idempotency key begins with a quote but is not a valid quoted string")
        text = re.sub(r"\\(.)", r"\1", quoted[1])
    if not _VISIBLE.fullmatch(text):
        raise InvalidKey(f"an idempotency key must be 1 to {KEY_CHARACTERS_MAX} visible ASCII characters")
    return text


def wait_seconds_of(prefer: Iterable[str]) -> int | None:
    """Return the seconds in `wait=N` of the `Prefer` header, at most 60; None if the header has no `wait`."""
    for line in prefer:
        if found := _WAIT.search(line):
            # Cut the number: Python refuses to convert very long ones, and the result is capped anyway.
            return min(int(found[1].lstrip("0")[:_WAIT_DIGITS_MAX] or "0"), PREFER_WAIT_SECONDS_MAX)
    return None


def media_type_of(content_type: str) -> str:
    """Return the media type in lower case, without parameters."""
    return content_type.partition(";")[0].strip().lower()


def length_of(content_length: str) -> int | None:
    """Return the number in a `Content-Length`; None if it is not a number."""
    if not _LENGTH.fullmatch(content_length):
        return None
    # Cap the number: Python refuses to convert very long ones, and no body is this large.
    return int(content_length) if len(content_length) <= _LENGTH_DIGITS_MAX else 10**_LENGTH_DIGITS_MAX


def fingerprint_of(
    method: str, path: bytes, query: bytes, media_type: str, body: bytes, variant: bytes | None = None
) -> Digest:
    """Return the fingerprint by which two requests are compared.

    `path` is the undecoded path. `body` is the digest of the body or of its chosen fields. `variant` distinguishes
    requests further; None adds nothing.
    """
    extra = () if variant is None else (variant,)
    return digest_of(method.encode(), path, query, media_type.encode("latin-1"), body, *extra)


def digest_of(*parts: bytes) -> Digest:
    """Return one digest of several byte strings. Each is hashed with its length, so that boundaries cannot shift."""
    sizes_and_parts: list[int | bytes] = []
    for part in parts:
        sizes_and_parts += (len(part), part)
    return Digest(hashlib.sha256(b"%d:%b" * len(parts) % tuple(sizes_and_parts)).hexdigest())


def fields_of(body: bytes, fields: Sequence[str]) -> bytes | None:
    """Return the chosen fields of a JSON object in canonical form; `a.b` is a nested field.

    None if the body is not a JSON object, or if the fields have no canonical form.
    """
    try:
        whole = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(whole, dict):
        return None
    chosen: dict[str, Json] = {}
    for field in fields:
        value: Json = whole
        for name in field.split("."):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            chosen[field] = value
    try:
        return canonical(chosen)
    except InvalidKey:
        return None  # NaN, an integer over 2^53-1, half a surrogate pair
