"""Scopes that requests require, by method and path."""

from __future__ import annotations

from typing import Literal, TypeAlias

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

Needed: TypeAlias = Literal["open", "read", "write", "admin", "read or admin"]

# Public pages: they show no data, or must work before the client has a token.
_OPEN = frozenset({"/", "/healthz", "/readyz", "/skill.md", "/openapi.json", "/docs", "/favicon.ico"})
_OPEN_UNDER = ("/console/",)
_ADMIN_UNDER = ("/v1/admin/", "/api/v1/claims/", "/policies/")
# Changing this affects every user, so it needs scope admin. Scope admin is enough to read it, too.
_ADMIN_TO_CHANGE = frozenset({"/test-mode"})


def scope_needed(method: str, path: str) -> Needed:
    """Return the scope that a request requires. A WebSocket counts as GET."""
    plain = path.rstrip("/") or "/"
    if f"{plain}/".startswith(_ADMIN_UNDER):
        return "admin"
    if plain in _ADMIN_TO_CHANGE:
        return "read or admin" if method in SAFE_METHODS else "admin"
    if method in SAFE_METHODS:
        return "open" if path in _OPEN or path.startswith(_OPEN_UNDER) else "read"
    return "write"


def scopes_of(needed: Needed) -> list[str]:
    """Return the scopes of which one is enough, or none for public pages."""
    return [] if needed == "open" else needed.split(" or ")
