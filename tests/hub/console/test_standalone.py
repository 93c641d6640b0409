"""The console of an application's own ledger."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.hub.console.sample_claims import doubt, settle
from tests.hub.in_process_hub import in_process_app

from onceward import open_ledger
from onceward.errors import NotFound
from onceward.hub.config.config import Config, HubSettings, IdempotencySettings
from onceward.hub.console.standalone import chosen_namespace, create_app
from onceward.ledger.ledger import Ledger


def config_of(folder: Path, namespace: str = "idempotency") -> Config:
    return Config(HubSettings(ledger=f"sqlite:///{folder}/ledger.db"), IdempotencySettings(key_prefix=namespace))


@pytest.fixture
def shop(tmp_path: Path) -> Ledger:
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        doubt(ledger, "charge:1", "charges", endpoint="", note="the bank timed out")
        settle(ledger, "charge:2")
        return ledger


@pytest.mark.usefixtures("shop")
def test_the_pages_show_the_ledger_and_those_of_a_hub_do_not_exist(tmp_path: Path) -> None:
    app = create_app(config_of(tmp_path, "onceward"))
    paths = ("/", "/console/", "/console/in-doubt", "/console/operations", "/console/events", "/console/turns")

    async def visit_from_elsewhere() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=("203.0.113.9", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8788") as client:
            return await client.get("/console/")

    with in_process_app(app) as client:
        found = {path: client.get(path) for path in paths}
        from_elsewhere = client.run(visit_from_elsewhere())
    statuses = {path: response.status_code for path, response in found.items()}
    assert statuses == {
        "/": 303, "/console/": 200, "/console/in-doubt": 200, "/console/operations": 200, "/console/events": 404,
        "/console/turns": 404,
    }  # fmt: skip
    assert "the bank timed out" in found["/console/in-doubt"].text
    assert "charge:2" in found["/console/operations"].text
    assert "/console/turns" not in found["/console/"].text
    assert from_elsewhere.status_code == 303


def test_the_only_namespace_of_a_ledger_is_chosen(shop: Ledger, tmp_path: Path) -> None:
    assert shop.namespace == "onceward"
    assert chosen_namespace(config_of(tmp_path), is_given=False) == "onceward"
    assert chosen_namespace(config_of(tmp_path, "other"), is_given=True) == "other"
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db", namespace="second") as second:
        settle(second, "charge:3")
    with pytest.raises(NotFound, match="onceward, second"):
        chosen_namespace(config_of(tmp_path), is_given=False)
