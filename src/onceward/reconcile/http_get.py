"""Ask an HTTP API: `reconcile=http_get("https://api.example.com/batches/{recovery_point[batch_id]}")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias
from urllib.parse import quote

from onceward.core.claim import Entry
from onceward.core.verdict import Open, Verdict
from onceward.errors import InvalidOption
from onceward.reconcile.entry_template import EntryTemplate
from onceward.reconcile.evidence import FoundFunction, Hook, NoEvidence, absent, check_options, hook, verdict_of
from onceward.reconcile.json_request import ACCEPTED, NOT_FOUND, get_json, require_httpx

Headers: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str]]


def http_get(
    url: str | Callable[[Entry], str],
    *,
    found: FoundFunction | None = None,
    final_after_seconds: float | None = None,
    headers: Headers | None = None,
    timeout_seconds: float = 10.0,
) -> Hook:
    """Return a reconcile hook that asks an HTTP API for the result of the effect.

    A response with the status 200 and JSON is evidence, and 202 means pending. A 404 means pending until
    `final_after_seconds` have passed, and not committed afterwards. Everything else (redirects, timeouts, 401, 403, 429,
    5xx, a body that is not JSON, an HTML page) means unknown and is logged.

    Args:
        url: The address of the result: a template with `{key}`, `{version}`, `{attempt}`, `{recovery_point}` or
            `{recovery_point[name]}`, or a function of the entry. Values in a template are percent-encoded.
        found: A function of the JSON, `def` or `async def`. It returns a verdict; True for committed with the JSON as
            the value; False for pending; or the value of the effect. By default, the JSON is the value.
        final_after_seconds: How long after the claim began a request of it can still be accepted. Set it only if that
            is certain: it includes the time that the effect may run before it sends its request. Without it, a 404
            never means not committed.
        headers: Headers of the request, or a function that returns them.
        timeout_seconds: How long to wait for the whole response.

    Returns:
        The hook, an `async def` function of the entry.

    Raises:
        InvalidOption: If an option is not valid.
        ModuleNotFoundError: If the extra `client` is not installed.
    """
    check_options(timeout_seconds, final_after_seconds, found)
    require_httpx("onceward.reconcile.http_get")
    address = url if callable(url) else _template(url)

    async def ask(entry: Entry) -> Verdict:
        status, data = await get_json(_checked(address(entry)), _current(headers), timeout_seconds)
        if status == NOT_FOUND:
            return absent(entry, final_after_seconds)
        if status == ACCEPTED:
            return Open.PENDING
        return await verdict_of(found, data)

    return hook("http_get", ask)


def _template(url: str) -> Callable[[Entry], str]:
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise InvalidOption(f"url must be a template that begins with https:// or http://, or a function, not {url!r}")
    return EntryTemplate("url", url, lambda value: quote(value, safe="")).fill


def _checked(url: object) -> str:
    if not isinstance(url, str):
        raise NoEvidence(f"the function of url= returned {type(url).__name__}, not a string")
    return url


def _current(headers: Headers | None) -> Mapping[str, str]:
    return (headers() if callable(headers) else headers) or {}
