"""What a request needs to be let in, from its method and path alone."""

from __future__ import annotations

from typing import Literal, TypeAlias

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

Needed: TypeAlias = Literal["open", "read", "write", "admin", "read or admin"]

# Says nothing that is worth a token, or has to work for whoever has none yet.
_OPEN = frozenset({"/", "/healthz", "/readyz", "/skill.md", "/openapi.json", "/docs", "/favicon.ico"})
_OPEN_UNDER = ("/console/",)
_ADMIN_UNDER = ("/v1/admin/", "/api/v1/claims/", "/policies/")
# Looking at it is reading, also for who may change it; changing it changes what happens to everybody.
_ADMIN_TO_CHANGE = frozenset({"/test-mode"})


def scope_needed(method: str, path: str) -> Needed:
    """What a request needs, from its method and path alone. A WebSocket counts as GET."""
    plain = path.rstrip("/") or "/"
    if f"{plain}/".startswith(_ADMIN_UNDER):
        return "admin"
    if plain in _ADMIN_TO_CHANGE:
        return "read or admin" if method in SAFE_METHODS else "admin"
    if method in SAFE_METHODS:
        return "open" if path in _OPEN or path.startswith(_OPEN_UNDER) else "read"
    return "write"


def scopes_of(needed: Needed) -> list[str]:
    """The scopes of which one is enough; none where nothing is needed."""
    return [] if needed == "open" else needed.split(" or ")
