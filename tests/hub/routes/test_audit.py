"""The audit log over HTTP: every admin route that changes something writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.hub.in_process_hub import Client, in_process_hub
from tests.markdown import section

from onceward.core.claim import Claim
from onceward.hub.app import create_app
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.security import tokens
from onceward.hub.security.scopes import SAFE_METHODS, scope_needed

REFERENCE = Path(__file__).parent.parent.parent.parent / "docs" / "reference.md"
AUDIT = "/api/v1/audit"
POLICY = {"policy_key": "p", "source": "s", "content_type": "c", "conflict_action": "skip"}
CLAIM = {"scope": "call", "key": "k", "version": 1, "reason": "checked"}
# A request that each admin route accepts, and the action and results that the audit log then has.
REQUESTS: dict[tuple[str, str], tuple[dict[str, Any], str, list[str]]] = {
    ("PUT", "/policies"): (POLICY, "policy.put", ["done"]),
    ("PUT", "/test-mode"): ({"enabled": True}, "test_mode.put", ["done"]),
    ("POST", "/api/v1/claims/abandon"): ({**CLAIM, "force": True}, "claim.abandon", ["started", "done"]),
    ("POST", "/api/v1/claims/resolve"): ({**CLAIM, "verdict": "committed"}, "claim.resolve", ["started", "done"]),
    ("POST", "/api/v1/claims/forget"): (CLAIM, "claim.forget", ["started", "done"]),
    ("POST", "/api/v1/claims/purge"): ({}, "claim.purge", ["started", "done"]),
    ("POST", "/v1/admin/gc-blobs"): ({}, "blobs.gc", ["started", "done"]),
    ("POST", "/v1/admin/fsck"): ({}, "blobs.fsck", ["started", "done"]),
    ("POST", "/v1/admin/backfill-spec-attachments"): ({}, "tasks.backfill_spec_attachments", ["started", "done"]),
}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(HubSettings(data_dir=str(tmp_path)))


@pytest.fixture
def client(config: Config) -> Iterator[Client]:
    with closing(open_database(config.database_url)) as database:
        migrate(database)
    with in_process_hub(config) as client:
        yield client


def entries(client: Client, **options: Any) -> list[dict[str, Any]]:
    """Return all entries, oldest first."""
    found: list[dict[str, Any]] = client.get(AUDIT, **options).json()["entries"]
    return found[::-1]


def test_every_admin_route_that_changes_something_is_known_here(config: Config) -> None:
    app: Any = create_app(config)
    while not hasattr(app, "routes"):
        app = app.app
    changing = {
        (method, route.path)
        for route in app.routes
        for method in (getattr(route, "methods", None) or set()) - SAFE_METHODS
        if scope_needed(method, route.path) == "admin"
    }

    assert changing == set(REQUESTS), "write an audit row in the new route, and add the route to this test"


def test_every_action_is_in_the_reference() -> None:
    listed = section(REFERENCE, "The hub's endpoints")

    assert [action for _, action, _ in REQUESTS.values() if f"`{action}`" not in listed] == []


def test_every_admin_route_writes_an_audit_line(client: Client, config: Config) -> None:
    with data_folder.ledger(config) as ledger:
        assert isinstance(ledger.blocking.begin("call", "k", {}, repeatable=False), Claim)
    for (method, path), (body, action, results) in REQUESTS.items():
        before = len(entries(client))
        response = client.request(method, path, json=body, headers={"x-request-id": "r-1"})
        written = entries(client)[before:]

        assert response.status_code == 200, response.text
        assert [(one["action"], one["result"]) for one in written] == [(action, result) for result in results]
        assert {(one["principal"], one["client"], one["source"], one["request_id"]) for one in written} == {
            ("local", "127.0.0.1", "api", "r-1")
        }
    resolved = [one for one in entries(client) if one["action"] == "claim.resolve"]
    assert resolved[0]["target"] == "call k"
    assert resolved[0]["details"] == {"version": 1, "verdict": "committed", "reason": "checked"}
    assert resolved[1]["details"] == {"key": "k", "status": "completed", "version": 1}
    assert resolved[1]["started_id"] == resolved[0]["audit_id"]


def test_a_refused_action_is_recorded_with_the_reason_and_the_token(client: Client, config: Config) -> None:
    with closing(open_database(config.database_url)) as database, database.write() as tx:
        token, text = tokens.create(tx, "ada", ["admin"])
        reader = tokens.create(tx, "reader", ["read", "write"])[1]
    headers = {"authorization": f"Bearer {text}"}
    missing = client.post("/api/v1/claims/resolve", json={**CLAIM, "verdict": "committed"}, headers=headers)
    rows = entries(client, headers=headers)
    forbidden = client.get(AUDIT, headers={"authorization": f"Bearer {reader}"})

    assert missing.status_code == 404
    assert [(one["result"], one["principal"], one["token_id"]) for one in rows] == [
        ("started", "ada", token.token_id),
        ("refused", "ada", token.token_id),
    ]
    assert rows[1]["details"] == {"error": "not-found"}
    assert forbidden.status_code == 403


def test_the_list_is_paginated_as_every_other(client: Client) -> None:
    for number in range(3):
        client.put("/test-mode", json={"enabled": bool(number % 2)})
    first = client.get(AUDIT, params={"limit": 2}).json()
    second = client.get(AUDIT, params={"limit": 2, "after": first["next_after"]}).json()

    assert [one["details"]["enabled"] for one in (*first["entries"], *second["entries"])] == [False, True, False]
    assert (first["has_more"], second["has_more"], second["next_after"]) == (True, False, None)
    assert client.get(AUDIT, params={"after": "x"}).status_code == 400


def test_the_list_can_be_filtered(client: Client) -> None:
    client.put("/test-mode", json={"enabled": True})
    client.post("/v1/admin/gc-blobs", json={})
    asked = {"principal": "local", "action": "blobs", "since": "2020-01-01", "until": "2999-01-01"}
    found = client.get(AUDIT, params=asked).json()["entries"]

    assert [(one["action"], one["result"]) for one in found] == [("blobs.gc", "done"), ("blobs.gc", "started")]
    assert client.get(AUDIT, params={"until": "2020-01-01"}).json()["entries"] == []
    assert client.get(AUDIT, params={"since": "soon"}).json()["errors"][0]["field"] == "since"
