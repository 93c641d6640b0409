"""One request over its own socket, and its complete response. A cut connection gives no response."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

ANSWER_SECONDS_MAX = 60.0


class NoResponseError(OSError):
    """The connection ended before the response did."""


class RawResponse(NamedTuple):
    """A complete response."""

    status: int
    replayed: bool
    retry_after: str | None
    body: bytes

    @property
    def same(self) -> tuple[int, bytes]:
        """The parts of a response that are equal for every request with one key."""
        return self.status, self.body

    @property
    def problem(self) -> str:
        """The code of a problem response."""
        found: Any = json.loads(self.body)
        return str(found["code"])


def send_request(port: int, path: str, key: str, *, wait: int = 0, seconds: float = ANSWER_SECONDS_MAX) -> RawResponse:
    """Send a POST with this key. `wait` is the time for which a duplicate waits for the running request."""
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    if wait:
        headers["Prefer"] = f"wait={wait}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request("POST", path, json.dumps({"key": key}), headers)
        response = connection.getresponse()
        body = response.read()
    except http.client.HTTPException as error:
        raise NoResponseError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
    replayed = response.headers.get("idempotent-replayed") == "true"
    return RawResponse(response.status, replayed, response.headers.get("retry-after"), body)
