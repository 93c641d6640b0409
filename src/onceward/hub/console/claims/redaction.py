"""Limits for visitors without the scope admin: no whole keys that clients chose, no results, no recovery points.

The API gives claims to admins only. The console shows their state to readers, too, as the events and the log do: with the
beginning of a key. A reader who knows the whole key finds its operation by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceward.core.key import short_key

if TYPE_CHECKING:
    from onceward.hub.console.visit import Visit


def redact_claim(visit: Visit, claim: dict[str, Any], known: str = "") -> dict[str, Any]:
    """Return a claim as the visitor may see it. `known` is a key that they have given themselves."""
    key = claim["key"] if visit.sees_secrets or claim["key"] == known else short_key(claim["key"])
    return {**claim, "is_open": key == claim["key"], "key": key}
