"""The overview."""

from __future__ import annotations

from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.console.sample_claims import begin, doubt
from tests.hub.in_process_hub import Client

from onceward.ledger import Ledger


def test_an_empty_hub_says_that_nothing_waits(browser: NoScriptBrowser) -> None:
    page = browser.get("/")

    assert page.path == "/console/"
    assert "Nothing is in doubt." in page.text
    assert "1 of 1 alive" in page.text
    assert "no backlog" in page.text


def test_doubts_come_first_then_counters_and_claims_that_are_not_renewed(
    ledger: Ledger, client: Client, browser: NoScriptBrowser
) -> None:
    before = browser.get("/console/").text
    for number in range(5):
        doubt(ledger, f"lost-{number}")
    silent = begin(ledger, "silent")
    ledger.blocking.renew(silent, lease_seconds=1.0)
    for _ in range(3):
        client.post("/api/v1/topics", json={"title": "T"}, headers={"Idempotency-Key": "k-1"})
    page = browser.get("/console/")

    assert "5 in doubt" in page.text
    assert [f"lost-{number}" in page.text for number in range(5)] == [True] * 3 + [False] * 2
    assert "silent" in page.text
    assert "New 0 first" in before
    assert "New 1 first request" in page.text
    assert "Replayed 2 got" in page.text
    assert [found.get("points") for tag, found in page.tags if tag == "polyline"]
