"""Access rules as values, and the middleware with real tokens on both databases."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from tests.hub.asgi_client import (
    LOCAL_CLIENT,
    REMOTE_CLIENT,
    AsgiResponse,
    Headers,
    bearer,
    request,
    send_request,
    websocket,
)

from onceward.http.asgi_types import Receive, Send
from onceward.http.problem import Response
from onceward.http.response.replay import send_response
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.tables import tokens as tokens_table
from onceward.hub.security import tokens
from onceward.hub.security.auth import AuthMiddleware, may, principal_of
from onceward.hub.security.scopes import scope_needed

METHODS = ("GET", "PUT")
# The rules are the same everywhere; on both databases run the tests in which tokens come and go.
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", "/healthz", "open"),
        ("HEAD", "/readyz", "open"),
        ("GET", "/skill.md", "open"),
        ("GET", "/openapi.json", "open"),
        ("GET", "/docs", "open"),
        ("GET", "/", "open"),
        ("GET", "/console/app.js", "open"),
        ("POST", "/healthz", "write"),
        ("POST", "/console/in-doubt/resolve", "open"),
        ("GET", "/healthz/more", "read"),
        ("GET", "/consoles", "read"),
        ("GET", "/metrics", "read or metrics"),
        ("POST", "/metrics", "write"),
        ("GET", "/ws", "read"),
        ("GET", "/api/v1/topics", "read"),
        ("OPTIONS", "/api/v1/topics", "read"),
        ("POST", "/api/v1/topics", "write"),
        ("DELETE", "/v1/tasks/1", "write"),
        ("MADEUP", "/api/v1/topics", "write"),
        ("get", "/api/v1/topics", "write"),
        ("GET", "/test-mode", "read or admin"),
        ("PUT", "/test-mode", "admin"),
        ("GET", "/policies", "admin"),
        ("PUT", "/policies", "admin"),
        ("PUT", "/policies/", "admin"),
        ("POST", "/db/insert", "write"),
        ("POST", "/normalize/email", "write"),
        ("GET", "/api/v1/claims", "admin"),
        ("POST", "/api/v1/claims/resolve", "admin"),
        ("POST", "/api/v1/claims/resolve/", "admin"),
        ("POST", "/v1/admin/gc-blobs", "admin"),
        ("GET", "/v1/admin/gc-blobs", "admin"),
        ("GET", "/v1/admin", "admin"),
        ("GET", "/v1/administrators", "read"),
    ],
)
def test_the_required_scope_follows_from_the_method_and_path(method: str, path: str, needed: str) -> None:
    assert scope_needed(method, path) == needed


async def principal_app(scope: Any, receive: Receive, send: Send) -> None:
    """Respond with the principal."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept", "headers": [(b"x-name", principal_of(scope).encode())]})
        await send({"type": "websocket.close", "code": 1000, "reason": ",".join(scope["subprotocols"])})
    else:
        await send_response(send, Response(200, (), principal_of(scope).encode()))


def response_to(
    database: Database, method: str, path: str, headers: Headers = (), client: Any = LOCAL_CLIENT
) -> AsgiResponse:
    return send_request(AuthMiddleware(principal_app, database), request(method, path, headers, client=client))


def made(database: Database, name: str, *scopes: str) -> str:
    with database.write() as tx:
        return tokens.create(tx, name, scopes)[1]


@on_sqlite
@pytest.mark.parametrize("client", [LOCAL_CLIENT, ("::1", 1), ("127.8.9.1", 1), ("::ffff:127.0.0.1", 1)], ids=str)
def test_without_tokens_the_local_machine_may_do_everything(database: Database, client: Any) -> None:
    for method, path in (("GET", "/api/v1/topics"), ("POST", "/api/v1/topics"), ("POST", "/v1/admin/gc-blobs")):
        answer = response_to(database, method, path, client=client)
        assert (answer.status, answer.body) == (200, b"local")


@on_sqlite
@pytest.mark.parametrize("client", [REMOTE_CLIENT, ("::2", 1), ("localhost", 1), ("testclient", 1), None], ids=str)
def test_without_tokens_other_machines_may_do_nothing(database: Database, client: Any) -> None:
    forwarded = ((b"x-forwarded-for", b"127.0.0.1"), (b"forwarded", b"for=127.0.0.1"))
    answer = response_to(database, "GET", "/api/v1/topics", forwarded, client)

    assert (answer.status, answer.code) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert response_to(database, "GET", "/healthz", client=client).body == b"anonymous"


