"""A request as a curl command. The body and the credentials are not stored, so that the command has places for them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

_METHODS = frozenset({"POST", "PUT", "PATCH"})


def curl_of(claim: Mapping[str, Any], base_url: str) -> str | None:
    """Return the command that repeats an HTTP operation with its key, or None if its endpoint is not known."""
    method, _, path = (claim["endpoint"] or "").partition(" ")
    if method not in _METHODS or not path.startswith("/"):
        return None
    lines = [
        f"curl -i -X {method} {shlex.quote(base_url.rstrip('/') + path)}",
        f"-H {shlex.quote('Idempotency-Key: ' + claim['key'])}",
        "-H 'Authorization: Bearer …'",
        "-H 'Content-Type: application/json'",
        "--data @request.json",
    ]
    return " \\\n  ".join(lines)
