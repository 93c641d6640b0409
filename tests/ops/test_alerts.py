"""The alert rules and the dashboard in `ops/`, against the `/metrics` of a real hub.

The conditions are real where a test can create them: doubts, a dead ledger, unprotected requests, rows of turns. Slow
requests and refusals are counted directly, and a target that is down is what Prometheus makes of it.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi import FastAPI
from sqlalchemy import text
from tests.hub.asgi_client import JSON, request, send_request
from tests.hub.in_process_hub import Client, in_process_hub
from tests.markdown import anchors
from tests.ops.promql import Expression, scrape

from onceward import Ledger, metrics
from onceward.core.claim import Claim
from onceward.http import IdempotencyMiddleware
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.web.metrics import http_counts
from onceward.store.open import open_store

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "docs" / "guides" / "operations.md"
RULES: list[dict[str, Any]] = yaml.safe_load((ROOT / "ops" / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "ops" / "dashboard.json").read_text())
ALERTS = {rule["alert"]: rule for rule in RULES}
# Nothing listens there.
DEAD = "redis://127.0.0.1:1/0"
# Made by Prometheus itself.
OF_PROMETHEUS = {"up": {"job", "instance"}}
OF_EVERY_TARGET = {"job", "instance"}

TURN = text("""
    INSERT INTO turns (id, turn_group_id, principal, tenant_id, agent_id, customer_id, channel, session_key, state,
                       accumulate_until, created_at, updated_at)
    VALUES (:id, 'g', 'p', 't', 'a', 'c', 'web', :id, :state, '9999', '', '')
