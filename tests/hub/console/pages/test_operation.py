"""The page of one operation."""

from __future__ import annotations

from tests.hub.console.conftest import MakeToken
from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.in_process_hub import Client

from onceward.ledger import Ledger


def test_a_request_shows_its_response_its_checks_and_what_a_retry_gets(
    client: Client, browser: NoScriptBrowser
) -> None:
    for title in ("T", "T", "other"):
        client.post("/api/v1/topics", json={"title": title}, headers={"Idempotency-Key": "k-1", "X-Request-ID": "r-1"})
    page = browser.get("/console/operation?scope=http:user:local&key=k-1")

    assert "A retry now gets the stored 201 response again" in page.text
    assert '"title":"T"' in page.response.text.replace("&#34;", '"').replace(" ", "")
    assert "content-type: application/json" in page.text.lower()
    for words in ("ran", "replayed", "422: another request had used this key", "r-1"):
        assert words in page.text
    assert "this worker (process) has in memory" in page.text
    assert "curl -i -X POST http://127.0.0.1:8787/api/v1/topics" in page.text


def test_a_reader_does_not_see_the_stored_response(
    client: Client, browser: NoScriptBrowser, make_token: MakeToken
) -> None:
    headers = {"Idempotency-Key": "k-1"}
    client.post("/api/v1/topics", json={"title": "a private title"}, headers=headers)
    path = "/console/operation?scope=http:user:local&key=k-1"
    as_admin = browser.get(path)
    _, secret = make_token("grace", "read")
    browser.log_in(secret)
    as_reader = browser.get(path)

    assert "a private title" in as_admin.response.text
    assert as_reader.status == 200
    assert "a private title" not in as_reader.response.text


def test_an_unknown_operation_is_a_page_too(browser: NoScriptBrowser) -> None:
    page = browser.get("/console/operation?scope=charges&key=none")

    assert page.status == 404
    assert "no claim with this key" in page.text
    assert browser.get("/console/operation").status == 400


def test_the_numbers_of_a_check_come_from_the_ring(ledger: Ledger, browser: NoScriptBrowser) -> None:
    ledger.blocking.begin("charges", "c-1", {}, repeatable=True)
    page = browser.get("/console/operation?scope=charges&key=c-1")

    assert "None in this worker." in page.text
    assert "waits, and then raises Busy" in page.text
