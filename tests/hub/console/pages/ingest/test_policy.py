"""A policy in a form: the checks of the API, one line in the audit log, and no lost updates."""

from __future__ import annotations

from typing import Any

from tests.hub.console.conftest import MakeToken
from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.console.pages.ingest.conftest import Dump
from tests.hub.in_process_hub import Client

FORM = "/console/ingest/policy"
THOUGHT = f"{FORM}?policy_key=telegram_thought_v1"
NEW = {"policy_key": "notes_v1", "source": "Notes", "content_type": "note"}


def policies(client: Client) -> dict[str, Any]:
    found = client.get("/policies").json()["policies"]
    return {one["policy_key"]: one for one in found}


def audit(client: Client) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get("/api/v1/audit").json()["entries"]
    return rows


def test_a_policy_is_edited_with_the_audit_line_of_the_api(client: Client, browser: NoScriptBrowser) -> None:
    page = browser.get(THOUGHT)
    unchanged = browser.send(page, FORM)
    same = policies(client)["telegram_thought_v1"]
    saved = browser.send(
        browser.get(THOUGHT), FORM, updates="some", update_field=["clean_text", "metadata"], secondary_role="identity"
    )
    changed = policies(client)["telegram_thought_v1"]
    sent = {name: value for name, value in changed.items() if name != "policy_id"}
    client.put("/policies", json=sent)
    by_api, by_console, *_ = audit(client)

    assert "Policy telegram_thought_v1 is saved" in unchanged.text
    assert (same["update_fields"], same["secondary_role"], same["enabled"]) == (None, "hint", True)
    assert (saved.path, "clean_text, metadata" in saved.text) == ("/console/ingest", True)
    assert (changed["update_fields"], changed["secondary_role"]) == (["clean_text", "metadata"], "identity")
    assert (by_console["source"], by_api["source"]) == ("console", "api")
    assert {**by_console["details"]} == {**by_api["details"]}
    assert [one["action"] for one in (by_api, by_console)] == ["policy.put", "policy.put"]


def test_a_policy_is_created_and_disabled(client: Client, browser: NoScriptBrowser) -> None:
    browser.send(browser.get(FORM), FORM, **NEW)
    created = policies(client)["notes_v1"]
    page = browser.get(f"{FORM}?policy_key=notes_v1")
    fields = [(name, value) for name, value in page.form(FORM).fields if name != "enabled"]
    browser.post(FORM, fields)

    assert (created["source"], created["conflict_action"], created["enabled"]) == ("notes", "update", True)
    assert policies(client)["notes_v1"]["enabled"] is False


def test_invalid_values_are_refused_as_the_api_refuses_them_and_nothing_is_written(
    browser: NoScriptBrowser, dump: Dump
) -> None:
    before = dump()
    for wrong in (
        {"policy_key": " "},
        {"source": ""},
        {"content_type": "note/"},
        {"conflict_action": "drop"},
        {"secondary_role": "none"},
        {"updates": "some", "update_field": "created_at"},
        {"updates": "some", "update_field": "nothing"},
        {"policy_key": "x" * 129},
    ):
        page = browser.send(browser.get(FORM), FORM, **{**NEW, **wrong})

        assert page.status == 400, wrong
        assert "Nothing was changed." in page.text
        assert next(iter(wrong)).replace("updates", "update_fields") in page.text
    assert dump() == before
    assert browser.get(f"{FORM}?policy_key=none").status == 404


def test_a_form_does_not_overwrite_a_change_that_it_has_not_shown(
    client: Client, browser: NoScriptBrowser, dump: Dump
) -> None:
    page, new = browser.get(THOUGHT), browser.get(FORM)
    sent = {"policy_key": "telegram_thought_v1", "source": "telegram", "content_type": "thought/note"}
    client.put("/policies", json={**sent, "conflict_action": "skip"})
    client.put("/policies", json={**NEW, "conflict_action": "skip"})
    before = dump()
    late = browser.send(page, FORM, secondary_role="identity")
    again = browser.send(new, FORM, **NEW)
    client.put("/test-mode", json={"enabled": True})
    switched = browser.send(browser.get(THOUGHT), FORM, schema="pkm")
    client.put("/test-mode", json={"enabled": False})

    assert [late.status, again.status, switched.status] == [409, 409, 409]
    assert "is different by now" in late.text
    assert "test mode was switched" in switched.text
    tables = ("pkm_idempotency_policies", "pkm_test_idempotency_policies")
    after = dump()
    assert [after[name] for name in tables] == [before[name] for name in tables]
    assert [row["action"] for row in audit(client)].count("policy.put") == 2


def test_a_reader_sees_the_policies_and_no_buttons(browser: NoScriptBrowser, make_token: MakeToken) -> None:
    _, text = make_token("grace", "read", "write")
    browser.log_in(text)
    page = browser.get("/console/ingest")
    token = dict(page.form("/console/theme").fields)["form_token"]
    forged = browser.post(FORM, [*NEW.items(), ("form_token", token), ("conflict_action", "skip"), ("seen", "")])

    assert "telegram_thought_v1" in page.text
    assert not [link for link in page.links if link.startswith(FORM)]
    assert (forged.status, browser.get(THOUGHT).status) == (403, 403)
