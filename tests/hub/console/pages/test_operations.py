"""Operations and their filter bar."""

from __future__ import annotations

from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.console.sample_claims import begin, doubt, settle

from onceward.ledger import Ledger


def test_an_empty_ledger_says_how_to_begin(browser: NoScriptBrowser) -> None:
    page = browser.get("/console/operations")

    assert "No operations yet" in page.text
    assert "Idempotency-Key" in page.text


def test_the_filter_is_in_the_url_and_finds_by_every_field(ledger: Ledger, browser: NoScriptBrowser) -> None:
    settle(ledger, "charge:1")
    doubt(ledger, "pay-1")
    begin(ledger, "pay-2", "http:user:grace", endpoint="POST /refund")
    found = {
        query: [key for key in ("charge:1", "pay-1", "pay-2") if f"key={key.replace(':', '%3A')}" in page.response.text]
        for query in ("", "status:in_doubt", "user:grace", "endpoint:refund", "scope:charges", "key:pay-1", "key:pay-*")
        for page in [browser.get(f"/console/operations?q={query}")]
    }

    assert found == {
        "": ["charge:1", "pay-1", "pay-2"], "status:in_doubt": ["pay-1"], "user:grace": ["pay-2"],
        "endpoint:refund": ["pay-2"], "scope:charges": ["charge:1"], "key:pay-1": ["pay-1"], "key:pay-*": ["pay-1", "pay-2"],
    }  # fmt: skip
    assert "Nothing matches" in browser.get("/console/operations?q=key:none").text


def test_a_wrong_filter_or_cursor_is_explained(browser: NoScriptBrowser) -> None:
    wrong = browser.get("/console/operations?q=status:lost")

    assert wrong.status == 400
    assert "in_progress, completed, failed, in_doubt, expired" in wrong.text
    assert browser.get("/console/operations?after=====").status == 400
