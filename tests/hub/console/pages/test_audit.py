"""The page of the audit log."""

from __future__ import annotations

from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.console.sample_claims import doubt

from onceward.ledger import Ledger


def test_the_page_shows_decisions_newest_first(ledger: Ledger, browser: NoScriptBrowser) -> None:
    empty = browser.get("/console/audit")
    doubt(ledger, "pay-1")
    page = browser.get("/console/in-doubt/resolve?scope=http:user:ada&key=pay-1&verdict=not_committed")
    browser.send(page, "/console/in-doubt/resolve", final="operator", reason="I looked")
    shown = browser.get("/console/audit").text

    assert "Nothing is recorded yet" in empty.text
    assert shown.index("done") < shown.index("started")
    for words in ("claim.resolve", "http:user:ada pay-1", "local", "console", "operator: I looked"):
        assert words in shown
