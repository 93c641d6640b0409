"""Turns: the list, and the way from a superseded turn to its answer."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from tests.hub.console.conftest import MakeToken
from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.console.sample_claims import HOSTILE
from tests.hub.in_process_hub import Client, in_process_hub

from onceward.core.claim import Claim
from onceward.core.outcome import Outcome
from onceward.hub import refund_desk
from onceward.hub.config.config import Config
from onceward.hub.turns.execution.brain import Brain
from onceward.hub.turns.execution.context import Context
from onceward.ledger import Ledger


def chat(client: Client, message: str, token: str | None = None, **more: str) -> str:
    headers = {"Prefer": "wait=10", **({"Authorization": f"Bearer {token}"} if token else {})}
    found = client.post("/chat", json={"message": message, **more}, headers=headers).json()
    assert found["status"] == "complete"
    turn_id: str = found["turn_id"]
    return turn_id


def test_an_empty_list_says_how_to_begin(browser: NoScriptBrowser) -> None:
    assert "No turns yet" in browser.get("/console/turns").text
    assert browser.get("/console/turns/turn_none").status == 404


def test_a_turn_shows_its_conversation_its_calls_and_its_receipt(client: Client, browser: NoScriptBrowser) -> None:
    turn_id = chat(client, "Refund my order 12345")
    listed = browser.get("/console/turns")
    page = browser.get(f"/console/turns/{turn_id}")

    assert "Refund my order 12345" in listed.text
    assert f"/console/turns/{turn_id}" in listed.links
    for words in ("has been refunded", "refund", "irreversible", "refund:order:12345:turn_group:", "rf_0", "complete"):
        assert words in page.text
    for words in ("envelope, as the ledger has it", "receipt", "The brain asked for no artifact", "1 message"):
        assert words in page.text
    beat = next(link for link in page.links if "operation?" in link and "beat" in link)
    assert turn_id in browser.get(beat).text
    operation = next(link for link in page.links if "operation?" in link and "refund" in link)
    assert "A retry now gets the recorded result" in browser.get(operation).text


def test_a_beat_whose_key_is_refused_is_shown_as_expired(
    client: Client, browser: NoScriptBrowser, ledger: Ledger
) -> None:
    turn_id = chat(client, "Refund my order 12345")
    beat = next(
        link for link in browser.get(f"/console/turns/{turn_id}").links if "operation?" in link and "beat" in link
    )
    (scope,), (key,) = (parse_qs(urlsplit(beat).query)[name] for name in ("scope", "key"))
    before = ledger.blocking.read(scope, key)
    assert before is not None
    assert ledger.blocking.forget(scope, key, before.version, note="for this test")
    claim = ledger.blocking.begin(scope, key, {}, repeatable=True)
    assert isinstance(claim, Claim)
    ledger.blocking.settle(claim, Outcome(body=b"1"), 0, refuse_seconds=60)

    assert "expired · of 1 message" in browser.get(f"/console/turns/{turn_id}").text


async def remember(context: Context) -> str:
    async def failing() -> str:
        raise ValueError("the model did not answer")

    parsed = await context.artifact("parsing", context.text.upper)
    await context.artifact("plan", lambda: HOSTILE)
    if context.attempt == 1 and "fail" in context.text:
        await context.artifact("never", failing)
    return str(parsed)


def test_a_turn_shows_which_artifacts_were_reused_and_why(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    brain = Brain(remember, reuse={"parsing": {"scope": "same_input"}})
    monkeypatch.setattr(refund_desk, "brain", brain)
    with in_process_hub(config) as client:
        browser = NoScriptBrowser(client)
        first = browser.get(f"/console/turns/{chat(client, 'Hello', session_key='s', message_id='m1')}")
        second = browser.get(f"/console/turns/{chat(client, 'Hello', session_key='s', message_id='m2')}")
        failed = browser.get(f"/console/turns/{chat(client, 'fail once', session_key='t')}")

    assert "parsing run 1" in first.text
    assert "it has not been computed in this session yet computed" in first.text
    assert "same input; computed at" in second.text
    assert second.text.count("reused") - first.text.count("reused") == 1
    assert "its reuse is not declared, so it is always computed" in second.text
    assert "parsing run 1" in failed.text, "also those of a run that failed"
    assert "parsing run 2" in failed.text
    assert "The brain asked for no artifact" not in second.text


def test_a_reader_sees_only_its_own_turns(client: Client, browser: NoScriptBrowser, make_token: MakeToken) -> None:
    _, grace = make_token("grace", "read", "write")
    _, ada = make_token("ada", "read", "write")
    _, boss = make_token("boss", "read", "admin")
    turn_id = chat(client, "Hello from Grace", grace)
    browser.log_in(ada)
    listed, foreign = browser.get("/console/turns").text, browser.get(f"/console/turns/{turn_id}").status
    own = NoScriptBrowser(client)
    own.log_in(grace)
    seen = own.get("/console/turns").text
    admin = NoScriptBrowser(client)
    admin.log_in(boss)

    assert "Hello from Grace" not in listed
    assert foreign == 404
    assert "Hello from Grace" in seen
    assert admin.get(f"/console/turns/{turn_id}").status == 200
