"""Login with a token, and logout."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from http.cookies import SimpleCookie

from sqlalchemy import text
from tests.hub.console.conftest import MakeToken
from tests.hub.console.no_script_browser import NoScriptBrowser, Page
from tests.hub.in_process_hub import Client, in_process_hub

from onceward.hub.config.config import Config
from onceward.hub.console.login_limit import FAILURES_MAX
from onceward.hub.console.visitors import SESSION_COOKIE
from onceward.hub.db.engine import open_database


def test_a_valid_token_opens_the_page_that_was_asked_for(
    config: Config, browser: NoScriptBrowser, make_token: MakeToken
) -> None:
    token_id, secret = make_token("ada", "read", "admin")
    page = browser.log_in(secret, "/console/operations?q=status:failed")

    assert (page.path, page.response.url.query) == ("/console/operations", b"q=status:failed")
    assert "ada" in page.text
    with closing(open_database(config.database_url)) as database, database.read() as tx:
        assert tx.execute(text("SELECT token_id FROM console_sessions")).scalars().all() == [token_id]
        audited = tx.execute(text("SELECT principal, source, action, result, token_id FROM audit_log")).all()
    assert [tuple(row) for row in audited] == [("ada", "console", "console.login", "done", token_id)]


def test_the_cookie_is_for_the_console_alone_and_secure_under_tls(client: Client, make_token: MakeToken) -> None:
    _, secret = make_token("ada", "read")
    found = {}
    for scheme in ("http", "https"):
        browser = NoScriptBrowser(client)
        page = browser.get(f"{scheme}://127.0.0.1:8787/console/login")
        fields = dict(page.form("/console/login").fields) | {"token": secret}
        response = client.post(f"{scheme}://127.0.0.1:8787/console/login", data=fields)
        assert response.status_code == 303
        found[scheme] = SimpleCookie(response.headers["set-cookie"])[SESSION_COOKIE]

    for scheme, cookie in found.items():
        assert (cookie["path"], cookie["samesite"], cookie["max-age"]) == ("/console", "strict", "43200")
        assert cookie["httponly"]
        assert bool(cookie["secure"]) is (scheme == "https")
        assert secret not in cookie.value


def test_behind_a_trusted_proxy_with_tls_the_cookie_is_secure_and_forms_are_from_https(
    config: Config, make_token: MakeToken
) -> None:
    """The hub itself sees plain HTTP. A client that sends the header without the proxy gains nothing."""
    _, secret = make_token("ada", "read", "admin")
    found, statuses = [], []
    https, http = "https://127.0.0.1:8787", "http://127.0.0.1:8787"
    # The clients of these tests come from 127.0.0.1.
    for trusted in (("127.0.0.1",), ("192.0.2.1",)):
        behind = replace(config, hub=replace(config.hub, trusted_proxies=trusted))
        with in_process_hub(behind) as client:
            outside = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}
            page = Page(client.get("/console/login", headers=outside))
            # The browser sends a secure cookie to the proxy. The client of this test does not, over plain HTTP.
            outside["Cookie"] = page.response.headers["set-cookie"].partition(";")[0]
            fields = dict(page.form("/console/login").fields) | {"token": secret}
            for origin in (https, http):
                response = client.post("/console/login", data=fields, headers={**outside, "Origin": origin})
                statuses.append(response.status_code)
                if response.status_code == 303:
                    found.append(SimpleCookie(response.headers["set-cookie"])[SESSION_COOKIE])

    assert statuses == [303, 403, 403, 303]
    assert [bool(cookie["secure"]) for cookie in found] == [True, False]


def test_a_wrong_token_is_refused_and_repeated_ones_have_to_wait(
    browser: NoScriptBrowser, make_token: MakeToken
) -> None:
    _, secret = make_token("ada", "read")
    tried = [browser.log_in(wrong) for wrong in (secret[:-1], "", "ow_x", secret.upper())]
    for _ in range(FAILURES_MAX - len(tried)):
        browser.log_in("wrong")
    last = browser.log_in("wrong")

    assert [page.status for page in tried] == [401] * 4
    assert all("unknown, revoked or expired" in page.text for page in tried)
    assert SESSION_COOKIE not in browser.cookies
    assert (last.status, last.response.headers["retry-after"]) == (429, last.response.headers["retry-after"])


def test_a_token_that_opens_no_page_is_told_so(browser: NoScriptBrowser, make_token: MakeToken) -> None:
    _, secret = make_token("scraper", "metrics")
    page = browser.log_in(secret)

    assert page.status == 403
    assert "cannot open any page" in page.text


def test_a_logout_ends_the_session_for_good(client: Client, browser: NoScriptBrowser, make_token: MakeToken) -> None:
    _, secret = make_token("ada", "read")
    page = browser.log_in(secret)
    cookie = f"{SESSION_COOKIE}={browser.cookies[SESSION_COOKIE]}"
    left = browser.send(page, "/console/logout")

    assert left.path == "/console/login"
    assert client.get("/console/", headers={"Cookie": cookie}).status_code == 303


def test_the_theme_is_a_form_that_returns_to_its_page(browser: NoScriptBrowser) -> None:
    page = browser.send(browser.get("/console/operations?q=a"), "/console/theme", theme="dark")

    assert (page.path, page.response.url.query) == ("/console/operations", b"q=a")
    assert ("html", {"lang": "en", "data-theme": "dark"}) in page.tags
    back = browser.send(page, "/console/theme", theme="auto")
    assert ("html", {"lang": "en"}) in back.tags
