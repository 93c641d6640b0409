"""The client follows the standard of its server: codes of 409, the echo of the key, and a GET before a retry."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from tests.http.client.transports import RetryingClient
from tests.servers.scripted_http import Cut, ScriptedResponse, scripted

from onceward.errors import InvalidOption
from onceward.http.client.policy import RetryPolicy, worth_another_try
from onceward.http.client.profile import (
    CLIENT_PROFILES,
    client_profile,
    code_in,
    shows_processed,
    state_path,
    still_runs,
)


def error(status: int, body: Any, **headers: str) -> ScriptedResponse:
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    return ScriptedResponse(status, {"Content-Type": "application/json", **lines}, json.dumps(body).encode())


OK = ScriptedResponse(201, body=b"made")
ACP_BUSY = {"type": "invalid_request", "code": "idempotency_in_flight", "message": "wait"}
ACP_CONFLICT = {"type": "invalid_request", "code": "idempotency_conflict", "message": "no"}
UCP_BUSY = {"code": "idempotency_in_flight", "content": "wait"}
UCP_CONFLICT = {"code": "idempotency_conflict", "content": "no"}
STRIPE_BUSY = {"error": {"type": "invalid_request_error", "code": "idempotency_key_in_use", "message": "wait"}}
STRIPE_CONFLICT = {"error": {"type": "idempotency_error", "message": "no"}}


@pytest.mark.parametrize(
    ("profile", "first"),
    [
        ("ietf", error(409, {"code": "conflict"}, retry_after="1")),
        ("acp", error(409, ACP_BUSY, retry_after="1")),
        ("acp", error(409, ACP_BUSY)),
        ("acp", error(409, {"detail": "of a proxy"}, retry_after="1")),
        ("ucp", error(409, UCP_BUSY, retry_after="1")),
        ("stripe", error(409, STRIPE_BUSY)),
        ("stripe", error(409, {"detail": "of a proxy"}, retry_after="1")),
        ("stripe", error(409, STRIPE_CONFLICT, stripe_should_retry="true")),
    ],
)
def test_a_request_that_still_runs_is_sent_again(call: RetryingClient, profile: str, first: ScriptedResponse) -> None:
    with scripted(first, OK) as server:
        response = call("POST", server.url, content=b"x", retry={"profile": profile})

    assert response.status_code == 201
    assert len(set(server.keys)) == 1
    assert call.pauses[0] >= 1 or "retry-after" not in first.headers


@pytest.mark.parametrize(
    ("profile", "first"),
    [
        ("ietf", error(409, {"code": "conflict"})),
        ("acp", error(409, ACP_CONFLICT, retry_after="1")),
        ("acp", error(422, ACP_CONFLICT, retry_after="1")),
        ("acp", error(409, {"code": "out_of_stock"}, retry_after="1")),
        ("ucp", error(409, UCP_CONFLICT, retry_after="1")),
        ("ucp", error(409, {}, retry_after="1")),
        ("stripe", error(400, STRIPE_CONFLICT)),
        ("stripe", error(409, STRIPE_CONFLICT, retry_after="1")),
        ("stripe", error(409, STRIPE_BUSY, stripe_should_retry="false")),
    ],
)
def test_a_conflict_is_never_sent_again(call: RetryingClient, profile: str, first: ScriptedResponse) -> None:
    with scripted(first) as server:
        response = call("POST", server.url, content=b"x", retry={"profile": profile})

    assert (response.status_code, len(server.seen)) == (first.status, 1)
    assert response.content == first.body


@pytest.mark.parametrize("profile", [None, *CLIENT_PROFILES])
@pytest.mark.parametrize("status", [409, 425, 429, 500, 503])
def test_a_replayed_response_is_never_sent_again(profile: str | None, status: int) -> None:
    followed = client_profile(profile)

    assert worth_another_try(status, 1.0, None, followed, followed.running, "true")
    assert not worth_another_try(status, 1.0, "true", followed, followed.running, "true")


def test_retry_after_of_a_profile_is_waited_for(call: RetryingClient) -> None:
    with scripted(error(429, {}, retry_after="7"), error(503, {}, retry_after="9"), OK) as server:
        call("POST", server.url, content=b"x", retry={"profile": "acp"})

    assert [int(pause) for pause in call.pauses] >= [7, 9]


@pytest.mark.parametrize("profile", ["acp", "stripe"])
def test_a_response_that_echoes_another_key_counts_as_lost(call: RetryingClient, profile: str) -> None:
    other = ScriptedResponse(200, {"Idempotency-Key": "of-another-request"}, b"theirs")
    quoted = ScriptedResponse(200, {"Idempotency-Key": '"mine"'}, b"ours")

    with scripted(other, quoted) as server:
        response = call(
            "POST", server.url, content=b"x", headers={"Idempotency-Key": "mine"}, retry={"profile": profile}
        )

    assert (response.content, server.keys) == (b"ours", ["mine", "mine"])


def test_without_a_profile_the_echo_is_not_checked(call: RetryingClient) -> None:
    with scripted(ScriptedResponse(200, {"Idempotency-Key": "other"}, b"theirs")) as server:
        assert call("POST", server.url, content=b"x").content == b"theirs"


def test_under_ucp_a_get_comes_before_the_retry(call: RetryingClient) -> None:
    state = error(200, {"id": "c1", "status": "ready_for_complete"})
    with scripted(Cut(), state, OK) as server:
        response = call(
            "POST", f"{server.url}/checkout-sessions/c1/complete?a=1", content=b"{}", retry={"profile": "ucp"}
        )

    assert response.status_code == 201
    assert [(seen.method, seen.path) for seen in server.seen] == [
        ("POST", "/checkout-sessions/c1/complete?a=1"),
        ("GET", "/checkout-sessions/c1"),
        ("POST", "/checkout-sessions/c1/complete?a=1"),
    ]
    first, question, again = server.seen
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
    assert "idempotency-key" not in question.headers


@pytest.mark.parametrize("status", ["completed", "complete_in_progress"])
def test_under_ucp_a_checkout_that_is_processed_is_not_sent_again(call: RetryingClient, status: str) -> None:
    with scripted(Cut(), error(200, {"id": "c1", "status": status})) as server:
        response = call("POST", f"{server.url}/checkout-sessions/c1/complete", content=b"{}", retry={"profile": "ucp"})

    assert response.json()["status"] == status
    assert response.extensions["recovered"] is True
    assert len(server.seen) == 2


def zipped(response: ScriptedResponse) -> ScriptedResponse:
    headers = {**response.headers, "Content-Encoding": "gzip"}
    return ScriptedResponse(response.status, headers, gzip.compress(response.body))


def test_a_compressed_conflict_is_never_sent_again(call: RetryingClient) -> None:
    with scripted(zipped(error(409, ACP_CONFLICT, retry_after="1"))) as server:
        response = call("POST", server.url, content=b"x", retry={"profile": "acp"})

    assert response.json() == ACP_CONFLICT
    assert len(server.seen) == 1


def test_under_ucp_a_compressed_state_that_is_processed_ends_the_retries(call: RetryingClient) -> None:
    with scripted(Cut(), zipped(error(200, {"id": "c1", "status": "completed"}))) as server:
        response = call("POST", f"{server.url}/checkout-sessions/c1/complete", content=b"{}", retry={"profile": "ucp"})

    assert response.json()["status"] == "completed"
    assert len(server.seen) == 2


def test_a_body_that_cannot_be_decompressed_has_no_code(call: RetryingClient) -> None:
    broken = ScriptedResponse(409, {"Content-Encoding": "gzip", "Retry-After": "1"}, b"not gzip")
    with scripted(broken, OK) as server:
        response = call("POST", server.url, content=b"x", retry={"profile": "acp"})

    assert response.status_code == 201
    assert len(server.seen) == 2


@pytest.mark.parametrize("state", [Cut(), ScriptedResponse(404), ScriptedResponse(500)])
def test_under_ucp_a_get_without_a_result_does_not_stop_the_retry(call: RetryingClient, state: Any) -> None:
    with scripted(Cut(), state, OK) as server:
        response = call("PUT", f"{server.url}/checkout-sessions/c1", content=b"{}", retry={"profile": "ucp"})

    assert response.status_code == 201
    assert [seen.method for seen in server.seen] == ["PUT", "GET", "PUT"]


def test_under_ucp_a_server_error_is_a_response_and_needs_no_get(call: RetryingClient) -> None:
    with scripted(error(503, {}, retry_after="1"), OK) as server:
        call("POST", server.url, content=b"{}", retry={"profile": "ucp"})

    assert [seen.method for seen in server.seen] == ["POST", "POST"]


def test_codes_are_found_in_every_format() -> None:
    assert code_in(b'{"code":"a"}') == "a"
    assert code_in(b'{"error":{"type":"t","code":"c"}}') == "c"
    assert code_in(b'{"error":{"type":"t"}}') == "t"
    assert [code_in(body) for body in (b"", b"[]", b'{"code":1}', b"[" * 100_000)] == [""] * 4


def test_the_resource_of_a_request() -> None:
    assert state_path("/checkout-sessions/c1/complete") == "/checkout-sessions/c1"
    assert state_path("/checkout-sessions/c1/cancel/") == "/checkout-sessions/c1"
    assert state_path("/checkout-sessions/c1") == "/checkout-sessions/c1"
    assert shows_processed("/c/1/cancel", 200, b'{"status":"canceled"}')
    assert not shows_processed("/c/1/cancel", 200, b'{"status":"completed"}')
    assert not shows_processed("/c/1", 200, b'{"status":"completed"}')
    assert not shows_processed("/c/1/complete", 404, b'{"status":"completed"}')
    assert not shows_processed("/c/1/complete", 200, b"no json")


def test_only_a_409_that_still_runs_counts() -> None:
    assert still_runs(CLIENT_PROFILES["ietf"], "anything", 1.0, "")
    assert not still_runs(CLIENT_PROFILES["acp"], "other", 1.0, "true")


@pytest.mark.parametrize("profile", ["soap", 3])
def test_an_unknown_profile_is_refused(profile: Any) -> None:
    with pytest.raises(InvalidOption, match="profile="):
        RetryPolicy(profile=profile)
