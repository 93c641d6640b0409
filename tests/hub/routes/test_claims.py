"""Claims over HTTP, for an admin."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
from tests.backends import BACKENDS, Servers
from tests.hub.in_process_hub import Client, in_process_hub
from tests.hub.tasks_hub import problem

from onceward.core.claim import WIRE_STATUSES, Claim
from onceward.core.outcome import Outcome
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.routes.claims import ClaimStatus
from onceward.ledger import Ledger

CLAIMS = "/api/v1/claims"
SCOPE = "charges"
KEYS = [f"charge:{number}" for number in range(5)]


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def config(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Config:
    return Config(HubSettings(data_dir=str(tmp_path), ledger=BACKENDS[request.param].url(servers, tmp_path)))


@pytest.fixture
def ledger(config: Config) -> Iterator[Ledger]:
    """The hub's ledger, with claims on five keys."""
    with data_folder.ledger(config) as ledger:
        for key in KEYS:
            assert isinstance(ledger.blocking.begin(SCOPE, key, {}, repeatable=True), Claim)
        yield ledger


@pytest.fixture
def client(config: Config, ledger: Ledger) -> Iterator[Client]:  # noqa: ARG001  # its claims
    with closing(open_database(config.database_url)) as database:
        migrate(database)
    with in_process_hub(config) as client:
        yield client


def test_a_list_of_claims_continues_where_its_page_ended(client: Client) -> None:
    found: list[str] = []
    asked: dict[str, str] = {}
    for _ in KEYS:
        page = client.get(CLAIMS, params={"scope": SCOPE, "limit": 2, **asked}).json()
        found += [one["key"] for one in page["claims"]]
        if not page["has_more"]:
            break
        assert len(page["claims"]) == 2
        asked = {"after": page["next_after"]}

    assert page["next_after"] is page["next"] is None
    assert sorted(found) == KEYS


@pytest.mark.parametrize(
    "after",
    ["call\u0001x", "%", "A", "====", "_w", base64.urlsafe_b64encode(b"a\0b\0c").decode()],
    ids=ascii,
)
def test_an_invalid_cursor_is_refused_by_its_name(client: Client, after: str) -> None:
    body = problem(client.get(CLAIMS, params={"after": after}), 400)

    assert [error["field"] for error in body["errors"]] == ["after"]


@pytest.mark.parametrize("client", ["sqlite"], indirect=True)
def test_an_invalid_claim_name_is_refused_by_its_field(client: Client) -> None:
    body = {"scope": SCOPE, "key": KEYS[0], "version": 1, "verdict": "committed", "reason": "I asked"}
    refusals = {
        "scope": [
            client.get(CLAIMS, params={"scope": ""}),
            client.get(CLAIMS, params={"scope": "ü" * 200}),
            client.get(f"{CLAIMS}/show", params={"scope": "", "key": "k"}),
            client.post(f"{CLAIMS}/resolve", json=body | {"scope": ""}),
        ],
        "key": [
            client.get(f"{CLAIMS}/show", params={"scope": SCOPE, "key": ""}),
            client.post(f"{CLAIMS}/resolve", json=body | {"key": "k" * 1025}),
        ],
    }

    for field, answers in refusals.items():
        for answer in answers:
            assert [error["field"] for error in problem(answer, 400)["errors"]] == [field], answer.url


def test_the_api_declares_the_status_words_of_the_package() -> None:
    assert get_args(ClaimStatus) == WIRE_STATUSES


def test_a_recovery_point_and_an_expired_key_are_shown(client: Client, ledger: Ledger) -> None:
    claim = ledger.blocking.begin(SCOPE, "import", {}, repeatable=True)
    assert isinstance(claim, Claim)
    ledger.blocking.mark(claim, 1, '{"batch":"b-1"}')
    shown = client.get(f"{CLAIMS}/show", params={"scope": SCOPE, "key": "import"}).json()
    assert (shown["recovery_point"], shown["not_done_count"], shown["refuse_until"]) == ({"batch": "b-1"}, 0, None)

    ledger.blocking.settle(claim, Outcome(body=b"1"), 0, refuse_seconds=60)

    found = client.get(CLAIMS, params={"scope": SCOPE, "status": "expired"}).json()["claims"]
    assert [(one["key"], one["status"]) for one in found] == [("import", "expired")]
    assert client.get(f"{CLAIMS}/show", params={"scope": SCOPE, "key": "import"}).json()["status"] == "expired"
    completed = client.get(CLAIMS, params={"scope": SCOPE, "status": "completed"}).json()["claims"]
    assert [one["status"] for one in completed] == ["expired"]
    assert found[0]["refuse_until"] > found[0]["expires_at"]
