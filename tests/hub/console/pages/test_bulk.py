"""Bulk actions on doubts."""

from __future__ import annotations

from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.console.sample_claims import doubt

from onceward.core.claim import Status
from onceward.ledger import Ledger

FORM = "/console/in-doubt/bulk"


def statuses(ledger: Ledger, keys: list[str], scope: str = "http:user:ada") -> list[str]:
    found = [ledger.blocking.read(scope, key) for key in keys]
    return [entry.status.value for entry in found if entry is not None]


def test_a_plan_comes_first_and_then_a_result_for_each(ledger: Ledger, browser: NoScriptBrowser) -> None:
    keys = [f"pay-{number:02}" for number in range(17)]
    for key in keys:
        doubt(ledger, key)
    doubt(ledger, "mail-1", endpoint="POST /mail")
    plan = browser.get(f"{FORM}?q=endpoint:/pay&verdict=not_committed")
    before = statuses(ledger, keys)
    incomplete = browser.send(plan, FORM, reason="the bank was down")
    done = browser.send(plan, FORM, final="provider_final", reason="the bank was down")

    assert "17 match" in plan.text
    assert "mail-1" not in plan.text
    assert before == ["in_doubt"] * 17
    assert incomplete.status == 400
    assert "17 of 17 recorded" in done.text
    assert statuses(ledger, [*keys, "mail-1"]) == ["failed"] * 17 + ["in_doubt"]


def test_operations_that_happened_are_recorded_without_an_answer(ledger: Ledger, browser: NoScriptBrowser) -> None:
    doubt(ledger, "pay-1")
    doubt(ledger, "charge:1", "charges")
    done = browser.send(browser.get(f"{FORM}?verdict=committed"), FORM, reason="all are in the journal")
    entries = [ledger.blocking.read("http:user:ada", "pay-1"), ledger.blocking.read("charges", "charge:1")]

    assert "2 of 2 recorded" in done.text
    assert [(one.status, one.outcome.kept) for one in entries if one] == [(Status.COMPLETED, False)] * 2
    assert "value" not in dict(browser.get(f"{FORM}?verdict=committed").tags)


def test_an_operation_that_has_changed_meanwhile_is_left_alone(ledger: Ledger, browser: NoScriptBrowser) -> None:
    doubt(ledger, "pay-1")
    doubt(ledger, "pay-2")
    plan = browser.get(f"{FORM}?verdict=not_committed")
    browser.send(plan, FORM, final="operator", reason="first", item=[plan.form(FORM).fields[3][1]])
    doubt(ledger, "pay-1")
    done = browser.send(plan, FORM, final="operator", reason="second")

    assert "1 of 2 recorded" in done.text
    assert "the claim has version" in done.text
    assert statuses(ledger, ["pay-1", "pay-2"]) == ["in_doubt", "failed"]


def test_a_plan_needs_operations_that_the_page_has_shown(ledger: Ledger, browser: NoScriptBrowser) -> None:
    doubt(ledger, "pay-1")
    plan = browser.get(f"{FORM}?verdict=committed")
    for item in ([], ["x"], ["[1, 2, 3]"], ['["a"]']):
        assert browser.send(plan, FORM, reason="seen", item=item).status == 400
    assert statuses(ledger, ["pay-1"]) == ["in_doubt"]
    assert "Nothing matches" in browser.get(f"{FORM}?q=key:none&verdict=committed").text
