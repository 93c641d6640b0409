"""The whole middleware stack of the hub: log, hosts, access, idempotency."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from tests.hub.asgi_client import HOST, JSON, AsgiResponse, Headers, bearer, request, send_request

from onceward.http.asgi_types import App
from onceward.http.middleware.asgi import IdempotencyMiddleware
from onceward.hub.db.engine import Database
from onceward.hub.security import tokens
from onceward.hub.security.auth import AuthMiddleware, principal_of
from onceward.hub.security.hosts import HostsMiddleware
from onceward.hub.web import problems
from onceward.hub.web.json_body import StrictRoute
from onceward.hub.web.request_log import RequestLogMiddleware
from onceward.ledger.open import open_ledger


class Note(BaseModel):
    title: str


@dataclass(frozen=True, slots=True)
class AppBehindAuth:
    """An application behind the hub's middlewares, its database, and the titles that it has stored."""

    app: App
    database: Database
    written: list[str]

    def post(self, headers: Headers, body: bytes = b'{"title":"a"}', host: Headers = HOST) -> AsgiResponse:
        return send_request(self.app, request("POST", "/notes", (*JSON, *headers), host=host), body)

    def token(self, name: str, *scopes: str) -> Headers:
        with self.database.write() as tx:
            return bearer(tokens.create(tx, name, scopes)[1])


@pytest.fixture(name="app_behind_auth")
def _app_behind_auth(database: Database) -> Iterator[AppBehindAuth]:
    written: list[str] = []
    router = APIRouter(route_class=StrictRoute)

    @router.post("/notes", status_code=201)
    def create(note: Note) -> dict[str, Any]:
        written.append(note.title)
        return {"number": len(written)}

    app = FastAPI()
    app.state.max_body_bytes = 100
    app.include_router(router)
    problems.install(app)
    with closing(open_ledger("memory:")) as ledger:
        keyed = IdempotencyMiddleware(app, store=ledger, principal=principal_of, max_body_bytes=100)
        yield AppBehindAuth(RequestLogMiddleware(HostsMiddleware(AuthMiddleware(keyed, database))), database, written)


on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
KEY = ((b"idempotency-key", b"k1"),)


def test_a_revoked_token_gets_401_and_never_a_replay(app_behind_auth: AppBehindAuth) -> None:
    token = app_behind_auth.token("ci", "write")
    app_behind_auth.token("other", "write")
    first, again = app_behind_auth.post((*token, *KEY)), app_behind_auth.post((*token, *KEY))
    with app_behind_auth.database.write() as tx:
        tokens.revoke(tx, "ci")
    refused = app_behind_auth.post((*token, *KEY))

    assert (first.status, again.status, again.headers["idempotent-replayed"]) == (201, 201, "true")
    assert (refused.status, refused.code) == (401, "unauthorized")
    assert app_behind_auth.written == ["a"]


@on_sqlite
def test_the_key_of_one_principal_is_not_anothers_and_survives_a_token_rotation(app_behind_auth: AppBehindAuth) -> None:
    old, new, other = (
        app_behind_auth.token("ci", "write"),
        app_behind_auth.token("ci", "write"),
        app_behind_auth.token("other", "write"),
    )
    first, rotated, theirs = (app_behind_auth.post((*token, *KEY)) for token in (old, new, other))

    assert first.json == rotated.json == {"number": 1}
    assert rotated.headers["idempotent-replayed"] == "true"
    assert theirs.json == {"number": 2}
    assert "idempotent-replayed" not in theirs.headers


def refusals(app_behind_auth: AppBehindAuth) -> Iterator[tuple[str, int, AsgiResponse]]:
    good, reader = app_behind_auth.token("ci", "write"), app_behind_auth.token("reader", "read")
    for name, key in (("plain", ()), ("keyed", KEY)):
        headers = (*good, *key)
        yield f"{name} host", 400, app_behind_auth.post(headers, host=((b"host", b"evil.example.com"),))
        yield f"{name} origin", 403, app_behind_auth.post((*headers, (b"origin", b"http://evil.example.com")))
        yield f"{name} no token", 401, app_behind_auth.post(key)
        yield f"{name} scope", 403, app_behind_auth.post((*reader, *key))
        yield f"{name} oversized", 413, app_behind_auth.post(headers, b'{"title":"%s"}' % (b"x" * 100))
        yield f"{name} nan", 400, app_behind_auth.post((*good, *((k, v + b"2") for k, v in key)), b'{"title":NaN}')
        yield (
            f"{name} twice",
            400,
            app_behind_auth.post((*good, *((k, v + b"3") for k, v in key)), b'{"title":"a","title":"b"}'),
        )
        yield f"{name} deep", 400, app_behind_auth.post((*good, *((k, v + b"4") for k, v in key)), b"[" * 70)
        yield f"{name} no field", 400, app_behind_auth.post((*good, *((k, v + b"5") for k, v in key)), b"{}")


@on_sqlite
def test_every_refusal_is_a_problem_with_an_id_and_nothing_is_written(app_behind_auth: AppBehindAuth) -> None:
    for name, status, answer in refusals(app_behind_auth):
        assert (name, answer.status) == (name, status)
        assert answer.code
        assert answer.headers["x-request-id"]
    assert app_behind_auth.written == []
