"""What a request says about its own repetition: the key it carries, how long it would wait, what it is the same as."""

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
# A client may ask to wait for a running duplicate; longer than this no proxy keeps a connection open for sure.
PREFER_WAIT_SECONDS_MAX = 60

_VISIBLE = re.compile(r"[\x21-\x7e]{1,255}")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_WAIT = re.compile(r'(?:^|[,;])\s*wait\s*=\s*"?([0-9]+)"?\s*(?=$|[,;])', re.IGNORECASE)
_WAIT_DIGITS_MAX = 9
_LENGTH = re.compile(r"[0-9]+")
_LENGTH_DIGITS_MAX = 18


def key_of(draft: Sequence[str], older: Sequence[str]) -> str:
    """The key of the header lines `Idempotency-Key` and `X-Idempotency-Key`, quoted or bare; `InvalidKey` if unclear."""
    for name, lines in (("Idempotency-Key", draft), ("X-Idempotency-Key", older)):
        if len(lines) > 1:
            raise InvalidKey(f"the header {name} was sent {len(lines)} times; send it once")
    keys = {_unquoted(line) for line in (*draft, *older)}
    if len(keys) > 1:
        raise InvalidKey("Idempotency-Key and X-Idempotency-Key differ; send one of them")
    return keys.pop()


def _unquoted(line: str) -> str:
    text = line.strip(" \t")
    if text.startswith('"'):
        quoted = _QUOTED.fullmatch(text)
        if quoted is None:
            raise InvalidKey("the idempotency key begins with a quote but is not one quoted text")
        text = re.sub(r"\\(.)", r"\1", quoted[1])
    if not _VISIBLE.fullmatch(text):
        raise InvalidKey(f"an idempotency key is 1 to {KEY_CHARACTERS_MAX} visible ASCII characters")
    return text


def wait_seconds_of(prefer: Iterable[str]) -> int | None:
    """The `wait=N` of the `Prefer` header lines, at most a minute; None when they do not ask for it."""
    for line in prefer:
        if found := _WAIT.search(line):
            # So many digits are a long time, also where there are more of them than Python would read.
            return min(int(found[1].lstrip("0")[:_WAIT_DIGITS_MAX] or "0"), PREFER_WAIT_SECONDS_MAX)
    return None


def media_type_of(content_type: str) -> str:
    """The media type alone, as it is compared: lower-case and without parameters."""
    return content_type.partition(";")[0].strip().lower()


def length_of(content_length: str) -> int | None:
    """The number of bytes that a `Content-Length` announces; None when it announces none."""
    if not _LENGTH.fullmatch(content_length):
        return None
    # More digits than any body has bytes, and more than Python would read.
    return int(content_length) if len(content_length) <= _LENGTH_DIGITS_MAX else 10**_LENGTH_DIGITS_MAX


def fingerprint_of(
    method: str, path: bytes, query: bytes, media_type: str, body: bytes, variant: bytes | None = None
) -> Digest:
    """What makes two requests the same. `path` is as it was sent, undecoded; `body` is the digest of the body, or of what of it counts.

    `variant` is what else tells them apart, and changes nothing where it is None.
    """
    beyond = () if variant is None else (variant,)
    return digest_of(method.encode(), path, query, media_type.encode("latin-1"), body, *beyond)


def digest_of(*parts: bytes) -> Digest:
    """One digest of several texts; each goes in with its length, so that none can pass for part of another."""
    measured: list[int | bytes] = []
    for part in parts:
        measured += (len(part), part)
    return Digest(hashlib.sha256(b"%d:%b" * len(parts) % tuple(measured)).hexdigest())


def fields_of(body: bytes, fields: Sequence[str]) -> bytes | None:
    """The chosen fields of a JSON object, in canonical form; None when the body is none, or they have no such form.

    `a.b` is a field of a field.
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