def test_with_a_token_every_caller_needs_one(database: Database) -> None:
    text = made(database, "ci", "read", "write")

    for client in (LOCAL_CLIENT, REMOTE_CLIENT):
        assert response_to(database, "GET", "/api/v1/topics", client=client).status == 401
        answer = response_to(database, "POST", "/api/v1/topics", bearer(text), client)
        assert (answer.status, answer.body) == (200, b"ci")


@on_sqlite
@pytest.mark.parametrize("scope", tokens.SCOPES)
def test_a_scope_allows_itself_and_nothing_else(database: Database, scope: str) -> None:
    text = made(database, "ci", scope)
    requests = {"read": ("GET", "/x"), "write": ("POST", "/x"), "admin": ("PUT", "/policies")}

    for needed, (method, path) in requests.items():
        answer = response_to(database, method, path, bearer(text))
        assert answer.status == (200 if needed == scope else 403)
        assert needed == scope or (answer.code == "forbidden" and needed in answer.json["detail"])


@on_sqlite
def test_the_scope_that_switches_the_test_mode_may_also_read_it(database: Database) -> None:
    statuses = {
        scope: [
            response_to(database, method, "/test-mode", bearer(made(database, scope, scope))).status
            for method in METHODS
        ]
        for scope in tokens.SCOPES
    }

    assert statuses == {"read": [200, 403], "write": [403, 403], "admin": [200, 200]}


def test_a_revoked_token_is_refused_from_the_next_request_on(database: Database) -> None:
    text, other = made(database, "ci", "read"), made(database, "other", "read")
    app = AuthMiddleware(principal_app, database)

    def status(of: str) -> int:
        return send_request(app, request("GET", "/x", bearer(of))).status

    assert (status(text), status(other)) == (200, 200)
    with database.write() as tx:
        tokens.revoke(tx, "ci")
    assert (status(text), status(other)) == (401, 200)
    with database.write() as tx:
        tokens.revoke(tx, "other")
    assert (status(text), status(other)) == (401, 401)
    assert response_to(database, "GET", "/x").status == 401, "the last one is gone, and nobody is let in for that"
    with database.write() as tx:
        tokens.open_local(tx)
    assert response_to(database, "GET", "/x").body == b"local"
    assert response_to(database, "GET", "/x", client=REMOTE_CLIENT).status == 401
    assert (status(text), status(other)) == (401, 401)


def test_an_expired_token_is_refused_and_the_response_says_so(database: Database) -> None:
    text = made(database, "ci", "read")
    before = response_to(database, "GET", "/x", bearer(text)).status
    with database.write() as tx:
        tx.execute(update(tokens_table).values(expires_at="2026-01-02T00:00:00.000000Z"))
    after = response_to(database, "GET", "/x", bearer(text))

    assert before == 200
    assert (after.status, after.code) == (401, "unauthorized")
    assert "expired at 2026-01-02" in after.json["detail"]
    assert after.headers["www-authenticate"] == "Bearer"


@on_sqlite
def test_a_narrowed_scope_opens_one_part_of_the_hub(database: Database) -> None:
    text = made(database, "ci", "read:topics", "write:tasks", "admin:tasks")
    paths = ("/api/v1/topics", "/v1/tasks", "/api/v1/events", "/metrics", "/unknown", "/api/v1/claims")
    statuses = {
        method: [response_to(database, method, path, bearer(text)).status for path in paths]
        for method in ("GET", "POST")
    }
    detail = response_to(database, "POST", "/api/v1/topics", bearer(text)).json["detail"]

    assert statuses == {"GET": [200, *[403] * 5], "POST": [403, 200, *[403] * 4]}
    assert detail == "This request requires a token with the scope write or write:topics."


@on_sqlite
def test_a_handler_sees_the_scopes_that_count_in_its_part(database: Database) -> None:
    text = made(database, "ci", "write:tasks", "admin:tasks", "write:topics")

    async def app(scope: Any, _receive: Receive, send: Send) -> None:
        await send_response(send, Response(200, (), str(may(scope, "admin")).encode()))

    bodies = [
        send_request(AuthMiddleware(app, database), request("POST", path, bearer(text))).body
        for path in ("/v1/tasks/t/attachments", "/api/v1/topics")
    ]

    assert bodies == [b"True", b"False"]


@on_sqlite
def test_the_scope_metrics_reads_the_metrics_alone(database: Database) -> None:
    text = made(database, "prometheus", "metrics")
    requests = [("GET", "/metrics"), ("GET", "/x"), ("POST", "/metrics"), ("GET", "/metrics/x"), ("GET", "/policies")]
    statuses = [response_to(database, method, path, bearer(text)).status for method, path in requests]

    assert statuses == [200, 403, 403, 403, 403]
    assert response_to(database, "GET", "/metrics", bearer(made(database, "reader", "read"))).status == 200


