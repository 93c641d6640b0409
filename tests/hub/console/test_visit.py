"""The checks in front of every page: who may see it, who may change something, and whether the form is ours."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.hub.console.conftest import MakeToken
from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.console.sample_claims import HOSTILE, doubt
from tests.hub.in_process_hub import Client, in_process_hub
from tests.servers.database_pool import DatabasePool

from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.console.visit import SECTIONS, safe_next_path
from onceward.hub.db.engine import open_database
from onceward.hub.security import tokens
from onceward.ledger import Ledger

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " frame-ancestors 'none'; base-uri 'none'"
)
JSON = {"Content-Type": "application/json"}
PAGES = [section.path for section in SECTIONS]


def test_without_tokens_a_local_client_needs_no_login_and_others_do(client: Client, browser: NoScriptBrowser) -> None:
    forwarded = client.get("/console/", headers={"X-Forwarded-For": "203.0.113.9"})

    assert browser.get("/console/").status == 200
    assert (forwarded.status_code, forwarded.headers["location"]) == (303, "/console/login?next=%2Fconsole%2F")


def test_every_page_has_the_promised_headers_and_no_inline_script_or_style(browser: NoScriptBrowser) -> None:
    for path in [*PAGES, "/console/operation?scope=a&key=b"]:
        page = browser.get(path)
        headers = page.response.headers

        assert headers["content-security-policy"] == POLICY, path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "style" not in {name for _, found in page.tags for name in found}
        assert not [tag for tag, found in page.tags if tag == "style" or (tag == "script" and not found.get("src"))]
        assert not [name for _, found in page.tags for name in found if name.startswith("on")]
        sources = [
            value for _, found in page.tags for name, value in found.items() if name in ("src", "href", "action")
        ]
        assert all(value is None or value.startswith(("/", "#")) for value in sources), path


def test_a_form_without_its_token_or_with_that_of_another_visitor_is_refused(
    ledger: Ledger, client: Client, browser: NoScriptBrowser
) -> None:
    claim = doubt(ledger, "pay-1")
    page = browser.get("/console/in-doubt/resolve?scope=http:user:ada&key=pay-1&verdict=not_committed")
    form = dict(page.form("/console/in-doubt/resolve").fields) | {"final": "operator", "reason": "I looked"}
    without = browser.post("/console/in-doubt/resolve", [*{**form, "form_token": ""}.items()])
    other = NoScriptBrowser(client)
    foreign = other.post("/console/in-doubt/resolve", [*form.items()])
    other_site = client.post(
        "/console/in-doubt/resolve",
        data=form,
        headers={"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
    )

    assert [without.status, foreign.status, other_site.status_code] == [403, 403, 403]
    entry = ledger.blocking.read("http:user:ada", "pay-1")
    assert entry is not None
    assert (entry.status.value, entry.version) == ("in_doubt", claim.entry.version)


def test_a_reader_sees_no_buttons_and_its_forged_form_is_refused(
    ledger: Ledger, browser: NoScriptBrowser, make_token: MakeToken
) -> None:
    doubt(ledger, "pay-1")
    _, text = make_token("grace", "read")
    home = browser.log_in(text)
    page = browser.get("/console/in-doubt")
    token = dict(page.form("/console/theme").fields)["form_token"]
    forged = {"scope": "http:user:ada", "key": "pay-1", "version": "1", "verdict": "committed", "reason": "I say so"}
    tried = browser.post("/console/in-doubt/resolve", [*forged.items(), ("form_token", token)])

    assert (home.status, page.status) == (200, 200)
    assert "POST /pay" in page.text
    assert not [link for link in page.links + home.links if "resolve" in link or "bulk" in link]
    assert not page.has_form("/console/in-doubt/ask")
    assert browser.get("/console/in-doubt/resolve?scope=http:user:ada&key=pay-1").status == 403
    assert tried.status == 403
    assert "admin" in tried.text
    entry = ledger.blocking.read("http:user:ada", "pay-1")
    assert entry is not None
    assert entry.status.value == "in_doubt"


def test_a_revoked_token_loses_the_console_with_the_next_request(
    config: Config, browser: NoScriptBrowser, make_token: MakeToken
) -> None:
    token_id, text = make_token("ada", "read", "admin")
    before = browser.log_in(text)
    with closing(open_database(config.database_url)) as database, database.write() as tx:
        tokens.revoke(tx, token_id)
    after = browser.get("/console/operations")

    assert before.path == "/console/"
    assert after.path == "/console/login"


def test_the_api_does_not_accept_the_cookie(client: Client, browser: NoScriptBrowser, make_token: MakeToken) -> None:
    _, text = make_token("ada", "read", "write", "admin")
    browser.log_in(text)
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())

    assert client.get("/api/v1/topics", headers={"Cookie": cookie}).status_code == 401
    assert client.get("/api/v1/claims", headers={"Cookie": cookie}).status_code == 401
    assert client.post("/api/v1/topics", json={"title": "T"}, headers={"Cookie": cookie}).status_code == 401


def test_a_bearer_token_does_not_open_the_console(client: Client, make_token: MakeToken) -> None:
    _, text = make_token("ada", "read", "admin")
    found = client.get("/console/", headers={"Authorization": f"Bearer {text}"})

    assert (found.status_code, found.headers["location"]) == (303, "/console/login?next=%2Fconsole%2F")


def test_hostile_names_cannot_run_script_on_any_page(
    ledger: Ledger, browser: NoScriptBrowser, make_token: MakeToken, client: Client
) -> None:
    key = HOSTILE.replace(" ", "_")
    for scope in (f"http:user:{key}", "charges"):
        doubt(ledger, key, scope, endpoint=f"POST /{HOSTILE}", note=HOSTILE)
    _, text = make_token(HOSTILE, "read", "write", "admin")
    api = {"Authorization": f"Bearer {text}"}
    topic = client.post("/api/v1/topics", json={"title": HOSTILE}, headers=api).json()
    assert client.post("/v1/tasks", json={"id": "t1", "title": HOSTILE}, headers=api).status_code == 201
    files = {"content": ("<script>alert(1)</script>.txt", HOSTILE.encode())}
    client.post("/v1/tasks/t1/attachments", data={"kind": "spec"}, files=files, headers=api)
    kind = HOSTILE.replace("/", "")
    policy = {"policy_key": HOSTILE, "source": HOSTILE, "content_type": kind, "conflict_action": "skip"}
    entry = {"source": HOSTILE, "content_type": kind, "title": HOSTILE, "idempotency_policy_key": HOSTILE}
    assert client.put("/policies", json=policy, headers=api).status_code == 200
    inserted = client.post("/db/insert", json={**entry, "idempotency_key_primary": HOSTILE}, headers=api)
    assert inserted.status_code == 200, inserted.text
    client.post(
        "/chat",
        json={"message": HOSTILE, "customer_id": HOSTILE, "tenant_id": "t"},
        headers={**api, "Prefer": "wait=5"},
    )
    browser.log_in(text)
    turn = next(link for link in browser.get("/console/turns").links if link.startswith("/console/turns/"))
    operation = next(link for link in browser.get("/console/operations").links if "operation?" in link)
    resolve = next(link for link in browser.get("/console/in-doubt").links if "resolve?" in link)
    bulk = next(link for link in browser.get("/console/in-doubt").links if "bulk?" in link)
    edit = next(link for link in browser.get("/console/ingest").links if "policy_key=" in link and "script" in link)
    single = (f"/console/topics/{topic['topic']['id']}", "/console/tasks/t1", edit, f"/console/ingest?source={HOSTILE}")
    query = f"/console/operations?q={HOSTILE}"
    for path in (*PAGES, *single, turn, operation, resolve, bulk, query, f"/console/operation?scope=x&key={HOSTILE}"):
        page = browser.get(path)

        assert page.status in (200, 400, 404), path
        assert not [found for tag, found in page.tags if tag == "img" and found.get("src") == "x"], path
        assert len([tag for tag, found in page.tags if tag == "script" and not found.get("src")]) == 0


@pytest.mark.parametrize(
    "text",
    ["https://evil.example/", "//evil.example", "/console//evil", "/console/\\evil", "/console/\r\nX: y", "", "/"],
)
def test_after_the_login_only_pages_of_the_console_follow(text: str) -> None:
    assert safe_next_path(text) == "/console/"
    assert safe_next_path("/console/operations?q=a") == "/console/operations?q=a"


def test_a_page_without_a_form_says_so_and_an_unknown_one_too(browser: NoScriptBrowser) -> None:
    assert browser.post("/console/operations", []).status == 405
    assert browser.get("/console/logout").status == 405
    unknown = browser.get("/console/nothing")
    assert (unknown.status, unknown.response.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert browser.get("/console").path == "/console/"


def test_a_narrowed_token_sees_only_its_pages(browser: NoScriptBrowser, make_token: MakeToken) -> None:
    _, text = make_token("feed", "read:events")
    page = browser.log_in(text, "/console/events")

    assert page.path == "/console/events"
    assert not [link for link in page.links if link in ("/console/in-doubt", "/console/operations", "/console/turns")]
    assert browser.get("/console/operations").status == 403


def test_every_page_works_with_a_database_and_a_ledger_on_postgresql(
    database_pool: DatabasePool, tmp_path: Path
) -> None:
    with database_pool.borrow() as url:
        with closing(open_database(url)) as database, database.write() as tx:
            _, text = tokens.create(tx, "ada", ["read", "write", "admin"])
        config = Config(HubSettings(data_dir=str(tmp_path), database=url))
        with data_folder.ledger(config) as ledger, in_process_hub(config) as client:
            doubt(ledger, "pay-1")
            headers = {"Authorization": f"Bearer {text}", "Prefer": "wait=10"}
            client.post("/chat", json={"message": "Refund my order 12345"}, headers=headers)
            browser = NoScriptBrowser(client)
            browser.log_in(text)
            found = {path: browser.get(path) for path in PAGES}
            turn = next(link for link in found["/console/turns"].links if link.startswith("/console/turns/"))
            message = {"kind": "telegram", "message": '{"text": "a", "source": {"chat_id": 7, "message_id": 1}}'}
            entry = client.post("/normalize/telegram", content=message["message"], headers={**headers, **JSON}).json()
            client.post("/db/insert", json={**entry, "clean_text": "b"}, headers=headers)
            pasted = browser.send(browser.get("/console/ingest/message"), "/console/ingest/message", **message)
            fields = {"policy_key": "p", "source": "s", "content_type": "c"}
            form = browser.get("/console/ingest/policy")
            created = [browser.send(form, "/console/ingest/policy", **fields).status for _ in range(2)]

            assert "stored b afterwards a" in pasted.text
            assert created == [200, 409]
            assert {path: page.status for path, page in found.items()} == dict.fromkeys(PAGES, 200)
            assert "has been refunded" in browser.get(turn).text
            assert "pay-1" in found["/console/in-doubt"].text
