"""Turns: the list, and the way from a superseded turn to its answer."""

from __future__ import annotations

from tests.hub.console.conftest import MakeToken
from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.in_process_hub import Client


def chat(client: Client, message: str, token: str | None = None) -> str:
    headers = {"Prefer": "wait=10", **({"Authorization": f"Bearer {token}"} if token else {})}
    found = client.post("/chat", json={"message": message}, headers=headers).json()
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
    operation = next(link for link in page.links if "operation?" in link)
    assert "A retry now gets the recorded result" in browser.get(operation).text


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
