"""The schema of a request, read before its key is checked: for which requests, and if the database is down."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.hub.asgi_client import AsgiResponse, request, send_request

from onceward.http.asgi_types import Receive, Send
from onceward.hub.db.engine import Database, open_database
from onceward.hub.ingest.entries.schema import set_test_mode
from onceward.hub.web.active_schema import ActiveSchemaMiddleware, variant_of

KEYED = ((b"idempotency-key", b"k"),)


class VariantApp:
    """An application that records the variant of each request."""

    def __init__(self) -> None:
        self.variants: list[str | None] = []

    async def __call__(self, scope: Any, _receive: Receive, send: Send) -> None:
        self.variants.append(variant_of(scope))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def response_to(
    database: Database, method: str, path: str, headers: Any = KEYED
) -> tuple[AsgiResponse, list[str | None]]:
    app = VariantApp()
    return send_request(ActiveSchemaMiddleware(app, database), request(method, path, headers)), app.variants


@pytest.mark.parametrize(("enabled", "schema"), [(False, "pkm"), (True, "pkm_test")])
def test_a_keyed_request_that_changes_a_schema_has_it_in_its_fingerprint(
    database: Database, enabled: bool, schema: str
) -> None:
    with database.write() as tx:
        set_test_mode(tx, enabled)

    for key in KEYED, ((b"x-idempotency-key", b"k"),):
        assert response_to(database, "POST", "/db/insert", key)[1] == [schema]
        assert response_to(database, "PUT", "/policies", key)[1] == [schema]


def test_other_requests_do_not_read_the_active_schema(database: Database) -> None:
    others = [("POST", "/normalize/email"), ("PUT", "/test-mode"), ("GET", "/policies"), ("POST", "/api/v1/topics")]

    assert [response_to(database, *other)[1] for other in others] == [[None]] * len(others)
    assert response_to(database, "POST", "/db/insert", ())[1] == [None]


def test_if_the_active_schema_cannot_be_read_it_is_503_and_nothing_runs(tmp_path: Path) -> None:
    with closing(open_database(f"sqlite:///{tmp_path}/empty.db")) as database:
        answer, ran = response_to(database, "POST", "/db/insert")

    assert (answer.status, answer.code, ran) == (503, "unavailable", [])
    assert "retry-after" in answer.headers
