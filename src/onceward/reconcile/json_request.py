"""One GET request for JSON, with a deadline and a size limit, and without redirects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from onceward.errors import missing_extra
from onceward.reconcile.evidence import NoEvidence

# A verdict keeps at most 64 KiB. A response with a list may be larger, but not without limit.
BODY_BYTES_MAX = 4 * 1024 * 1024
FOUND, ACCEPTED, NOT_FOUND = 200, 202, 404


def require_httpx(module: str) -> None:
    """Raise an error that names the extra if httpx is not installed."""
    try:
        import httpx  # noqa: F401, PLC0415  # the extra `client`
    except ModuleNotFoundError as error:
        raise missing_extra(error, module, "client") from error


async def get_json(
    url: str, headers: Mapping[str, str], timeout_seconds: float, params: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Return the status and the JSON of a response with the status 200, 202 or 404; the JSON of a 404 is None.

    Everything else raises `NoEvidence`: other statuses, redirects, timeouts, lost connections and bodies that are not JSON.
    A page in HTML also does: a gateway that cannot reach the API sends one with any status.
    """
    import httpx  # noqa: PLC0415  # the extra `client`

    try:
        async with (
            asyncio.timeout(timeout_seconds),
            httpx.AsyncClient(follow_redirects=False, timeout=timeout_seconds) as client,
            client.stream("GET", url, params=params, headers={"Accept": "application/json", **headers}) as response,
        ):
            if response.status_code not in {FOUND, ACCEPTED, NOT_FOUND}:
                raise NoEvidence(f"the provider responded with the status {response.status_code}")
            if "html" in response.headers.get("content-type", ""):
                raise NoEvidence(f"the response with the status {response.status_code} is a page, not JSON")
            if response.status_code == NOT_FOUND:
                return NOT_FOUND, None
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise NoEvidence(f"the response has more than {BODY_BYTES_MAX} bytes")
    except TimeoutError as error:
        raise NoEvidence(f"the provider did not respond within {timeout_seconds:g} seconds") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NoEvidence(f"the request failed: {type(error).__name__}") from error
    return response.status_code, json_in(body)


def json_in(body: bytes | bytearray) -> Any:
    """Parse the body of a response, or raise `NoEvidence`."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoEvidence("the response is not JSON") from error
