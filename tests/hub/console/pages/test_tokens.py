"""Tokens, and their revocation."""

from __future__ import annotations

from contextlib import closing

from sqlalchemy import text
from tests.hub.console.conftest import MakeToken
from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.in_process_hub import Client

from onceward.hub.config.config import Config
from onceward.hub.db.engine import open_database


def test_without_tokens_the_page_says_who_may_do_what(browser: NoScriptBrowser) -> None:
    assert "every program on this machine has full access" in browser.get("/console/tokens").text


def test_a_token_is_revoked_after_a_question_and_audited(
    config: Config, client: Client, browser: NoScriptBrowser, make_token: MakeToken
) -> None:
    _, boss = make_token("boss", "admin")
    leaked_id, leaked = make_token("leaked", "read")
    browser.log_in(boss, "/console/tokens")
    asked = browser.get(f"/console/tokens?revoke={leaked_id}")
    before = client.get("/api/v1/topics", headers={"Authorization": f"Bearer {leaked}"}).status_code
    done = browser.send(asked, "/console/tokens")
    after = client.get("/api/v1/topics", headers={"Authorization": f"Bearer {leaked}"}).status_code

    assert "Revoke the token of leaked" in asked.text
    assert (before, after) == (200, 401)
    assert "The token is revoked." in done.text
    assert leaked not in done.response.text
    with closing(open_database(config.database_url)) as database, database.read() as tx:
        wanted = text("SELECT principal, source, target FROM audit_log WHERE action = 'token.revoke'")
        assert [tuple(row) for row in tx.execute(wanted)] == [("boss", "console", leaked_id)]
    assert browser.post("/console/tokens", [*asked.form("/console/tokens").fields]).status == 404


def test_a_name_or_an_unknown_id_revokes_nothing(
    client: Client, browser: NoScriptBrowser, make_token: MakeToken
) -> None:
    token_id, boss = make_token("boss", "read", "admin")
    browser.log_in(boss)
    asked = browser.get(f"/console/tokens?revoke={token_id}")
    for wrong in ("boss", "", "000000000000"):
        assert browser.send(asked, "/console/tokens", token_id=wrong).status == 404
    assert client.get("/api/v1/topics", headers={"Authorization": f"Bearer {boss}"}).status_code == 200


def test_a_reader_does_not_see_tokens(browser: NoScriptBrowser, make_token: MakeToken) -> None:
    _, reader = make_token("grace", "read")
    page = browser.log_in(reader)

    assert "/console/tokens" not in page.links
    assert [browser.get(f"/console/{name}").status for name in ("tokens", "audit", "storage")] == [403] * 3
