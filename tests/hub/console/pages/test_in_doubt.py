"""The page of doubts."""

from __future__ import annotations

from tests.hub.console.conftest import MakeToken
from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.console.sample_claims import doubt

from onceward.ledger import Ledger


def test_an_empty_page_says_when_something_would_appear(browser: NoScriptBrowser) -> None:
    page = browser.get("/console/in-doubt")

    assert "Nothing is in doubt" in page.text
    assert "on_crash" in page.text


def test_each_doubt_has_its_evidence_and_the_oldest_is_first(ledger: Ledger, browser: NoScriptBrowser) -> None:
    claim = doubt(ledger, "pay-1", note="the bank timed out")
    ledger.blocking.mark(claim, 1, '{"intent": "pi_17"}')
    doubt(ledger, "mail-1", "mails", endpoint="")
    page = browser.get("/console/in-doubt")
    filtered = browser.get("/console/in-doubt?q=endpoint:/pay")

    assert page.text.index("pay-1") < page.text.index("mail-1")
    for evidence in ("POST /pay", "ada", "attempt 1", "the bank timed out", "pi_17"):
        assert evidence in page.text
    assert "mail-1" not in filtered.text
    assert "1 matches" in filtered.text
    assert browser.get("/console/in-doubt?q=status:lost").status == 400


def test_a_reader_sees_neither_whole_keys_nor_recovery_points(
    ledger: Ledger, browser: NoScriptBrowser, make_token: MakeToken
) -> None:
    key = "a-key-that-a-client-chose-and-nobody-guesses"
    claim = doubt(ledger, key)
    ledger.blocking.mark(claim, 1, '{"intent": "pi_17"}')
    _, secret = make_token("grace", "read")
    browser.log_in(secret)
    for path in ("/console/in-doubt", "/console/", "/console/operations"):
        page = browser.get(path)

        assert key not in page.response.text
        assert key[:20] in page.text
        assert "pi_17" not in page.response.text
    known = browser.get(f"/console/operation?scope=http:user:ada&key={key}")
    assert known.status == 200
    assert "pi_17" not in known.response.text
    assert browser.get(f"/console/operations?q=key:{key}").response.text.count(key) >= 2
