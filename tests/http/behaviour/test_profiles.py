"""Conformance: for each profile a table of cases, over real sockets, under every framework and on every store.

A case is a first request, the state in which it leaves its key, and a second request with its expected response. The
usual run takes each profile under ASGI and under WSGI; `make test-profiles` takes all frameworks with all stores.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from tests.backends import ONE_OF_EACH_KIND
from tests.http.behaviour.conftest import ASGI_AND_WSGI, EVERY, StartServer, few, for_each
from tests.http.behaviour.demo_server import DemoServer, is_replay, new_name
from tests.waiting import until

# Bodies. A trial ignores the names that it does not know, so these are also its plan.
ORDER = b'{"amount":1,"items":["a","b"]}'
SAME_VALUE = b'{ "items": ["a","\\u0062"], "amount": 1.0 }'
OTHER_ORDER = b'{"amount":1,"items":["b","a"]}'
WITH_NULL = b'{"amount":1,"items":["a","b"],"note":null}'
OTHER = b'{"amount":2,"items":["a","b"]}'


@dataclass(frozen=True, slots=True)
class Second:
    """The second request of a case: what differs from the first."""

    body: bytes = ORDER
    key: str | None = "same"
    endpoint: str = "same"
    query: str = ""
    content_type: str = "application/json"
    key_header: str = "Idempotency-Key"


@dataclass(frozen=True, slots=True)
class Expected:
    """The response to the second request: `runs` is how often the handler ran for both."""

    status: int
    code: str = ""
    replayed: bool = False
    retry_after: bool = False
    runs: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    state: str
    second: Second
    expected: Expected
    body: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)


REPLAYED = Expected(200, replayed=True)
RUNS_TOO = Expected(200, runs=2)


ACP_MISSING = {
    "type": "invalid_request",
    "code": "idempotency_key_required",
    "message": "Idempotency-Key header is required on all POST requests",
}
ACP_CONFLICT = {
    "type": "invalid_request",
    "code": "idempotency_conflict",
    "message": "Idempotency-Key has already been used with a different request body",
}
ACP_IN_FLIGHT = {
    "type": "invalid_request",
    "code": "idempotency_in_flight",
    "message": "A request with this Idempotency-Key is currently being processed",
}
ECHO = {"idempotency-key": "same"}

CASES: dict[str, dict[str, Case]] = {
    # draft-ietf-httpapi-idempotency-key-header-07
    "ietf": {
        "2.6 retry": Case("completed", Second(), REPLAYED),
        "2.7 another payload": Case("completed", Second(OTHER), Expected(422, "unprocessable")),
        "2.7 another payload while it runs": Case("running", Second(OTHER), Expected(422, "unprocessable")),
        "2.7 still processed": Case("running", Second(), Expected(409, "conflict", retry_after=True)),
        "2.1 quoted": Case("completed", Second(key='"same"'), REPLAYED),
        "2.1 no other header": Case("completed", Second(key_header="X-Idempotency-Key"), RUNS_TOO),
        "2.1 not a string": Case("completed", Second(key='"same'), Expected(400, "badRequest")),
        "2.7 not required": Case("completed", Second(key=None), RUNS_TOO),
        "another endpoint": Case("completed", Second(endpoint="other"), Expected(422, "unprocessable")),
        "bytes are compared": Case("completed", Second(SAME_VALUE), Expected(422, "unprocessable")),
        "a server error runs again": Case("failed", Second(), RUNS_TOO),
        "2.3 after the retention": Case("expired", Second(), RUNS_TOO),
    },
    # ACP, agentic checkout, section 6
    "acp": {
        "6.1 required": Case("completed", Second(key=None), Expected(400, "idempotency_key_required"), ACP_MISSING),
        "6.1 at most 255 characters": Case("completed", Second(key="k" * 256), Expected(400, "bad_request")),
        "6.1 per endpoint": Case("completed", Second(endpoint="other"), RUNS_TOO, headers=ECHO),
        "6.2 key order and 1.0": Case("completed", Second(SAME_VALUE), REPLAYED, headers=ECHO),
        "6.2 null is not absent": Case("completed", Second(WITH_NULL), Expected(422, "idempotency_conflict")),
        "6.2 array order": Case("completed", Second(OTHER_ORDER), Expected(422, "idempotency_conflict")),
        "6.2 only the body": Case("completed", Second(query="?a=1", content_type="text/json"), REPLAYED),
        "6.3 replay": Case("completed", Second(), REPLAYED, headers={**ECHO, "idempotent-replayed": "true"}),
        "6.4 conflict": Case("completed", Second(OTHER), Expected(422, "idempotency_conflict"), ACP_CONFLICT, ECHO),
        "6.4 conflict while it runs": Case("running", Second(OTHER), Expected(422, "idempotency_conflict")),
        "6.4 in flight": Case(
            "running", Second(), Expected(409, "idempotency_in_flight", retry_after=True), ACP_IN_FLIGHT, ECHO
        ),
        "6.5 a server error runs again": Case("failed", Second(), RUNS_TOO),
        "6.6 after the retention": Case("expired", Second(), RUNS_TOO),
    },
    # UCP, checkout over REST, and message signatures
    "ucp": {
        "cached result": Case("completed", Second(), REPLAYED),
        "mismatched body": Case("completed", Second(OTHER), Expected(409, "idempotency_conflict")),
        "raw bytes": Case("completed", Second(SAME_VALUE), Expected(409, "idempotency_conflict")),
        "only the body": Case("completed", Second(query="?a=1", content_type="text/json"), REPLAYED),
        "per operation": Case("completed", Second(endpoint="other"), RUNS_TOO),
        "not required": Case("completed", Second(key=None), RUNS_TOO),
        "in flight": Case("running", Second(), Expected(409, "idempotency_in_flight", retry_after=True)),
        "mismatched body while it runs": Case("running", Second(OTHER), Expected(409, "idempotency_conflict")),
        "malformed key": Case("completed", Second(key="a b"), Expected(400, "bad_request")),
        "a server error runs again": Case("failed", Second(), RUNS_TOO),
        "after the retention": Case("expired", Second(), RUNS_TOO),
    },
    # Stripe API v1
    "stripe": {
        "same result": Case("completed", Second(), REPLAYED, headers=ECHO),
        "other parameters": Case("completed", Second(OTHER), Expected(400, "idempotency_error"), headers=ECHO),
        "other endpoint": Case("completed", Second(endpoint="other"), Expected(400, "idempotency_error")),
        "in use": Case(
            "running",
            Second(),
            Expected(409, "idempotency_key_in_use", retry_after=True),
            headers={**ECHO, "stripe-should-retry": "true"},
        ),
        "not required": Case("completed", Second(key=None), RUNS_TOO),
        "a server error runs again": Case("failed", Second(), RUNS_TOO),
        "after the retention": Case("expired", Second(), RUNS_TOO),
    },
}

_ALL = tuple((profile, framework, store) for profile in CASES for framework in EVERY for store in ONE_OF_EACH_KIND)
SERVERS = few(
    ("ietf", "starlette", "memory"),
    ("ietf", "django-wsgi", "sqlite"),
    ("acp", "fastapi", "redis"),
    ("acp", "flask", "postgres"),
    ("ucp", "litestar", "postgres"),
    ("ucp", "django-wsgi", "redis"),
    ("stripe", "django-asgi", "sqlite"),
    ("stripe", "flask", "memory"),
    of=_ALL,
)


@pytest.mark.parametrize(("profile", "framework", "store"), SERVERS)
def test_a_profile_conforms_to_its_standard(
    start_server: StartServer, profile: str, framework: str, store: str
) -> None:
    server = start_server(framework, store, profile=profile)

    failures = [
        f"{name}: {failure}" for name, case in CASES[profile].items() if (failure := Trial(server, case).failure())
    ]

    assert not failures, "\n".join(failures)


class Trial:
    """One case on one server. Its names are its own; the texts `same` and `other` stand for them."""

    def __init__(self, server: DemoServer, case: Case) -> None:
        self._server, self._case = server, case
        self._names = {"same": new_name(), "other": new_name()}
        self._gate = new_name()
        self._rule = "brief" if case.state == "expired" else "plain"

    def failure(self) -> str:
        """Return what differs from the expected response; "" if nothing does."""
        case = self._case
        if case.state == "running":
            return self._failure_while_running()
        first = self._send(Second())
        assert first.status_code == (500 if case.state == "failed" else 200), first.text
        if case.state == "expired":
            until(lambda: not is_replay(self._send(Second())), "the retention never ended")
            return "" if self._runs == case.expected.runs else f"ran {self._runs} times"
        return self._difference(self._send(case.second))

    def _failure_while_running(self) -> str:
        gates = self._server.gates
        first = threading.Thread(target=self._send, args=(Second(),))
        first.start()
        try:
            gates.wait_until_reached(self._gate)
            return self._difference(self._send(self._case.second))
        finally:
            gates.open(self._gate)
            first.join()

    def _send(self, request: Second) -> httpx.Response:
        key = request.key and request.key.replace("same", self._names["same"])
        headers = {"Authorization": "Bearer ada-token", "Content-Type": request.content_type}
        if key is not None:
            headers[request.key_header] = key
        path = f"/api/trials/{self._rule}/{self._names[request.endpoint]}{request.query}"
        body = self._planned(request.body) if self._case.state in ("running", "failed") else request.body
        return self._server.client.post(path, content=body, headers=headers)

    def _planned(self, body: bytes) -> bytes:
        """Return the body with the plan of the trial in it: fail once, or wait at the gate."""
        turns = [{"status": 500}, {}] if self._case.state == "failed" else [{"gate": self._gate}, {}]
        return body[:-1] + b',"turns":' + json.dumps(turns).encode() + b"}"

    @property
    def _runs(self) -> int:
        return sum(self._server.runs(name) for name in self._names.values())

    def _difference(self, got: httpx.Response) -> str:
        expected = self._case.expected
        seen = (got.status_code, is_replay(got), "retry-after" in got.headers, self._runs)
        wanted = (expected.status, expected.replayed, expected.retry_after, expected.runs)
        if seen != wanted:
            return f"got (status, replayed, Retry-After, runs) {seen}, expected {wanted}: {got.text[:200]}"
        if expected.code and _code(got) != expected.code:
            return f"got the code {_code(got)!r}, expected {expected.code!r}"
        if self._case.body is not None and got.json() != self._case.body:
            return f"got the body {got.text}, expected {self._case.body}"
        for name, value in self._case.headers.items():
            if got.headers.get(name) != value.replace("same", self._names["same"]):
                return f"got {name}: {got.headers.get(name)!r}, expected {value!r}"
        return ""


def _code(response: httpx.Response) -> str:
    content = response.json()
    error = content.get("error", content)
    return str(error.get("code") or error["type"])


@pytest.mark.parametrize(
    ("profile", "code"),
    [("ietf", "unavailable"), ("acp", "unavailable"), ("ucp", "unavailable"), ("stripe", "unavailable")],
)
def test_a_store_that_is_down_gets_503_in_the_format_of_the_profile(
    start_server: StartServer, profile: str, code: str
) -> None:
    server = start_server("starlette", "redis://127.0.0.1:1/0", profile=profile, store_seconds=0.1)

    response = server.trial(new_name(), new_name())

    assert response.status_code == 503
    assert _code(response) == code
    assert int(response.headers["retry-after"]) >= 1


@for_each(ASGI_AND_WSGI, few("sqlite", "redis", of=ONE_OF_EACH_KIND))
def test_a_refused_key_stays_refused_after_the_purge(start_server: StartServer, framework: str, store: str) -> None:
    server = start_server(framework, store, after_retention="refuse", purge_seconds=0.05)
    name, key = new_name(), new_name()
    assert server.trial(name, key, rule="brief").status_code == 200

    until(lambda: server.trial(name, key, rule="brief").status_code == 409, "the retention never ended")
    for _ in range(5):
        response = server.trial(name, key, rule="brief")

        assert (response.status_code, response.json()["code"]) == (409, "expired")
        assert "retry-after" not in response.headers
    assert server.trial(name, key, {"status": 201}, rule="brief").status_code == 422
    assert server.runs(name) == 1
