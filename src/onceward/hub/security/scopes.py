"""Scopes that requests require, by method and path.

The scopes `read`, `write` and `admin` cover the whole hub. A narrowed scope such as `read:topics` covers one part of it,
and `metrics` covers `/metrics` alone. No scope implies another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

Needed: TypeAlias = Literal["open", "read", "write", "admin", "read or admin", "read or metrics"]

# Public pages: they show no data, or must work before the client has a token.
_OPEN = frozenset({"/", "/healthz", "/readyz", "/skill.md", "/openapi.json", "/docs", "/favicon.ico"})
_OPEN_UNDER = ("/console/",)
_ADMIN_UNDER = ("/v1/admin/", "/api/v1/claims/", "/api/v1/audit/", "/api/v1/settings/", "/policies/")
# Changing this affects every user, so it needs scope admin. Scope admin is enough to read it, too.
_ADMIN_TO_CHANGE = frozenset({"/test-mode"})
_METRICS = "metrics"

# The part of the hub that a path belongs to. Every path that is not public has one.
_PART_UNDER: Mapping[str, str] = {
    "/api/v1/topics/": "topics",
    "/v1/tasks/": "tasks",
    "/v1/attachments/": "tasks",
    "/api/v1/events/": "events",
    "/ws/": "events",
    "/normalize/": "ingest",
    "/db/": "ingest",
    "/policies/": "ingest",
    "/test-mode/": "ingest",
    "/chat/": "turns",
    "/turns/": "turns",
    "/api/v1/claims/": "claims",
    "/v1/admin/": "storage",
    "/api/v1/audit/": "audit",
    "/api/v1/settings/": "settings",
    "/metrics/": _METRICS,
}
# The scopes that each part can be narrowed to: those that its requests need.
NARROWABLE: Mapping[str, tuple[str, ...]] = {
    "topics": ("read", "write"),
    # Scope admin allows an upload whose bytes contradict its media type.
    "tasks": ("read", "write", "admin"),
    "events": ("read",),
    "ingest": ("read", "write", "admin"),
    "turns": ("read", "write"),
    "claims": ("admin",),
    "storage": ("admin",),
    "audit": ("admin",),
    "settings": ("admin",),
}
# The scopes that a token can have.
GRANTABLE = (
    "read",
    "write",
    "admin",
    _METRICS,
    *(f"{scope}:{part}" for part, scopes in NARROWABLE.items() for scope in scopes),
)


def scope_needed(method: str, path: str) -> Needed:
    """Return the scope that a request requires. A WebSocket counts as GET."""
    plain = path.rstrip("/") or "/"
    if f"{plain}/".startswith(_OPEN_UNDER):
        # The console checks its cookie itself, for every method.
        return "open"
    if f"{plain}/".startswith(_ADMIN_UNDER):
        return "admin"
    if plain in _ADMIN_TO_CHANGE:
        return "read or admin" if method in SAFE_METHODS else "admin"
    if method in SAFE_METHODS:
        if path in _OPEN:
            return "open"
        return "read or metrics" if plain == "/metrics" else "read"
    return "write"


def scopes_of(needed: Needed) -> list[str]:
    """Return the scopes of which one is enough, or none for public pages."""
    return [] if needed == "open" else needed.split(" or ")


def part_of(path: str) -> str:
    """Return the part of the hub that a path belongs to, or an empty text. A narrowed scope never covers the latter."""
    own = f"{path.rstrip('/')}/"
    return next((part for under, part in _PART_UNDER.items() if own.startswith(under)), "")


def scopes_in(part: str, granted: Iterable[str]) -> frozenset[str]:
    """Return the scopes that a token has in a part of the hub: its whole scopes, and those narrowed to the part."""
    suffix = f":{part}"
    return frozenset(scope.removesuffix(suffix) if part else scope for scope in granted)


def sufficient_scopes(needed: Needed, part: str) -> list[str]:
    """Return all scopes of which one is enough, narrowed ones included."""
    whole = scopes_of(needed)
    return [*whole, *(f"{scope}:{part}" for scope in whole if scope in NARROWABLE.get(part, ()))]
