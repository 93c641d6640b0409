"""Accepted hosts and origins, decided on headers only."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hub.asgi_client import AsgiResponse, Headers, request, send_request, websocket

from onceward.http.asgi_types import Receive, Send
from onceward.http.problem import Response
from onceward.http.response.replay import send_response
from onceward.hub.security import hosts
from onceward.hub.security.hosts import HostsMiddleware


async def ok_app(scope: Any, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
    else:
        await send_response(send, Response(200, (), b"welcome"))


def response_to(
    method: str = "GET", *headers: tuple[bytes, bytes], scheme: str = "http", **options: Any
) -> AsgiResponse:
    return send_request(HostsMiddleware(ok_app, **options), request(method, "/x", headers, host=(), scheme=scheme))


def host(text: str) -> tuple[bytes, bytes]:
    return b"host", text.encode("latin-1")


def origin(text: str) -> tuple[bytes, bytes]:
    return b"origin", text.encode()


def site(text: str) -> tuple[bytes, bytes]:
    return b"sec-fetch-site", text.encode()


@pytest.mark.parametrize(("path", "status"), [("/a\x00b", 400), ("/a?b=%00", 400), ("/a?b=%2500", 200), ("/%00", 200)])
def test_a_path_with_a_nul_is_refused(path: str, status: int) -> None:
    """The server has decoded the path, but not the query."""
    assert send_request(HostsMiddleware(ok_app), request("GET", path)).status == status


LOOPBACK = ["localhost", "localhost:8787", "LocalHost.", "127.0.0.1", "127.0.0.1:80", "127.9.9.9:1", "[::1]", "[::1]:9"]
STRANGE = [
    "example.com", "localhost.example.com", "127.0.0.1.example.com", "example.com:8787", "192.168.0.7", "[fe80::1]",
    "xlocalhost", "0.0.0.0", "[::]", "8.8.8.8",  # noqa: S104  # asked for, not bound to
]  # fmt: skip
NO_HOSTS = [
    "",
    " ",
    "a b",
    "user@localhost",
    "localhost/",
    "localhost:x",
    "localhost:123456",
    "[::1",
    "[zz]",
    "é",
    "a,b",
]


@pytest.mark.parametrize("text", [*LOOPBACK, "[::ffff:127.0.0.1]"])
def test_the_local_host_is_always_accepted(text: str) -> None:
    assert response_to("GET", host(text)).status == 200


@pytest.mark.parametrize("text", STRANGE)
def test_another_host_is_refused_with_the_setting_to_change(text: str) -> None:
    answer = response_to("GET", host(text))

    assert (answer.status, answer.code) == (400, "badRequest")
    assert "auth.allowed_hosts" in answer.json["detail"]
    assert f"names {hosts.host_port_of(text).name!r}" in answer.json["detail"]  # type: ignore[union-attr]


def test_a_refused_host_is_shown_the_accepted_ones() -> None:
    listening = send_request(
        HostsMiddleware(ok_app, bound="10.0.0.5"), request("GET", "/", host=(host("example.com"),))
    )
    everywhere = send_request(
        HostsMiddleware(ok_app, bound="0.0.0.0"),  # noqa: S104  # nothing is bound here
        request("GET", "/", host=(host("example.com"),)),
    )

    assert "the address it listens on" in listening.json["detail"]
    assert "any IP address" in everywhere.json["detail"]


@pytest.mark.parametrize("text", NO_HOSTS)
def test_an_invalid_host_is_refused(text: str) -> None:
    assert (response_to("GET", host(text)).status, response_to("GET", host(text)).code) == (400, "badRequest")


def test_no_host_and_two_hosts_are_refused() -> None:
    assert response_to("GET").status == 400
    assert response_to("GET", host("localhost"), host("localhost")).status == 400
    assert response_to("GET", host("localhost"), host("example.com")).status == 400


def test_a_host_of_any_length_is_refused_and_not_remembered() -> None:
    kept = hosts._host_port_of.cache_info().currsize

    assert response_to("GET", host("a" * 100_000)).status == 400
    assert hosts._host_port_of.cache_info().currsize == kept


@pytest.mark.parametrize(
    ("allowed", "text", "status"),
    [
        ("hub.example.com", "hub.example.com", 200),
        ("hub.example.com", "HUB.example.com.:8443", 200),
        ("Hub.Example.com", "hub.example.com", 200),
        ("hub.example.com", "example.com", 400),
        ("hub.example.com", "evil-hub.example.com", 400),
        ("hub.example.com", "hub.example.com.evil.com", 400),
        ("hub.example.com:8443", "hub.example.com:8443", 200),
        ("hub.example.com:8443", "hub.example.com", 400),
        ("hub.example.com:80", "hub.example.com", 200),
        ("*.example.com", "a.example.com", 200),
        ("*.example.com", "a.b.example.com:99", 200),
        ("*.example.com", "example.com", 400),
        ("*.example.com", "evilexample.com", 400),
        ("*.example.com:8443", "a.example.com:8443", 200),
        ("*.example.com:8443", "a.example.com", 400),
        ("10.0.0.5", "10.0.0.5:8787", 200),
        ("10.0.0.5", "10.0.0.6", 400),
        ("[fd00::5]", "[fd00:0::5]:8787", 200),
    ],
)
def test_an_allowed_host_is_accepted(allowed: str, text: str, status: int) -> None:
    assert response_to("GET", host(text), allowed_hosts=[allowed]).status == status


def test_the_address_it_listens_on_is_accepted() -> None:
    assert response_to("GET", host("192.168.0.7:8787"), bound="192.168.0.7").status == 200
    assert response_to("GET", host("[fd00::5]"), bound="fd00::5").status == 200
    assert response_to("GET", host("hub.lan"), bound="hub.lan").status == 200
    assert response_to("GET", host("192.168.0.8"), bound="192.168.0.7").status == 400


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])  # noqa: S104  # nothing is bound here
def test_listening_on_all_addresses_accepts_addresses_but_no_names(bound: str) -> None:
    """DNS rebinding needs a name whose owner points it to another address."""
    assert response_to("GET", host("192.168.0.7:8787"), bound=bound).status == 200
    assert response_to("GET", host("[fd00::5]"), bound=bound).status == 200
    assert response_to("GET", host("rebound.example.com"), bound=bound).status == 400
    assert response_to("GET", host("192.168.0.7"), bound=bound, allowed_hosts=["hub.example.com"]).status == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "MADEUP"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((), 200),
        ((origin("http://localhost:8787"),), 200),
        ((origin("http://localhost:8787"), site("same-origin")), 200),
        ((site("none"),), 200),
        ((origin("https://localhost:8787"),), 403),
        ((origin("http://localhost"),), 403),
        ((origin("http://localhost:3000"),), 403),
        ((origin("http://127.0.0.1:8787"),), 403),
        ((origin("http://evil.example.com"),), 403),
        ((origin("null"),), 403),
        ((origin("null"), site("cross-site")), 403),
        ((origin("null"), site("same-site")), 403),
        # The forms of our own pages, whose Referrer-Policy is no-referrer.
        ((origin("null"), site("same-origin")), 200),
        ((origin(""), origin("http://localhost:8787")), 403),
        ((origin("http://localhost:8787"), origin("http://localhost:8787")), 403),
        ((origin("file://"),), 403),
        ((origin("http://localhost:8787"), site("cross-site")), 403),
        ((site("cross-site"),), 403),
        ((site("same-site"),), 403),
        ((site("same-origin"), site("cross-site")), 403),
    ],
    ids=str,
)
def test_only_the_hubs_own_pages_may_make_changes(method: str, headers: Headers, status: int) -> None:
    answer = response_to(method, host("localhost:8787"), *headers)

    assert answer.status == status
    assert status == 200 or (answer.code == "forbidden" and "allowed_origins" in answer.json["detail"])


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_any_page_may_send_reads_that_its_browser_allows(method: str) -> None:
    """Without CORS headers, no page of another origin can read the response."""
    answer = response_to(method, host("localhost"), origin("http://evil.example.com"), site("cross-site"))

    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


def test_implied_and_explicit_ports_are_the_same() -> None:
    assert response_to("POST", host("localhost"), origin("http://localhost:80")).status == 200
    assert response_to("POST", host("localhost:80"), origin("http://localhost")).status == 200
    assert response_to("POST", host("localhost:443"), origin("https://localhost"), scheme="https").status == 200


PAGE = "https://app.example.com"


def test_a_page_of_an_allowed_origin_may_send_and_read() -> None:
    headers = (host("localhost"), origin(PAGE), site("cross-site"))
    answer = response_to("POST", *headers, allowed_origins=[PAGE])

    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "Idempotent-Replayed" in answer.headers["access-control-expose-headers"]
    assert (
        response_to("POST", host("localhost"), origin("https://app.example.com:444"), allowed_origins=[PAGE]).status
        == 403
    )
    assert (
        response_to("POST", host("localhost"), origin("http://app.example.com"), allowed_origins=[PAGE]).status == 403
    )


def test_a_cors_preflight_is_accepted_for_allowed_origins() -> None:
    wanted = ((b"access-control-request-method", b"POST"), (b"access-control-request-headers", b"idempotency-key"))
    answer = response_to("OPTIONS", host("localhost"), origin(PAGE), *wanted, allowed_origins=[PAGE])

    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-headers"] == "idempotency-key"


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ((), True),
        ((origin("http://localhost:8787"),), True),
        ((origin(PAGE),), True),
        ((origin("http://evil.example.com"),), False),
        ((origin("null"),), False),
    ],
    ids=["program", "own page", "allowed page", "other page", "null"],
)
def test_a_websocket_is_only_for_pages_that_may_make_changes(headers: Headers, accepted: bool) -> None:
    answer = send_request(HostsMiddleware(ok_app, allowed_origins=[PAGE]), websocket("/ws", headers))

    if accepted:
        assert answer.types == ["websocket.accept"]
    else:
        assert (answer.status, answer.code) == (403, "forbidden")


def test_a_websocket_for_another_host_is_refused() -> None:
    answer = send_request(HostsMiddleware(ok_app), websocket("/ws", host=(host("example.com"),)))

    assert (answer.status, answer.code) == (400, "badRequest")
