"""The decision about one operation in doubt."""

from __future__ import annotations

from contextlib import closing

from sqlalchemy import text
from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.console.sample_claims import doubt
from tests.hub.console.shop import Shop

from onceward.core.claim import Claim, Replay, Status
from onceward.core.outcome import unpack
from onceward.hub.config.config import Config
from onceward.hub.db.engine import open_database
from onceward.ledger import Ledger

FORM = "/console/in-doubt/resolve"


def at(scope: str, key: str, verdict: str) -> str:
    return f"{FORM}?scope={scope}&key={key}&verdict={verdict}"


def test_a_response_is_recorded_as_it_was_given_and_audited(
    config: Config, ledger: Ledger, browser: NoScriptBrowser
) -> None:
    doubt(ledger, "pay-1")
    page = browser.get(at("http:user:ada", "pay-1", "committed"))
    body = '{"charge": "ch_1"}\r\n'
    done = browser.send(
        page, FORM, status="201", headers="Location: /charges/1\r\nX-A: b", body=body, reason="ch_1 is in the journal"
    )
    entry = ledger.blocking.read("http:user:ada", "pay-1")

    assert done.path == "/console/operation"
    assert "Recorded: it happened." in done.text
    assert "A retry now gets the stored 201 response again" in done.text
    assert "Location: /charges/1" in done.text
    assert entry is not None
    assert entry.status is Status.COMPLETED
    assert '{"charge": "ch_1"}' in done.text
    with closing(open_database(config.database_url)) as database, database.read() as tx:
        rows = tx.execute(text("SELECT principal, source, action, result FROM audit_log ORDER BY audit_id")).all()
        events = tx.execute(text("SELECT name FROM events")).scalars().all()
    assert [tuple(row) for row in rows] == [
        ("local", "console", "claim.resolve", "started"), ("local", "console", "claim.resolve", "done"),
    ]  # fmt: skip
    assert "claim.resolved" in events


def test_a_value_is_recorded_for_other_operations(ledger: Ledger, browser: NoScriptBrowser) -> None:
    claim = doubt(ledger, "charge:1", "charges")
    done = browser.send(
        browser.get(at("charges", "charge:1", "committed")), FORM, value='{"charge": 1}', reason="the bank says so"
    )
    again = ledger.blocking.begin("charges", "charge:1", {"key": "charge:1"}, repeatable=False)

    assert done.status == 200
    assert isinstance(again, Replay)
    assert again.entry.outcome.body is not None
    assert unpack(again.entry.outcome.body) == {"charge": 1}
    assert again.entry.version == claim.entry.version


def test_without_a_result_a_retry_gets_outcome_not_kept(ledger: Ledger, browser: NoScriptBrowser) -> None:
    for scope in ("http:user:ada", "charges"):
        doubt(ledger, "k", scope)
        done = browser.send(browser.get(at(scope, "k", "committed")), FORM, keeps="nothing", reason="seen")
        entry = ledger.blocking.read(scope, "k")

        assert entry is not None
        assert (entry.status, entry.outcome.kept) == (Status.COMPLETED, False)
        assert "outcome-not-kept" in done.text or "OutcomeNotKept" in done.text


def test_it_did_not_happen_needs_a_final_reason_and_lets_the_retry_run(
    ledger: Ledger, browser: NoScriptBrowser
) -> None:
    doubt(ledger, "pay-1")
    page = browser.get(at("http:user:ada", "pay-1", "not_committed"))
    unfinished = browser.send(page, FORM, reason="I looked")
    done = browser.send(page, FORM, final="provider_final", reason="the bank has no such charge")
    again = ledger.blocking.begin("http:user:ada", "pay-1", {"key": "pay-1"}, repeatable=False)

    assert unfinished.status == 400
    assert "must be chosen" in unfinished.text
    assert "I looked" in unfinished.response.text
    assert "runs again, as attempt 2" in done.text
    assert isinstance(again, Claim)
    entry = ledger.blocking.read("http:user:ada", "pay-1")
    assert entry is not None


def test_a_decision_about_an_older_version_changes_nothing(ledger: Ledger, browser: NoScriptBrowser) -> None:
    doubt(ledger, "pay-1")
    page = browser.get(at("http:user:ada", "pay-1", "not_committed"))
    browser.send(page, FORM, final="operator", reason="first")
    doubt(ledger, "pay-1")
    late = browser.send(page, FORM, final="operator", reason="second")
    entry = ledger.blocking.read("http:user:ada", "pay-1")

    assert late.status == 409
    assert "nothing was changed" in late.text
    assert entry is not None
    assert entry.status is Status.IN_DOUBT


def test_invalid_input_is_explained_and_what_was_typed_stays(ledger: Ledger, browser: NoScriptBrowser) -> None:
    doubt(ledger, "pay-1")
    doubt(ledger, "charge:1", "charges")
    page = browser.get(at("http:user:ada", "pay-1", "committed"))
    wrong = {"status": {"status": "503"}, "headers": {"headers": "no colon"}, "reason": {"reason": ""}}
    for name, fields in wrong.items():
        tried = browser.send(page, FORM, **{"reason": "seen", "body": "typed text", **fields})

        assert tried.status == 400, name
        assert "typed text" in tried.response.text
    value = browser.send(browser.get(at("charges", "charge:1", "committed")), FORM, value="{", reason="seen")
    assert value.status == 400
    assert "not valid JSON" in value.text


def test_a_client_that_retries_gets_the_answer_of_the_operator(ledger: Ledger, browser: NoScriptBrowser) -> None:
    with Shop(ledger) as shop:
        first, refused = shop.pay("order-1"), shop.pay("order-1")
        page = browser.get(at("http:user:shopper", "pay-order-1", "committed"))
        browser.send(page, FORM, status="201", body='{"charge":"ch_1"}', reason="ch_1 is in the journal")
        answer = shop.pay("order-1")

    assert (first.status_code, refused.json()["code"]) == (500, "in-doubt")
    assert (answer.status_code, answer.content, shop.charged) == (201, b'{"charge":"ch_1"}', ["order-1"])
