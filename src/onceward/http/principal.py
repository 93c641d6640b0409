"""Whose key it is. One user's key never reveals another's response, so every key belongs to a principal.

In this order:

    principal=             the name that the application gives
    the user               found by an authentication around the middleware
    Authorization          a digest of it, unless it is Basic, which many people may share; cookies do not count
    session_cookies=       a digest of these cookies; other cookies do not count
    other credentials      a digest of Basic, Proxy-Authorization and X-API-Key; `anonymous` where there are none

Only in the last case do cookies count, and they fail closed. Load balancers, analytics and rolling sessions change
cookies between two attempts of one client, so that a scope made of them would run a retry again. A digest of all cookies
is the second half of the fingerprint instead: the store compares it in every state, and other cookies are refused.

The kinds are kept apart, so that a user who is called `anonymous` is still somebody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace
from uuid import UUID

from onceward.core.fingerprint import Digest
from onceward.core.record import record
from onceward.core.request import digest_of
from onceward.errors import InvalidOption

# Where credentials travel.
CREDENTIAL_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "cookie")
# Where frameworks keep what identifies a user; names that two may have come last.
_IDENTITIES = ("identity", "id", "pk", "user_id", "sub", "username", "email", "display_name", "name")
# The ledger's scope holds 255 bytes, with a namespace of up to 64 in front.
_NAME_BYTES_MAX = 160
# 128 bits of a sha256, in hex.
_DIGEST_CHARACTERS = 32
# Stands in front of the digest of a name that is too long or cannot be printed.
_HASHED = "sha256:"


@record(frozen=True, slots=True)
class Principal:
    """`scope` separates keys in the ledger, `name` is what an operator reads; `fleeting` when a new login changes it.

    `cookies` is the digest of all cookies where they count, empty where none were sent, and None where they do not count.
    """

    scope: str
    name: str
    fleeting: bool = False
    cookies: str | None = None


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


def of_request(lines: Iterable[tuple[str, bytes]], session_cookies: Collection[bytes] = ()) -> Principal:
    """The principal of a request that nobody authenticated, by its credentials: (lower-case header name, value)."""
    sent = [(name, value) for name, value in lines if value.strip()]
    authorization = [value for name, value in sent if name == "authorization"]
    if authorization and not any(map(_names_nobody, authorization)):
        return _of_digest("credentials", "authorization", *sorted(authorization))
    cookies = _cookies(value for name, value in sent if name == "cookie")
    session = [pair for pair in cookies if pair[0] in session_cookies and pair[1]]
    if session:
        return _of_digest("session", *(part for pair in session for part in pair))
    rest = sorted(line for line in sent if line[0] != "cookie")
    found = _of_digest("credentials", *(part for line in rest for part in line)) if rest else ANONYMOUS
    return replace(found, cookies=_digest(*(part for pair in cookies for part in pair)) if cookies else "")


def with_cookies(fingerprint: Digest, cookies: str | None) -> Digest:
    """The fingerprint of a request and of its cookies; without cookies, that of the request alone."""
    return Digest(f"{fingerprint}.{cookies}") if cookies else fingerprint


def cookies_in(fingerprint: str) -> str:
    """The cookie half of an entry's fingerprint; empty where the entry was claimed without cookies."""
    return fingerprint.partition(".")[2]


def _names_nobody(authorization: bytes) -> bool:
    """Basic credentials may be those of a whole site, and a scheme without credentials is nobody's."""
    scheme, _, credentials = authorization.strip().partition(b" ")
    return scheme.lower() == b"basic" or (scheme.lower() == b"bearer" and not credentials.strip())


def _cookies(lines: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """All cookies of a request, sorted: HTTP/2 sends several lines, and their order means nothing."""
    pairs = (piece.partition(b"=") for line in lines for piece in line.split(b";"))
    return sorted({(name.strip(), value.strip()) for name, _, value in pairs} - {(b"", b"")})


def _of_digest(kind: str, *parts: str | bytes) -> Principal:
    digest = _digest(*parts)
    return Principal(f"http:{kind}:{digest}", f"{kind}:{digest}", fleeting=True)


def _digest(*parts: str | bytes) -> str:
    return digest_of(*(part.encode("latin-1") if isinstance(part, str) else part for part in parts))[
        :_DIGEST_CHARACTERS
    ]


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