@on_sqlite
@pytest.mark.parametrize("guarded", [True, False], ids=["with tokens", "without tokens"])
@pytest.mark.parametrize(
    "headers",
    [
        bearer("ow_000000000000_" + "a" * 43),
        bearer("nonsense"),
        bearer(""),
        ((b"authorization", b"Bearer"),),
        ((b"authorization", b""),),
        ((b"authorization", b"Basic bG9jYWw6"),),
        ((b"authorization", b"\xff\xfe"),),
    ],
    ids=["unknown", "malformed", "empty", "bare", "blank", "basic", "bytes"],
)
def test_an_invalid_token_is_refused_even_where_none_is_needed(
    database: Database, headers: Headers, guarded: bool
) -> None:
    if guarded:
        made(database, "ci", "read")

    answer = response_to(database, "GET", "/x", headers)

    assert (answer.status, answer.code) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


@on_sqlite
def test_the_word_bearer_may_have_any_case_and_must_occur_once(database: Database) -> None:
    text = made(database, "ci", "read").encode()

    assert response_to(database, "GET", "/x", ((b"authorization", b"bEARER  " + text + b" "),)).status == 200
    assert response_to(database, "GET", "/x", ((b"authorization", b"Bearer " + text),) * 2).status == 401
    assert response_to(database, "GET", "/x", ((b"authorization", b"Basic " + text),)).status == 401
    assert response_to(database, "GET", "/x", ((b"authorization", text),)).status == 401
    assert response_to(database, "GET", f"/x?token={text.decode()}&access_token={text.decode()}").status == 401


# WebSockets.


@on_sqlite
def test_a_page_sends_its_token_as_a_subprotocol_that_is_not_echoed(database: Database) -> None:
    text = made(database, "ci", "read")
    answer = send_request(
        AuthMiddleware(principal_app, database), websocket("/ws", offered=["onceward", f"onceward.bearer.{text}"])
    )

    assert answer.messages[0]["subprotocol"] == "onceward"
    assert answer.messages[0]["headers"] == [(b"x-name", b"ci")]
    assert answer.messages[1]["reason"] == "onceward", "what the application sees of it"


@on_sqlite
def test_a_program_sends_its_websocket_token_in_the_usual_header(database: Database) -> None:
    text = made(database, "ci", "read")
    answer = send_request(AuthMiddleware(principal_app, database), websocket("/ws", bearer(text)))

    assert answer.types == ["websocket.accept", "websocket.close"]
    assert "subprotocol" not in answer.messages[0]


@on_sqlite
@pytest.mark.parametrize("extensions", [{"websocket.http.response": {}}, {}], ids=["answered", "closed"])
def test_a_websocket_without_a_good_token_is_refused_before_it_is_accepted(
    database: Database, extensions: dict[str, Any]
) -> None:
    text = made(database, "ci", "read")
    write_only = made(database, "writer", "write")
    refused = [
        ([], 401),
        (["onceward"], 401),
        ([f"onceward.bearer.{text}"], 401),
        (["onceward", "onceward.bearer.nonsense"], 401),
        (["onceward", f"onceward.bearer.{text}", f"onceward.bearer.{text}"], 401),
        (["onceward", f"onceward.bearer.{write_only}"], 403),
    ]
    for offered, status in refused:
        answer = send_request(
            AuthMiddleware(principal_app, database), websocket("/ws", offered=offered, extensions=extensions)
        )
        if extensions:
            assert answer.status == status
            assert answer.code
        else:
            assert answer.types == ["websocket.close"]


# The database.


@pytest.mark.parametrize("url", ["postgresql://postgres@127.0.0.1:9/none", "sqlite:///{folder}/hub.db"])
def test_a_database_that_is_down_is_503_and_public_pages_work(url: str, tmp_path: Path) -> None:
    """No server listens on that port, and that file has no tables."""
    with closing(open_database(url.format(folder=tmp_path))) as database:
        answer = response_to(database, "GET", "/x", bearer("ow_000000000000_" + "a" * 43))

        assert (answer.status, answer.code) == (503, "unavailable")
        assert answer.headers["retry-after"] == "5"
        assert send_request(AuthMiddleware(principal_app, database), websocket("/ws")).status == 503
        assert response_to(database, "GET", "/metrics").status == 503
        assert response_to(database, "GET", "/healthz").status == 200
