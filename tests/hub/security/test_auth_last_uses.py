"""The last use of a token: to the hour, and without a write for each request."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import update
from tests.hub.asgi_client import bearer, request, send_request

from onceward.http.asgi_types import Receive, Send
from onceward.http.problem import Response
from onceward.http.response.replay import send_response
from onceward.hub.db.engine import Database, Transaction, open_database
from onceward.hub.db.tables import tokens as table
from onceward.hub.db.timestamps import now_text
from onceward.hub.security import tokens
from onceward.hub.security.auth import AuthMiddleware


async def ok_app(_scope: Any, _receive: Receive, send: Send) -> None:
    await send_response(send, Response(200, (), b""))


def last_used_at(database: Database, text: str) -> str | None:
    # The writer commits everything that is queued before this.
    database.writer.run_blocking(lambda _tx: None)
    with database.read() as tx:
        found = tokens.find(tx, text)
    assert found is not None
    return found.last_used_at


def test_the_hour_of_a_use_is_written_once_whatever_the_number_of_requests(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[str] = []
    write = tokens.set_last_use

    def counted(tx: Transaction, token_id: str, hour: str) -> None:
        writes.append(hour)
        write(tx, token_id, hour)

    monkeypatch.setattr(tokens, "set_last_use", counted)
    with database.write() as tx:
        _, text = tokens.create(tx, "ci", ["read"])
    apps = [AuthMiddleware(ok_app, database) for _ in range(2)]
    before = now_text()[:13]
    for app in apps:
        for path in ("/x", "/x", "/v1/admin"):
            send_request(app, request("GET", path, bearer(text)))
            found = last_used_at(database, text)
    after = now_text()[:13]

    assert found in {f"{hour}:00:00.000000Z" for hour in (before, after)}
    assert len(writes) <= len({before, after}), "the second process reads the hour that the first has written"


def test_the_next_hour_is_written_again_and_an_earlier_one_never(database: Database) -> None:
    with database.write() as tx:
        token, text = tokens.create(tx, "ci", ["read"])
        tx.execute(update(table).values(last_used_at="2020-01-01T00:00:00.000000Z"))
    send_request(AuthMiddleware(ok_app, database), request("GET", "/x", bearer(text)))
    used = last_used_at(database, text)
    with database.write() as tx:
        tokens.set_last_use(tx, token.token_id, "2021-01-01T00:00:00.000000Z")

    assert used is not None
    assert used > "2026"
    assert last_used_at(database, text) == used


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_use_that_cannot_be_written_does_not_fail_the_request(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with database.write() as tx:
        _, text = tokens.create(tx, "ci", ["read"])
        tx.exec_driver_sql("CREATE TRIGGER frozen BEFORE UPDATE ON tokens BEGIN SELECT RAISE(ABORT, 'no'); END")
    with closing(open_database(str(database.engine.url))) as other:
        app = AuthMiddleware(ok_app, other)
        statuses = [send_request(app, request("GET", "/x", bearer(text))).status for _ in range(3)]

    assert statuses == [200] * 3
    assert sum(message.startswith("last_use_not_recorded") for message in caplog.messages) == 1
