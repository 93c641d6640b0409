"""The checks of a running hub, over its API. Doubts, test mode, quota and retention need a token with scope admin."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from onceward.errors import Forbidden, OncewardError, Unauthorized
from onceward.hub.client import BlockingHub, responses
from onceward.hub.client.connection import HubOptions, certificates_in
from onceward.hub.doctor.check_result import CheckResult, errors_as_problems, ok, problem, warning
from onceward.hub.doctor.ledger import DOUBT_SECONDS_MAX
from onceward.hub.doctor.retention import retention_checks
from onceward.hub.doctor.server import clock_check
from onceward.hub.doctor.usage import quota_check
from onceward.hub.security.hosts import is_loopback

_SECONDS = 10.0
# The header `Date` has whole seconds.
_ROUNDING_SECONDS = 0.5
# The size of a page. More doubts are counted as "at least".
_DOUBTS_SHOWN_MAX = 500
_NO_HUB = "check that the URL is that of a hub, and that nothing in front of it answers in its place"
_ADMIN = "give --token a token with scope admin: onceward token create NAME --scope admin"


def check_hub(
    url: str, token: str | None, clock: Callable[[], float] = time.time, ca_file: Path | None = None
) -> Iterator[CheckResult]:
    """Check a running hub.

    Args:
        url: The URL of the hub.
        token: A token of the hub, or None.
        clock: This machine's clock, in seconds since 1970.
        ca_file: A file with the certificates that an https hub may be signed by. By default, those of the system.

    Yields:
        One result for each check.
    """
    options: HubOptions = (
        {"deadline_seconds": _SECONDS} if ca_file is None else {"deadline_seconds": _SECONDS, "ca_file": ca_file}
    )
    verify = True if ca_file is None else certificates_in(ca_file)
    # The client checks the URL. It raises `InvalidOption` before anything is sent.
    with (
        BlockingHub(url, token, **options) as hub,
        httpx.Client(base_url=url, timeout=_SECONDS, verify=verify) as client,
    ):
        try:
            answer = client.get("/healthz")
        except httpx.HTTPError as error:
            yield problem("hub", f"{url} does not respond: {error}", _advice(error))
            return
        if not _is_alive(answer):
            yield problem("hub", f"{url}: {responses.error_of(answer)}", _NO_HUB)
            return
        yield ok("hub", f"{url} responds")
        if "date" in answer.headers:
            yield from _response_errors_as_problems("hub-clock", lambda: _clock(answer, clock))
        yield from _response_errors_as_problems("version", lambda: _version(client, token))
        yield from _response_errors_as_problems("tokens", lambda: _tokens(client, url))
        yield from errors_as_problems("stores", "see the log of the hub", lambda: _stores(hub))
        yield from _as_admin("doubts", lambda: _doubts(hub, clock))
        yield from _as_admin("test-mode", lambda: _test_mode(hub))
        yield from _as_admin("quota", lambda: _quota(hub))
        yield from _as_admin("retention", lambda: _retention(hub))


def _is_alive(answer: httpx.Response) -> bool:
    """Return whether a response to /healthz is that of a hub. A proxy may have a page for every path."""
    try:
        return answer.status_code == httpx.codes.OK and answer.json() == {"status": "ok"}
    except (ValueError, RecursionError):
        return False


def _response_errors_as_problems(check: str, run: Callable[[], Iterator[CheckResult]]) -> Iterator[CheckResult]:
    """Yield the results of a check. No response, or one that cannot be read, is a problem."""
    try:
        yield from run()
    except httpx.HTTPError as error:
        yield problem(check, f"no response: {error or type(error).__name__}", "see the log of the hub")
    except OncewardError as error:
        yield problem(check, str(error), _NO_HUB)


def _clock(answer: httpx.Response, clock: Callable[[], float]) -> Iterator[CheckResult]:
    try:
        server_seconds = parsedate_to_datetime(answer.headers["date"]).timestamp() + _ROUNDING_SECONDS
    except (ValueError, OverflowError):
        return
    yield clock_check("hub-clock", server_seconds, clock)


def _advice(error: Exception) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "give --ca-file the certificate of the authority that signed the hub's certificate"
    return "start the hub, or correct the URL"


def _version(client: httpx.Client, token: str | None) -> Iterator[CheckResult]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = client.get("/openapi.json", headers=headers)
    if answer.status_code != httpx.codes.OK:
        return
    theirs, own = responses.read(answer, lambda body: str(body["info"]["version"])), version("onceward")
    if theirs == own:
        yield ok("version", f"the hub and this command have version {own}")
    else:
        yield warning("version", f"the hub has version {theirs}, and this command {own}", "use the same version")


def _tokens(client: httpx.Client, url: str) -> Iterator[CheckResult]:
    """Find out whether a caller without a token may read."""
    status = client.get("/v1/tasks", params={"limit": 1}).status_code
    if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        yield ok("tokens", "the hub requires a token")
    elif status != httpx.codes.OK:
        yield warning(
            "tokens",
            f"not checked: {url} responds {status} to a caller without a token",
            "correct the cause, which is in the log of the hub, and run this command again",
        )
    elif is_loopback(urlsplit(url).hostname or ""):
        yield ok("tokens", "the hub requires no token from this machine")
    else:
        yield problem(
            "tokens",
            f"{url} responds {status} to a caller without a token",
            "create a token, and do not let a proxy on the hub's machine hide where requests come from",
        )


def _stores(hub: BlockingHub) -> Iterator[CheckResult]:
    found = hub.readyz()
    bad = {name: state for name, state in found.checks.items() if state != "ok"}
    if found.ready and not bad:
        yield ok("stores", f"reachable: {', '.join(sorted(found.checks))}")
    else:
        shown = ", ".join(f"{name}: {state}" for name, state in sorted(bad.items()))
        yield problem("stores", f"not ready: {shown}", "run onceward doctor on the hub's machine, and see its log")


def _as_admin(check: str, run: Callable[[], Iterator[CheckResult]]) -> Iterator[CheckResult]:
    try:
        yield from run()
    except (Unauthorized, Forbidden):
        yield warning(check, "not checked: the hub requires a token with scope admin", _ADMIN)
    except OncewardError as error:
        yield problem(check, str(error), "see the log of the hub")


def _doubts(hub: BlockingHub, clock: Callable[[], float]) -> Iterator[CheckResult]:
    page = hub.claims.list(status="in_doubt", limit=_DOUBTS_SHOWN_MAX, oldest=True)
    if not page.claims:
        yield ok("doubts", "no claim is in doubt", count=0)
        return
    age = clock() - datetime.fromisoformat(page.claims[0].claimed_at).timestamp()
    count = len(page.claims)
    claims = "1 claim is" if count == 1 else f"{'at least ' if page.has_more else ''}{count} claims are"
    result = problem if age > DOUBT_SECONDS_MAX else warning
    yield result(
        "doubts",
        f"{claims} in doubt, the oldest since {age / 3600:.1f} hours",
        "onceward claims list --status in_doubt --oldest, then onceward claims resolve",
        count=count,
        oldest_seconds=age,
    )


def _test_mode(hub: BlockingHub) -> Iterator[CheckResult]:
    if hub.ingest.test_mode():
        yield warning("test-mode", "new entries go into the test schema", "onceward ingest test-mode off")
    else:
        yield ok("test-mode", "off")


def _quota(hub: BlockingHub) -> Iterator[CheckResult]:
    yield quota_check({one.principal: one.stored_bytes for one in hub.storage.usage()}, hub.storage.quota())


def _retention(hub: BlockingHub) -> Iterator[CheckResult]:
    settings = hub.settings()
    retain_seconds = float(settings["idempotency"]["default_ttl_hours"]["value"]) * 3600
    yield from retention_checks(retain_seconds, float(settings["turns"]["api_ttl_seconds"]["value"]))
