"""Checks of Host and Origin, against DNS rebinding and cross-site requests.

A web page can point its own host name at the hub's address (DNS rebinding) or send requests across sites. Both are
visible in headers that no page can forge: `Host`, `Origin` and `Sec-Fetch-Site`. A URL with NUL is refused here, too:
the hub stores no text with NUL, and PostgreSQL does not accept it in a query.
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
from onceward.http.asgi_types import App, Receive, Send
from onceward.http.problem import Response
from onceward.hub.security.scopes import SAFE_METHODS
from onceward.hub.web.problems import refuse

# Response headers that a page of an allowed origin may read.
EXPOSED_HEADERS = ("Idempotent-Replayed", "Retry-After", "X-Request-ID", "ETag", "Location")

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # compared, not bound to
_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_WEB_SCHEMES = {"ws": "http", "wss": "https"}
# The longest host name (255), with brackets or a port.
_HOST_CHARACTERS_MAX = 262
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.ASCII)
_ORIGIN = re.compile(r"(https?)://(.+)", re.ASCII)

_NO_HOST = "A request must have exactly one Host header, with a host name or address."
_NUL = "The URL must not contain a NUL character."
_WRONG_HOST = (
    "The Host header names {!r}. This hub accepts localhost, loopback addresses, {} and the names in"
    " auth.allowed_hosts. To use this name, add it there (onceward.toml, or ONCEWARD_AUTH__ALLOWED_HOSTS)."
)
_WRONG_ORIGIN = (
    "The request comes from a page of another origin. To allow it, add that origin to auth.allowed_origins"
    " (onceward.toml, or ONCEWARD_AUTH__ALLOWED_ORIGINS)."
)


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host and its port, or 0 without a port."""

    name: str
    port: int = 0

    def at(self, scheme: str) -> HostPort:
        """Fill in the scheme's default port if there is none."""
        return self if self.port else HostPort(self.name, _DEFAULT_PORTS.get(scheme, 0))


def host_port_of(text: str) -> HostPort | None:
    """Parse a Host header. None if it is malformed."""
    return None if len(text) > _HOST_CHARACTERS_MAX else _host_port_of(text)


@functools.lru_cache(maxsize=256)
def _host_port_of(text: str) -> HostPort | None:
    found = _HOST.fullmatch(text.strip().lower())
    if found is None:
        return None
    name = found[1].removesuffix(".")
    address = address_of(name)
    if not name or (name.startswith("[") and address is None):
        return None
    return HostPort(name if address is None else str(address), int(found[2] or 0))


@functools.lru_cache(maxsize=256)
def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address, with or without brackets. An IPv4-mapped IPv6 address becomes IPv4. None for other text."""
    try:
        address = ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_loopback(text: str) -> bool:
    address = address_of(text)
    return text == "localhost" if address is None else address.is_loopback


@dataclass(frozen=True, slots=True)
class HostRules:
    """Allowed hosts and origins, parsed once."""

    hosts: frozenset[HostPort]
    # `.example.com` for `*.example.com`.
    suffixes: frozenset[HostPort]
    origins: frozenset[tuple[str, HostPort]]
    any_address: bool

    def allows_host(self, host: HostPort, scheme: str) -> bool:
        if is_loopback(host.name) or HostPort(host.name) in self.hosts or host.at(scheme) in self.hosts:
            return True
        if self.any_address and address_of(host.name) is not None:
            return True
        return any(
            host.name.endswith(suffix.name) and suffix.port in {0, host.at(scheme).port} for suffix in self.suffixes
        )

    def allows_origin(self, origin: str, site: str, host: HostPort, scheme: str) -> bool:
        """Return whether a page of this origin may write. No origin means no page, or one of the hub's own pages."""
        if not origin:
            return site in {"", "none", "same-origin"}
        if origin == "null":
            # Browsers send this for the forms of pages with `Referrer-Policy: no-referrer`, as ours have, and for pages
            # without an origin. Only the former are from the same origin.
            return site == "same-origin"
        page_origin = origin_of(origin)
        if page_origin is None:
            return False
        if page_origin in self.origins:
            return True
        scheme = _WEB_SCHEMES.get(scheme, scheme)
        return page_origin == (scheme, host.at(scheme)) and site in {"", "none", "same-origin"}


def origin_of(text: str) -> tuple[str, HostPort] | None:
    """Parse an origin into scheme and host. None for `null` and for anything malformed."""
    found = _ORIGIN.fullmatch(text.strip().lower())
    host = None if found is None else host_port_of(found[2])
    return None if found is None or host is None else (found[1], host.at(found[1]))


def rules_of(allowed_hosts: Iterable[str], allowed_origins: Iterable[str], bound: str) -> HostRules:
    """Parse the rules: `*.example.com` allows every name under it, and a name without a port allows every port."""
    allowed = tuple(allowed_hosts)
    plain = [host_port_of(text) for text in allowed if not text.startswith("*.")]
    under = [host_port_of(text[2:]) for text in allowed if text.startswith("*.")]
    own = None if bound in _WILDCARDS else host_port_of(f"[{bound}]" if ":" in bound else bound)
    return HostRules(
        hosts=frozenset(host for host in (*plain, own) if host is not None),
        suffixes=frozenset(HostPort(f".{host.name}", host.port) for host in under if host is not None),
        origins=frozenset(origin for text in allowed_origins if (origin := origin_of(text)) is not None),
        # DNS rebinding needs a host name. A client that uses an IP address reaches the machine that has it.
        any_address=bound in _WILDCARDS and not allowed,
    )


class HostsMiddleware:
    """ASGI middleware that refuses other hosts with 400, and writes from pages of other origins with 403.

    `bound` is the address that the hub listens on. Pages of allowed origins also get the CORS headers that let them
    read the responses.
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
        self._own_address = "any IP address" if self._rules.any_address else "the address it listens on"
        if origins:
            self.app = CORSMiddleware(
                app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED_HEADERS
            )

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"}:
            refused = self._refused(scope)
            if refused is not None:
                await refuse(scope, receive, send, refused)
                return
        await self.app(scope, receive, send)

    def _refused(self, scope: Any) -> Response | None:
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
        host = host_port_of(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
        if host is None:
            return problem.problem(400, _NO_HOST)
        scheme = scope.get("scheme", "http")
        if not self._rules.allows_host(host, scheme):
            return problem.problem(400, _WRONG_HOST.format(host.name, self._own_address))
        if not (origins or sites) or (scope["type"] == "http" and scope["method"] in SAFE_METHODS):
            return None
        # Repeated headers are joined, which gives neither a valid origin nor a known site.
        origin, site = (b",".join(lines).decode("latin-1").strip().lower() for lines in (origins, sites))
        if not self._rules.allows_origin(origin, site, host, scheme):
            return problem.problem(403, _WRONG_ORIGIN)
        return None
