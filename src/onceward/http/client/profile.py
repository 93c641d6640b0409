"""Profiles of the client: how each standard marks a request that still runs, and what a client does without a response.

    profile   409 is sent again                                       echo       without a response
    ietf      with `Retry-After`                                      none       send the request again
    acp       code `idempotency_in_flight`                            checked    send the request again
    ucp       code `idempotency_in_flight`                            none       GET the resource, then send it again
    stripe    code `idempotency_key_in_use`, `Stripe-Should-Retry`    checked    send the request again

Under `acp` and `stripe`, a 409 without a code, such as that of a proxy, is sent again with `Retry-After`.

A conflict, that is a key that was used with another request, is never sent again, whatever its status and headers.
`http/keyed/profiles.py` has the server's side, with the revisions of the standards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from onceward.core.record import record
from onceward.errors import InvalidOption


@record(frozen=True, slots=True)
class ClientProfile:
    """The client's view of a standard.

    Attributes:
        running: The code of a 409 that says that the first request still runs; "" if only `Retry-After` says so.
        coded: Whether a 409 without a known code is a conflict, even with `Retry-After`.
        echoes: Whether responses carry the key of their request.
        gets_first: Whether the client reads the state of the resource before it sends a request again.
    """

    running: str = ""
    coded: bool = False
    echoes: bool = False
    gets_first: bool = False


CLIENT_PROFILES: Mapping[str, ClientProfile] = {
    "ietf": ClientProfile(),
    "acp": ClientProfile("idempotency_in_flight", echoes=True),
    "ucp": ClientProfile("idempotency_in_flight", coded=True, gets_first=True),
    "stripe": ClientProfile("idempotency_key_in_use", echoes=True),
}
PLAIN = ClientProfile()

# UCP: the operations of a checkout, and the states that show that they were processed.
_PROCESSED = {
    "complete": frozenset({"completed", "complete_in_progress"}),
    "cancel": frozenset({"canceled"}),
}


def client_profile(name: object) -> ClientProfile:
    """Return a profile by its name. Raises `InvalidOption`."""
    if name is None:
        return PLAIN
    found = CLIENT_PROFILES.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidOption(f"profile= must be one of {', '.join(CLIENT_PROFILES)}, got {name!r}")
    return found


def still_runs(profile: ClientProfile, code: str, retry_after: float | None, should_retry: str) -> bool:
    """Return whether a 409 says that the first request still runs, so that a retry may get its response.

    `code` is the code in the body, or "". `should_retry` is the header `Stripe-Should-Retry`, or "".
    """
    if should_retry in ("true", "false") and profile is CLIENT_PROFILES["stripe"]:
        return should_retry == "true"
    if profile.running and (code or profile.coded):
        return code == profile.running
    return retry_after is not None


def code_in(body: bytes) -> str:
    """Return the code of an error body in any of the formats; "" if it has none."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    error = content.get("error")
    inner = error if isinstance(error, dict) else content
    code = inner.get("code") or inner.get("type")
    return code if isinstance(code, str) else ""


def state_path(path: str) -> str:
    """Return the path whose GET shows the state of the resource that a request changes (UCP)."""
    resource, _, operation = path.rstrip("/").rpartition("/")
    return resource if operation in _PROCESSED else path


def shows_processed(path: str, status: int, body: bytes) -> bool:
    """Return whether the response of that GET shows that the request was processed, so that it is not sent again."""
    states = _PROCESSED.get(path.rstrip("/").rpartition("/")[2])
    if states is None or status // 100 != 2:  # noqa: PLR2004  # a success
        return False
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return False
    shown = content.get("status") if isinstance(content, dict) else None
    return isinstance(shown, str) and shown in states
