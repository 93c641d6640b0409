"""Asking the provider: the reconcile hook of a tool, without running the tool."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.in_process_hub import Client, in_process_hub
from tests.waiting import until

from onceward.core.verdict import Final, Verdict, committed, not_committed, pending
from onceward.hub.config.config import Config, TurnsSettings
from onceward.hub.turns.execution.brain import Brain
from onceward.hub.turns.execution.context import Context
from onceward.tools.tool import tool
from onceward.tools.toolbox import Toolbox


class Bank:
    """A bank whose response is lost, and its later response to the reconcile hook."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.verdict: Verdict = pending

    def brain(self) -> Brain:
        def ask(order: str) -> Verdict:
            assert order == "17"
            return self.verdict

        @tool(effect="irreversible", key_fields=["order"], reconcile=ask, wait_seconds=0)
        def pay(order: str) -> str:
            self.paid.append(order)
            raise ConnectionError("the answer of the bank was lost")

        async def answer(context: Context) -> str:
            return (await context.call("pay", order="17")).status.value

        return Brain(answer, toolbox=Toolbox([pay]))


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def client(config: Config, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    module = types.ModuleType("console_bank")
    module.brain = bank.brain()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "console_bank", module)
    with in_process_hub(replace(config, turns=TurnsSettings(brain="console_bank:brain"))) as client:
        turn_id = client.post("/chat", json={"message": "Pay 17"}, headers={"Prefer": "wait=10"}).json()["turn_id"]
        until(lambda: client.get(f"/turns/{turn_id}").json()["status"] == "complete", "the turn does not end")
        yield client


def test_an_open_answer_changes_nothing_and_a_final_one_ends_the_doubt(
    client: Client, browser: NoScriptBrowser, bank: Bank
) -> None:
    page = browser.get("/console/in-doubt")
    still_open = browser.send(page, "/console/in-doubt/ask")
    again = browser.get("/console/in-doubt")
    bank.verdict = committed({"receipt": "r-17"})
    done = browser.send(browser.get("/console/in-doubt"), "/console/in-doubt/ask")

    assert "Ask the provider" in page.text
    assert "still in doubt" in still_open.text
    assert "The provider, asked just now , does not know yet" in again.text
    assert "The provider says that it happened" in done.text
    assert "r-17" in done.text
    assert "Nothing is in doubt" in browser.get("/console/in-doubt").text
    assert bank.paid == ["17"]
    actions = [row["action"] for row in client.get("/api/v1/audit").json()["entries"]]
    assert actions.count("claim.reconcile") == 4


def test_an_answer_that_it_did_not_happen_lets_the_next_call_run(browser: NoScriptBrowser, bank: Bank) -> None:
    bank.verdict = not_committed(Final.PROVIDER_FINAL)
    done = browser.send(browser.get("/console/in-doubt"), "/console/in-doubt/ask")

    assert "did not happen, and will not" in done.text
    assert bank.paid == ["17"]


def test_an_operation_without_a_hook_is_not_asked_about(browser: NoScriptBrowser) -> None:
    page = browser.get("/console/in-doubt")
    token = dict(page.form("/console/in-doubt/ask").fields)["form_token"]
    fields = {"form_token": token, "scope": "charges", "key": "k", "version": "1"}

    assert browser.post("/console/in-doubt/ask", [*fields.items()]).status == 404
