"""Access checks of a running hub on every route and transport: the documented refusal, and nothing is written."""

from __future__ import annotations

import json
import socket

import pytest
from tests.faults.hub.conftest import Site
from tests.faults.hub.test_bad_requests import TOPICS, nothing_written
from tests.hub.raw_client import Caller
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from onceward.hub.security import tokens

FOREIGN: dict[str, tuple[dict[str, str | None], int, str]] = {
    "another-host": ({"Host": "evil.example"}, 400, "badRequest"),
    "another-host-with-our-port": ({"Host": "127.0.0.1.evil.example:8787"}, 400, "badRequest"),
    "no-host-at-all": ({"Host": ""}, 400, "badRequest"),
    "another-origin": ({"Origin": "https://evil.example"}, 403, "forbidden"),
    "no-origin-to-speak-of": ({"Origin": "null"}, 403, "forbidden"),
    "another-port-of-this-machine": ({"Origin": "http://127.0.0.1:1"}, 403, "forbidden"),
    "another-site": ({"Sec-Fetch-Site": "cross-site"}, 403, "forbidden"),
    "no-token": ({"Authorization": None}, 401, "unauthorized"),
    "no-such-token": ({"Authorization": "Bearer ow_000000000000_" + "a" * 43}, 401, "unauthorized"),
    "half-a-token": ({"Authorization": "Bearer ow_"}, 401, "unauthorized"),
    "a-password": ({"Authorization": "Basic YWRhOmFkYQ=="}, 401, "unauthorized"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_an_unauthorized_request_is_refused_and_leaves_no_trace_under_the_key(site: Site, name: str) -> None:
    headers, status, code = FOREIGN[name]
    with nothing_written(site):
        refused = site.ada.post(TOPICS, {"title": name}, key=name, headers=headers)
    allowed = site.ada.post(TOPICS, {"title": name}, key=name)
    with nothing_written(site):
        again = site.ada.post(TOPICS, {"title": name}, key=name, headers=headers)

    assert (refused.status, refused.problem) == (again.status, again.problem) == (status, code)
    assert (allowed.status, allowed.replayed) == (201, False)
    assert not again.replayed, "an answer that is recorded is not for strangers"
    assert ("www-authenticate" in refused.headers) == (status == 401)


@pytest.mark.parametrize("name", [name for name in FOREIGN if name != "no-host-at-all"])
def test_the_websocket_has_the_same_access_checks(site: Site, name: str) -> None:
    headers, status, code = FOREIGN[name]
    lines = {"Authorization": f"Bearer {site.token}", **headers}
    given = {header: value for header, value in lines.items() if value is not None}
    host = given.pop("Host", f"127.0.0.1:{site.port}")

    with (
        pytest.raises(InvalidStatus) as refused,
        connect(
            f"ws://{host}/ws",
            sock=socket.create_connection(("127.0.0.1", site.port)),
            additional_headers=given,
            proxy=None,
        ),
    ):
        pass

    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body or b"{}")["code"] == code


def test_a_websocket_on_an_unknown_path_is_not_found(site: Site) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(
            f"ws://127.0.0.1:{site.port}/elsewhere",
            additional_headers={"Authorization": f"Bearer {site.token}"},
            proxy=None,
        ),
    ):
        pass

    assert refused.value.response.status_code == 404
    assert json.loads(refused.value.response.body or b"{}")["code"] == "notFound"


def test_a_page_may_offer_its_token_as_a_subprotocol(site: Site) -> None:
    offered = [Subprotocol("onceward"), Subprotocol(f"onceward.bearer.{site.token}")]
    origin = Origin(f"http://127.0.0.1:{site.port}")
    with connect(f"ws://127.0.0.1:{site.port}/ws", subprotocols=offered, origin=origin) as page:
        page.send('{"type":"hello"}')

        assert json.loads(page.recv())["type"] == "hello_ok"
        assert page.subprotocol == "onceward"


def test_a_token_is_limited_to_its_scopes(site: Site) -> None:
    reader, writer = site.caller("reader", "read"), site.caller("writer", "write")
    with nothing_written(site):
        refused = [
            reader.post(TOPICS, {"title": "a"}),
            reader.post(TOPICS, {"title": "a"}, key="reader"),
            writer.get(TOPICS),
            writer.get("/api/v1/events"),
            writer.get("/metrics"),
            site.ada("POST", "/api/v1/claims/resolve", {}),
        ]

    assert [(one.status, one.problem) for one in refused] == [(403, "forbidden")] * 6
    assert reader.get(TOPICS).status == 200
    assert writer.post(TOPICS, {"title": "a"}).status == 201


def test_a_revoked_token_is_refused_even_if_its_response_is_recorded(site: Site) -> None:
    token_id, text = site.new_token("gone", "read", "write")
    gone = Caller(site.port, text)
    recorded = gone.post(TOPICS, {"title": "gone"}, key="recorded")
    replayed = gone.post(TOPICS, {"title": "gone"}, key="recorded")
    with site.database.write() as tx:
        assert tokens.revoke(tx, token_id) == 1

    with nothing_written(site):
        refused = gone.post(TOPICS, {"title": "gone"}, key="recorded")

    assert (recorded.status, replayed.body, replayed.replayed) == (201, recorded.body, True)
    assert (refused.status, refused.problem, refused.replayed) == (401, "unauthorized", False)
    assert recorded.json["topic"]["id"] not in refused.body.decode()


def test_only_public_pages_are_served_without_a_token(site: Site) -> None:
    anonymous = Caller(site.port)

    assert {path: anonymous.get(path).status for path in ("/healthz", "/readyz", "/skill.md", "/openapi.json", "/")} == {
        "/healthz": 200, "/readyz": 200, "/skill.md": 200, "/openapi.json": 200, "/": 303,
    }  # fmt: skip
    assert [anonymous.get(path).status for path in (TOPICS, "/api/v1/events", "/metrics", "/api/v1/events/stream")] == [
        401
    ] * 4
