"""Whose key it is. One user's key never reveals another's response, so every key belongs to a principal.

In this order: what `principal=` says; the authenticated user; a digest of the credentials sent; `anonymous`. The kinds
are kept apart, so that a user who is called `anonymous` is still somebody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from uuid import UUID

from onceward.core.record import record
from onceward.core.request import digest_of
from onceward.errors import InvalidOption

# Where credentials travel; all of them together say who asks.
CREDENTIAL_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "cookie")
# Where frameworks keep what identifies a user; names that two may have come last.
_IDENTITIES = ("identity", "id", "pk", "user_id", "sub", "username", "email", "display_name", "name")
# The ledger's scope holds 255 bytes, with a namespace of up to 64 in front.
_NAME_BYTES_MAX = 160
# Stands in front of the digest of a name that is too long or cannot be printed.
_HASHED = "sha256:"


@record(frozen=True, slots=True)
class Principal:
    """`scope` separates keys in the ledger, `name` is what an operator reads; `fleeting` when a new login changes it."""

    scope: str
    name: str
    fleeting: bool = False


ANONYMOUS = Principal("http:anonymous", "anonymous")


def named(name: object) -> Principal:
    """The principal that `principal=` named; None is everybody without a name."""
    if name is None:
        return ANONYMOUS
    text = _text(name)
    if text is None:
        raise InvalidOption(f"principal= must give a text that says who asks, or None; it gave {name!r}")
    return _user(text)


def of_user(user: object) -> Principal | None:
    """The principal of an authenticated user object; None when there is none or nothing identifies it."""
    if user is None or getattr(user, "is_authenticated", True) is False:
        return None
    text = _text(user)
    if text is None and isinstance(user, dict):
        text = next((found for name in _IDENTITIES if (found := _text(user.get(name))) is not None), None)
    elif text is None:
        text = next((found for name in _IDENTITIES if (found := _text(_attribute(user, name))) is not None), None)
    return None if text is None else _user(text)


def of_credentials(lines: Iterable[tuple[str, bytes]]) -> Principal:
    """The principal of whoever holds these credentials, by (lower-case header name, value)."""
    parts: list[bytes] = []
    for name, value in sorted(lines):
        parts += (name.encode("latin-1"), value)
    if not parts:
        return ANONYMOUS
    digest = digest_of(*parts)[:32]
    return Principal(f"http:credentials:{digest}", f"credentials:{digest}", fleeting=True)


def _attribute(user: object, name: str) -> object:
    try:
        return getattr(user, name, None)
    except Exception:  # noqa: BLE001  # a property of the framework's own that this user does not have
        return None


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value or None
    if isinstance(value, bool) or not isinstance(value, int | UUID):
        return None
    return str(value)


def _user(text: str) -> Principal:
    """Two names never share a scope, so what is not shown as it is must not look like one that is."""
    data = text.encode("utf-8", "surrogatepass")
    shown = len(data) <= _NAME_BYTES_MAX and text.isprintable() and not text.startswith(_HASHED)
    scope = text if shown else f"{_HASHED}{hashlib.sha256(data).hexdigest()}"
    return Principal(f"http:user:{scope}", text)
