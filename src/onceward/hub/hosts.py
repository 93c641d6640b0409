"""Which names the hub answers to, and which pages may ask it to change something.

A page that a browser shows can point its own name at this address (DNS rebinding) or send requests across sites. Both
show in headers that no page can forge: `Host`, `Origin` and `Sec-Fetch-Site`. An address with NUL in it is refused here
as well: no text of the hub has one, and PostgreSQL cannot even be asked for it.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.middleware.cors import CORSMiddleware

from onceward.http import problem
from onceward.http.problem import Answer
from onceward.http.wire import App, Receive, Send
from onceward.hub.problems import refuse
from onceward.hub.scopes import SAFE_METHODS

# What a page of an allowed origin may read besides the body.
SHOWN_HEADERS = ("Idempotent-Replayed", "Retry-After", "X-Request-ID", "ETag", "Location")

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # looked for, not bound to
_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_WEB_SCHEMES = {"ws": "http", "wss": "https"}
# The longest name there can be, with brackets or a port.
_HOST_CHARACTERS_MAX = 262
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.ASCII)
_ORIGIN = re.compile(r"(https?)://(.+)", re.ASCII)

_NO_HOST = "A request needs exactly one Host header with a name or address in it"
_NUL = "The address has NUL in it"
_WRONG_HOST = (
    "The Host header names {!r}. This hub answers to localhost, loopback addresses, {} and the names in"
    " auth.allowed_hosts. To use this name, add it there (onceward.toml, or ONCEWARD_AUTH__ALLOWED_HOSTS)."
)
_WRONG_ORIGIN = (
    "The request comes from a page of another origin. To allow it, add that origin to auth.allowed_origins"
    " (onceward.toml, or ONCEWARD_AUTH__ALLOWED_ORIGINS)."
)


@dataclass(frozen=True, slots=True)
class Place:
    """A host and its port: 0 where none is named."""

    name: str
    port: int = 0

    def at(self, scheme: str) -> Place:
        """With the scheme's own port where none is named."""
        return self if self.port else Place(self.name, _DEFAULT_PORTS.get(scheme, 0))


def place_of(text: str) -> Place | None:
    """The place that a Host header names; None when it names none."""
    return None if len(text) > _HOST_CHARACTERS_MAX else _place_of(text)


@functools.lru_cache(maxsize=256)
def _place_of(text: str) -> Place | None:
    found = _HOST.fullmatch(text.strip().lower())
    if found is None:
        return None
    name = found[1].removesuffix(".")
    address = address_of(name)
    if name.startswith("[") and address is None:
        return None
    return Place(name if address is None else str(address), int(found[2] or 0))


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a text is, in brackets or not, and not as IPv4 in the clothes of IPv6."""
    try:
        address = ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_loopback(text: str) -> bool:
    address = address_of(text)
    return text == "localhost" if address is None else address.is_loopback


@dataclass(frozen=True, slots=True)
class Rules:
    """What is allowed, taken apart once."""

    hosts: frozenset[Place]
    # `.example.com` for `*.example.com`.
    suffixes: frozenset[Place]
    origins: frozenset[tuple[str, Place]]
    any_address: bool

    def allows_host(self, place: Place, scheme: str) -> bool:
        if is_loopback(place.name) or Place(place.name) in self.hosts or place.at(scheme) in self.hosts:
            return True
        if self.any_address and address_of(place.name) is not None:
            return True
        return any(
            place.name.endswith(suffix.name) and suffix.port in {0, place.at(scheme).port} for suffix in self.suffixes
        )

    def allows_origin(self, origin: str, site: str, place: Place, scheme: str) -> bool:
        """Whether a page of this origin may change things; no origin means that no page asks, or the hub's own."""
        if not origin:
            return site in {"", "none", "same-origin"}
        asking = origin_of(origin)
        if asking is None:
            return False
        if asking in self.origins:
            return True
        scheme = _WEB_SCHEMES.get(scheme, scheme)
        return asking == (scheme, place.at(scheme)) and site in {"", "none", "same-origin"}


def origin_of(text: str) -> tuple[str, Place] | None:
    """Scheme and place of an origin; None for `null` and everything else that is none."""
    found = _ORIGIN.fullmatch(text.strip().lower())
    place = None if found is None else place_of(found[2])
    return None if found is None or place is None else (found[1], place.at(found[1]))


def rules_of(allowed_hosts: Iterable[str], allowed_origins: Iterable[str], bound: str) -> Rules:
    """`*.example.com` allows every name under it, a name without a port every port of it."""
    allowed = tuple(allowed_hosts)
    plain = [place_of(text) for text in allowed if not text.startswith("*.")]
    under = [place_of(text[2:]) for text in allowed if text.startswith("*.")]
    own = None if bound in _WILDCARDS else place_of(f"[{bound}]" if ":" in bound else bound)
    return Rules(
        hosts=frozenset(place for place in (*plain, own) if place is not None),
        suffixes=frozenset(Place(f".{place.name}", place.port) for place in under if place is not None),
        origins=frozenset(origin for text in allowed_origins if (origin := origin_of(text)) is not None),
        # Rebinding needs a name: whoever writes an address reaches the machine that has it.
        any_address=bound in _WILDCARDS and not allowed,
    )


class Hosts:
    """Refuses requests for other hosts with 400, and those that pages of other origins may not make with 403.

    `bound` is the address that the hub listens on. Pages of allowed origins also get the headers that let them read
    the answers (CORS).
    """

    def __init__(
        self,
        app: App,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        bound: str = "127.0.0.1",
    ) -> None:
        origins = tuple(allowed_origins)
        self.app = app
        self._rules = rules_of(allowed_hosts, origins, bound)
        self._own = "any IP address" if self._rules.any_address else "the address it listens on"
        if origins:
            self.app = CORSMiddleware(
                app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=SHOWN_HEADERS
            )

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"}:
            refused = self._refused(scope)
            if refused is not None:
                await refuse(scope, receive, send, refused)
                return
        await self.app(scope, receive, send)

    def _refused(self, scope: Any) -> Answer | None:
        if "\x00" in scope["path"] or b"%00" in scope.get("query_string", b""):
            return problem.problem(400, _NUL)
        hosts, origins, sites = [], [], []
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
            elif name == b"sec-fetch-site":
                sites.append(value)
        place = place_of(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
        if place is None:
            return problem.problem(400, _NO_HOST)
        scheme = scope.get("scheme", "http")
        if not self._rules.allows_host(place, scheme):
            return problem.problem(400, _WRONG_HOST.format(place.name, self._own))
        if not (origins or sites) or (scope["type"] == "http" and scope["method"] in SAFE_METHODS):
            return None
        # Two lines of one make no origin; neither do they make a known site.
        origin, site = (b",".join(lines).decode("latin-1").strip().lower() for lines in (origins, sites))
        if not self._rules.allows_origin(origin, site, place, scheme):
            return problem.problem(403, _WRONG_ORIGIN)
        return None
