"""The client's address behind proxies, and what a client can do to forge it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.hub.asgi_client import Headers, bearer, request, send_request, websocket
from tests.hub.in_process_hub import in_process_hub

from onceward.http.asgi_types import Receive, Send
from onceward.http.problem import Response
from onceward.http.response.replay import send_response
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.security import tokens
from onceward.hub.security.client_address import ClientAddressMiddleware, is_local_client

PROXY = "10.0.0.1"
CLIENT = "203.0.113.9"


def client_of(
    peer: str | None, headers: Headers = (), trusted: tuple[str, ...] = (), *, socket: bool = False, attribute: str = ""
) -> Any:
    """Return the address of the client, and whether it is local; or another attribute of the scope."""
    found: list[Any] = []

    async def app(scope: Any, _receive: Receive, send: Send) -> None:
        found.append(
            scope[attribute] if attribute else (scope["client"][0] if scope["client"] else None, is_local_client(scope))
        )
        if scope["type"] == "http":
            await send_response(send, Response(200, (), b""))

    client = None if peer is None else (peer, 1)
    scope = websocket("/x", headers, client=client) if socket else request("GET", "/x", headers, client=client)
    send_request(ClientAddressMiddleware(app, trusted), scope)
    return found[0]


def forwarded_for(*values: str) -> Headers:
    return tuple((b"x-forwarded-for", value.encode("latin-1")) for value in values)


@pytest.mark.parametrize(
    ("values", "client"),
    [
        ([CLIENT], CLIENT),
        ([f"1.2.3.4, {CLIENT}"], CLIENT),
        (["1.2.3.4", CLIENT], CLIENT),
        ([f"{CLIENT}, 10.0.0.2"], CLIENT),
        ([f"{CLIENT},10.0.0.2 , 10.0.0.3"], CLIENT),
        ([f"{CLIENT}, 10.0.0.2", "10.0.0.3"], CLIENT),
        ([f"127.0.0.1, {CLIENT}"], CLIENT),
        ([f"{CLIENT}:1234"], CLIENT),
        (["2001:DB8::1"], "2001:db8::1"),
        (["[2001:db8::1]:443"], "2001:db8::1"),
        (["::ffff:203.0.113.9"], CLIENT),
        (["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ([f"{CLIENT}, unknown"], PROXY),
        ([f"{CLIENT}, _hidden, 10.0.0.2"], "10.0.0.2"),
        ([f"{CLIENT}, "], PROXY),
        ([""], PROXY),
        ([], PROXY),
        (["\xff" * 100], PROXY),
    ],
    ids=str,
)
def test_the_client_is_the_rightmost_address_that_is_not_a_trusted_proxy(values: list[str], client: str) -> None:
    for socket in (False, True):
        assert client_of(PROXY, forwarded_for(*values), ("10.0.0.0/8",), socket=socket) == (client, False)


@pytest.mark.parametrize("trusted", [(), ("10.0.0.0/8",), ("127.0.0.1",)], ids=str)
def test_a_client_cannot_choose_its_address(trusted: tuple[str, ...]) -> None:
    """The peer is not a trusted proxy, so its headers are ignored."""
    for value in ("127.0.0.1", "10.0.0.1", "::1", "1.2.3.4, 127.0.0.1"):
        headers = (*forwarded_for(value), (b"forwarded", b"for=127.0.0.1"), (b"x-real-ip", b"127.0.0.1"))
        assert client_of(CLIENT, headers, trusted) == (CLIENT, False)


def test_the_header_forwarded_counts_for_nothing_even_from_a_trusted_proxy() -> None:
    headers = ((b"forwarded", b"for=1.2.3.4"), (b"x-real-ip", b"1.2.3.4"))

    assert client_of(PROXY, headers, (PROXY,)) == (PROXY, False)
    assert client_of(PROXY, (*headers, *forwarded_for(CLIENT)), (PROXY,)) == (CLIENT, False)


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_no_client_behind_a_proxy_is_local(peer: str) -> None:
    trusted = ("127.0.0.0/8", "::1")

    assert client_of(peer) == (peer, True)
    assert client_of(peer, trusted=trusted)[1] is False
    assert client_of(peer, forwarded_for("127.0.0.1"), trusted) == ("127.0.0.1", False)
    assert client_of(peer, forwarded_for("203.0.113.9"), trusted) == ("203.0.113.9", False)


@pytest.mark.parametrize("name", ["x-forwarded-for", "forwarded", "x-real-ip", "via", "x-forwarded-proto"])
def test_a_header_of_a_proxy_shows_that_the_client_is_not_local(name: str) -> None:
    assert client_of("127.0.0.1", ((name.encode(), b"127.0.0.1"),)) == ("127.0.0.1", False)


def test_a_connection_without_an_address_is_not_local() -> None:
    assert client_of(None) == (None, False)
    assert client_of(None, forwarded_for("127.0.0.1"), ("127.0.0.1",)) == (None, False)


@pytest.mark.parametrize(
    ("values", "scheme"),
    [
        ([], "http"),
        (["https"], "https"),
        (["HTTPS "], "https"),
        (["http"], "http"),
        (["https, http"], "http"),
        (["http", "https"], "https"),
        (["javascript"], "http"),
        (["https, "], "http"),
        ([""], "http"),
    ],
    ids=str,
)
def test_the_scheme_is_that_of_the_nearest_trusted_proxy(values: list[str], scheme: str) -> None:
    headers = tuple((b"x-forwarded-proto", value.encode()) for value in values)

    assert client_of(PROXY, headers, (PROXY,), attribute="scheme") == scheme
    assert client_of(CLIENT, headers, (PROXY,), attribute="scheme") == "http", "not from the proxy"
    assert client_of(PROXY, headers, attribute="scheme") == "http", "no proxy is trusted"
    socket = {"http": "ws", "https": "wss"}[scheme]
    assert client_of(PROXY, headers, (PROXY,), socket=True, attribute="scheme") == socket


def test_the_whole_hub_knows_the_client_behind_its_proxy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = Config(HubSettings(data_dir=str(tmp_path), trusted_proxies=("127.0.0.1",)))
    with closing(open_database(config.database_url)) as database:
        migrate(database)
        with in_process_hub(config) as hub:
            without = hub.get("/policies", headers=forwarded_for("127.0.0.1"))
            with database.write() as tx:
                token, text = tokens.create(tx, "ada", ["admin"])
            caplog.set_level("INFO", logger="onceward.request")
            caplog.clear()
            allowed = hub.get("/policies", headers=(*bearer(text), *forwarded_for(CLIENT)))
    (line,) = [record for record in caplog.records if record.name == "onceward.request"]

    assert without.status_code == 401
    assert "not through a proxy" in without.json()["detail"]
    assert allowed.status_code == 200
    assert (getattr(line, "client", None), getattr(line, "token_id", None)) == (CLIENT, token.token_id)
