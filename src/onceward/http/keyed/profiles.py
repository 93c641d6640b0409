"""Profiles: the options that make the middleware conform to a standard, one table for each.

A profile sets only options that can also be given one by one. An explicit option wins over the profile. Everything that
a table does not mention is the default of the middleware.

    IETF    draft-ietf-httpapi-idempotency-key-header-07 (October 2025)
    ACP     Agentic Commerce Protocol, agentic checkout, section 6; release 2026-04-17
    UCP     Universal Commerce Protocol, checkout over REST, and message signatures, "Replay protection"; release
            2026-04-08 and the working version of August 2026, which added the comparison of the body's bytes
    STRIPE  Stripe API v1, "Idempotent requests", as documented in 2026
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from onceward.errors import InvalidOption
from onceward.http.problem_formats import acp_error, problem_json, stripe_error, ucp_error
from onceward.http.request.key_source import header

_HOUR_SECONDS = 3600.0
_KEY = header("Idempotency-Key")

IETF: Mapping[str, Any] = MappingProxyType({
    # 2.1: the header is Idempotency-Key, and no other.
    "key": _KEY,
    # 2.7: 400 without a key where one is required, 409 while the first request runs, 422 for another request, each
    # as a problem. Whether a key is required is for the application to say: `required=True`.
    "problem": problem_json,
    # 2.4: the fingerprint may be of the whole request. 2.2 and 5: a key belongs to one client.
    "compare": "bytes",
    "scope": "principal",
    # 2.3: the server says how long it keeps a key. The default, 24 hours, stays. Then the request runs again.
    "after_retention": "run",
    "echo": False,
})  # fmt: skip

ACP: Mapping[str, Any] = MappingProxyType({
    # 6.1: the header is required on every POST: 400 `idempotency_key_required`. The API has no other method that
    # changes anything. "Opaque string, max 255 characters" is the default.
    "key": _KEY,
    "required": True,
    "methods": ("POST",),
    # 6.1: keys are scoped to the authenticated identity and the endpoint path.
    "scope": "endpoint",
    # 6.2: equality of the JSON value of the body only. `1.0` equals `1`; null differs from absent.
    "compare": "json",
    # 6.4: {type, code, message}; 422 `idempotency_conflict`, 409 `idempotency_in_flight` with Retry-After.
    "problem": acp_error,
    # 3.1: the response echoes the key. 6.3: `Idempotent-Replayed: true` is the default.
    "echo": True,
    # 6.5: a 5xx is never stored, which is the default. 6.6: kept for at least 24 hours, then a new request.
    "retain_seconds": 24 * _HOUR_SECONDS,
    "after_retention": "run",
})  # fmt: skip

UCP: Mapping[str, Any] = MappingProxyType({
    # REST binding: the header is Idempotency-Key. "SHOULD support" it: a request without a key runs.
    "key": _KEY,
    # Signatures, "Uniqueness: per client, per operation type".
    "scope": "endpoint",
    # Signatures, "Payload matching": the SHA-256 of the raw bytes of the body, and nothing else.
    "compare": "body",
    # Overview, "Protocol errors": {code, content}; 409 for a key that is used with another payload. The standard does
    # not mention a request that still runs: 409 `idempotency_in_flight` with Retry-After. Storage down: 503.
    "problem": ucp_error,
    # Signatures, "Server storage": minimum 24 hours, recommended 48 hours.
    "retain_seconds": 48 * _HOUR_SECONDS,
    "after_retention": "run",
    "echo": False,
})  # fmt: skip

STRIPE: Mapping[str, Any] = MappingProxyType({
    # All POST requests accept a key. It is not required: Stripe's clients send one on their own when they retry.
    "key": _KEY,
    "methods": ("POST",),
    # A key is used once per account, on whichever endpoint: another endpoint or other parameters are an error.
    "scope": "principal",
    "compare": "bytes",
    # {error: {type, code, message}}; 400 `idempotency_error` for another request, 409 `idempotency_key_in_use`.
    "problem": stripe_error,
    # Responses carry Idempotency-Key.
    "echo": True,
    # Keys may be removed after 24 hours; then a new request runs. Not adopted: Stripe also stores a 500. Here a retry
    # after a 5xx runs again, or is in doubt with `on_crash="hold"`.
    "retain_seconds": 24 * _HOUR_SECONDS,
    "after_retention": "run",
})  # fmt: skip

PROFILES: Mapping[str, Mapping[str, Any]] = MappingProxyType({"ietf": IETF, "acp": ACP, "ucp": UCP, "stripe": STRIPE})


def profile_options(name: object) -> Mapping[str, Any]:
    """Return the options of a profile. Raises `InvalidOption`."""
    found = PROFILES.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidOption(f"profile= must be one of {', '.join(PROFILES)}, got {name!r}")
    return found
