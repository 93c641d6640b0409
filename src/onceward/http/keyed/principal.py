"""The principal of a key. Every key belongs to one, so that a user's key never reveals the response of another user.

The first of these that applies:

    principal=             the name that the application returns
    the user               set by authentication outside the middleware
    Authorization          a digest of it, unless it is Basic, which many people may share; cookies do not count
    session_cookies=       a digest of these cookies; other cookies do not count
    other credentials      a digest of Basic, Proxy-Authorization and X-API-Key; `anonymous` if there are none

In the last case all cookies are compared, and a difference is refused (fail closed). They are not part of the scope:
load balancers, analytics and rolling sessions change cookies between two attempts of one client, and with another scope
the retry would run again. Instead, a digest of all cookies is the second half of the fingerprint, which the store
compares in every state.

Each kind has its own prefix, so that a user named `anonymous` differs from an anonymous caller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace
from uuid import UUID

from onceward.core.fingerprint import Digest
from onceward.core.record import record
from onceward.errors import InvalidOption
from onceward.http.request.headers import digest_of

# The headers that carry credentials.
CREDENTIAL_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "cookie")
# The attributes by which frameworks identify a user. Those that two users may share come last.
_IDENTITIES = ("identity", "id", "pk", "user_id", "sub", "username", "email", "display_name", "name")
# A scope of the ledger has at most 255 bytes, and begins with a namespace of up to 64.
_NAME_BYTES_MAX = 160
# 128 bits of a sha256, in hex.
_DIGEST_CHARACTERS = 32
# The prefix of the digest of a name that is too long or not printable.
_HASHED = "sha256:"


@record(frozen=True, slots=True)
class KeyPrincipal:
    """The principal of a key, in the ledger's terms.

    Attributes:
        scope: Separates the keys of principals in the ledger.
        name: The name that operators see.
        fleeting: Whether the principal changes with a new login.
        cookies: The digest of all cookies; "" if none were sent, None if cookies do not count.
    """

    scope: str
    name: str
    fleeting: bool = False
    cookies: str | None = None


ANONYMOUS = KeyPrincipal("http:anonymous", "anonymous")
_WITHOUT_CREDENTIALS = KeyPrincipal("http:anonymous", "anonymous", cookies="")
# The beginning of the scope of callers that session cookies identify.
SESSION_SCOPE = "http:session:"
# A scope of the ledger without its namespace of up to 64 bytes and a colon.
_SCOPE_BYTES_MAX = 190


def named(name: object) -> KeyPrincipal:
    """Return the principal that `principal=` named. None is the anonymous principal."""
    if name is None:
        return ANONYMOUS
    text = _text(name)
    if text is None:
        raise InvalidOption(f"principal= must return the name of the caller as a string, or None, got {name!r}")
    return _user(text)


def of_user(user: object) -> KeyPrincipal | None:
    """Return the principal of an authenticated user object; None without a user, or if nothing identifies it."""
    if user is None or getattr(user, "is_authenticated", True) is False:
        return None
    text = _text(user)
    if text is None and isinstance(user, dict):
        text = next((found for name in _IDENTITIES if (found := _text(user.get(name))) is not None), None)
    elif text is None:
        text = next((found for name in _IDENTITIES if (found := _text(_attribute(user, name))) is not None), None)
    return None if text is None else _user(text)


def of_request(lines: Iterable[tuple[str, bytes]], session_cookies: Collection[bytes] = ()) -> KeyPrincipal:
    """Return the principal of an unauthenticated request, by its credentials: (lower-case header name, value)."""
    sent = [(name, value) for name, value in lines if value.strip()]
    if not sent:
        return _WITHOUT_CREDENTIALS
    authorization = [value for name, value in sent if name == "authorization"]
    if authorization and not any(map(_is_anonymous, authorization)):
        return _of_digest("credentials", "authorization", *sorted(authorization))
    cookies = _cookies(value for name, value in sent if name == "cookie")
    session = [pair for pair in cookies if pair[0] in session_cookies and pair[1]]
    if session:
        return _of_digest("session", *(part for pair in session for part in pair))
    rest = sorted(line for line in sent if line[0] != "cookie")
    found = _of_digest("credentials", *(part for line in rest for part in line)) if rest else ANONYMOUS
    return replace(found, cookies=_digest(*(part for pair in cookies for part in pair)) if cookies else "")


def of_sender(sender: str) -> KeyPrincipal:
    """Return the principal of webhooks: their sender."""
    return KeyPrincipal(f"http:webhook:{sender}", f"webhook:{sender}")


def at_endpoint(principal: KeyPrincipal, method: str, path: bytes) -> KeyPrincipal:
    """Return the principal with a scope for this endpoint only, for `scope="endpoint"`."""
    scope, digest = principal.scope, _digest(method, path)
    if len(scope.encode()) + 1 + _DIGEST_CHARACTERS > _SCOPE_BYTES_MAX:
        scope = f"http:{_HASHED}{hashlib.sha256(scope.encode()).hexdigest()}"
    return replace(principal, scope=f"{scope}@{digest}")


def with_cookies(fingerprint: Digest, cookies: str | None) -> Digest:
    """Return the fingerprint of a request and its cookies; without cookies, the fingerprint of the request alone."""
    return Digest(f"{fingerprint}.{cookies}") if cookies else fingerprint


def cookies_in(fingerprint: str) -> str:
    """Return the cookie half of an entry's fingerprint; empty if the entry was claimed without cookies."""
    return fingerprint.partition(".")[2]


def _is_anonymous(authorization: bytes) -> bool:
    """Return whether the header does not identify one caller: Basic may be shared by a whole site, Bearer be empty."""
    scheme, _, credentials = authorization.strip().partition(b" ")
    return scheme.lower() == b"basic" or (scheme.lower() == b"bearer" and not credentials.strip())


def _cookies(lines: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Return all cookies of a request, sorted: HTTP/2 may send several lines, and their order has no meaning."""
    pairs = (piece.partition(b"=") for line in lines for piece in line.split(b";"))
    return sorted({(name.strip(), value.strip()) for name, _, value in pairs} - {(b"", b"")})


def _of_digest(kind: str, *parts: str | bytes) -> KeyPrincipal:
    digest = _digest(*parts)
    return KeyPrincipal(f"http:{kind}:{digest}", f"{kind}:{digest}", fleeting=True)


def _digest(*parts: str | bytes) -> str:
    data = [part.encode("latin-1") if isinstance(part, str) else part for part in parts]
    return digest_of(*data)[:_DIGEST_CHARACTERS]


def _attribute(user: object, name: str) -> object:
    try:
        return getattr(user, name, None)
    except Exception:  # noqa: BLE001  # a property of the framework may raise for this user
        return None


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value or None
    if isinstance(value, bool) or not isinstance(value, int | UUID):
        return None
    return str(value)


def _user(text: str) -> KeyPrincipal:
    """Return the principal of a named user. No two names share a scope: a name that looks like a digest is hashed."""
    data = text.encode("utf-8", "surrogatepass")
    shown = len(data) <= _NAME_BYTES_MAX and text.isprintable() and not text.startswith(_HASHED)
    scope = text if shown else f"{_HASHED}{hashlib.sha256(data).hexdigest()}"
    return KeyPrincipal(f"http:user:{scope}", text)