""")


class ScrapedHub:
    """A hub, and what can happen to it."""

    def __init__(self, client: Client, config: Config) -> None:
        self._client = client
        self.config = config

    def scrape(self) -> str:
        return self._client.get("/metrics").text

    def put_in_doubt(self, seconds_ago: float) -> None:
        claimed_at = int((time.time() - seconds_ago) * 1e6)
        store = open_store(self.config.ledger_url, clock=lambda: claimed_at)
        with closing(Ledger(store, namespace="idempotency")) as ledger:
            claim = ledger.blocking.begin("charges", f"{seconds_ago} seconds ago", repeatable=False)
            assert isinstance(claim, Claim)
            assert ledger.blocking.doubt(claim)

    def add_turns(self, state: str, count: int) -> None:
        with closing(open_database(self.config.database_url)) as database, database.write() as tx:
            for number in range(count):
                tx.execute(TURN, {"id": f"{state}{number}", "state": state})

    def send_keyed_request(self) -> int:
        headers = {"Idempotency-Key": "k"}
        return self._client.post("/v1/tasks", json={"id": "t1", "title": "A task"}, headers=headers).status_code


@pytest.fixture(autouse=True)
def fresh_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CACHE_SECONDS", 0.0)
    monkeypatch.setattr(metrics, "COST_FACTOR", 0.0)
    monkeypatch.setattr(metrics, "WAIT_SECONDS", 30.0)


@pytest.fixture(params=[""])
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    config = Config(HubSettings(data_dir=str(tmp_path), ledger=request.param))
    with closing(open_database(config.database_url)) as database:
        migrate(database)
    with in_process_hub(config) as client:
        yield ScrapedHub(client, config)


def send_unprotected_request() -> None:
    app = FastAPI()
    app.add_api_route("/pay", lambda: None, methods=["POST"])
    keyed = request("POST", "/pay", (*JSON, (b"idempotency-key", b"k1")))
    send_request(IdempotencyMiddleware(app, store=DEAD, on_store_error="proceed"), keyed)


def respond_slowly(count: int) -> None:
    for _ in range(count):
        http_counts().observe_seconds("/slow", 5.0)


def refuse_streams(count: int) -> None:
    for _ in range(count):
        http_counts().count_refusal("too_many_streams")


def fires(name: str, *scrapes: str) -> bool:
    """Return whether the expression finds something after these scrapes of one hub, a minute apart."""
    taken = [scrape(60.0 * number, hub=text) for number, text in enumerate(scrapes)]
    return bool(Expression(ALERTS[name]["expr"]).evaluate(*taken))


CONDITIONS: dict[str, Callable[[ScrapedHub], object]] = {
    "OncewardInDoubt": lambda hub: hub.put_in_doubt(0),
    "OncewardOldDoubt": lambda hub: hub.put_in_doubt(4 * 3600 + 60),
    "OncewardUnprotected": lambda _: send_unprotected_request(),
    "OncewardSlow": lambda _: respond_slowly(50),
    "OncewardRefusals": lambda _: refuse_streams(11),
    "OncewardTurnsFail": lambda hub: hub.add_turns("failed", 6),
    "OncewardTurnsWait": lambda hub: hub.add_turns("accumulating", 101),
}
# With a test of their own, because the hub must not be a healthy one.
ELSEWHERE = {
    "OncewardStoreDown",
    "OncewardErrors",
    "OncewardGaugesMissing",
    "OncewardHubDown",
    "OncewardVersionsDiffer",
}


def test_every_alert_has_a_test() -> None:
    assert CONDITIONS.keys() | ELSEWHERE == ALERTS.keys()


def test_a_healthy_hub_fires_no_alert_and_each_condition_fires_its_own(hub: ScrapedHub) -> None:
    respond_slowly(1)
    hub.send_keyed_request()
    before = hub.scrape()
    healthy = {name for name in ALERTS if fires(name, before, hub.scrape())}
    found = {}
    for name, happen in CONDITIONS.items():
        happen(hub)
        after = hub.scrape()
        found[name] = fires(name, before, after)
        before = after

    assert healthy == set()
    assert [name for name, fired in found.items() if not fired] == []


@pytest.mark.parametrize("hub", [DEAD], indirect=True)
def test_a_hub_whose_ledger_is_dead_fires_the_alerts_for_it(hub: ScrapedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.ledger.ledger.BEGIN_SECONDS", 0.1)
    # Prometheus sees no increase of a counter that it sees for the first time.
    hub.send_keyed_request()
    before = hub.scrape()
    status = hub.send_keyed_request()
    after = hub.scrape()

    assert status == 503
    names = ["OncewardStoreDown", "OncewardErrors", "OncewardGaugesMissing"]
    assert [name for name in names if not fires(name, before, after)] == []


def test_a_target_that_is_down_and_two_versions_fire(hub: ScrapedHub) -> None:
    shown = hub.scrape()
    other = re.sub(r'(onceward_build_info\{.*version=")[^"]+', r"\g<1>9.9.9", shown)
    versions = Expression(ALERTS["OncewardVersionsDiffer"]["expr"])

    assert fires("OncewardHubDown", "")
    assert versions.evaluate(scrape(0, one=shown, two=other))
    assert not versions.evaluate(scrape(0, one=shown, two=shown))


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*(rule["expr"] for rule in RULES), *panels]


def test_every_metric_and_label_of_the_rules_and_the_dashboard_is_in_a_scrape(hub: ScrapedHub) -> None:
    hub.send_keyed_request()
    hub.scrape()
    known: dict[str, set[str]] = dict(OF_PROMETHEUS)
    for name, labels in scrape(0, hub=hub.scrape()).samples:
        known.setdefault(name, set()).update(label for label, _ in labels)

    for expression in expressions():
        for metric, used in Expression(expression).metrics.items():
            assert metric in known, f"{metric} of {expression} is not in /metrics"
            assert used <= known[metric] | OF_EVERY_TARGET, f"{metric} has no {used - known[metric]}"


def test_every_alert_has_a_section_that_says_what_to_do() -> None:
    sections = anchors(GUIDE)
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (ROOT / page, anchor) == (GUIDE, rule["alert"].lower())
        assert anchor in sections
        assert rule["labels"]["severity"] in {"warning", "critical"}


@functools.cache
def legends() -> list[tuple[str, str]]:
    return [(target["legendFormat"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_the_legend_of_a_panel_uses_labels_that_its_query_returns() -> None:
    for legend, expression in legends():
        grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= grouped - {"le"}, legend


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
