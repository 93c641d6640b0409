"""A pasted message: the page predicts what the insert then does, and writes nothing itself."""

from __future__ import annotations

import json

import pytest
from tests.hub.console.conftest import MakeToken
from tests.hub.console.no_script_browser import NoScriptBrowser, Page
from tests.hub.console.pages.ingest.conftest import Dump
from tests.hub.console.sample_claims import HOSTILE
from tests.hub.in_process_hub import Client

FORM = "/console/ingest/message"


def mail(number: int, day: int = 17, subject: str = "Weekly update") -> str:
    return (
        f"From: Sender <sender@example.com>\r\nSubject: {subject}\r\nMessage-ID: <{number}@example.com>\r\n"
        f"Date: Tue, {day} Feb 2026 10:00:00 +0000\r\nList-Id: news\r\n\r\nAll the news.\r\n\r\nMore of it.\r\n"
    )


def telegram(text: str, message_id: int = 42, **source: object) -> str:
    return json.dumps({"text": text, "source": {"chat_id": 7, "message_id": message_id, **source}})


def paste(browser: NoScriptBrowser, kind: str, message: str) -> Page:
    page = browser.send(browser.get(FORM), FORM, kind=kind, message=message)
    assert page.status == 200
    return page


def insert(client: Client, kind: str, message: str) -> tuple[dict[str, object], dict[str, object]]:
    media = "message/rfc822" if kind == "email" else "application/json"
    normalized = client.post(f"/normalize/{kind}", content=message.encode(), headers={"Content-Type": media})
    stored = client.post("/db/insert", json=normalized.json())
    assert (normalized.status_code, stored.status_code) == (200, 200)
    return normalized.json(), stored.json()


@pytest.mark.parametrize(
    ("kind", "message"), [("email", mail(1)), ("telegram", telegram("Buy milk")), ("telegram", telegram("https://a.example/x"))]
)  # fmt: skip
def test_every_field_of_the_normalized_message_is_shown(
    client: Client, browser: NoScriptBrowser, kind: str, message: str
) -> None:
    page = paste(browser, kind, message)
    normalized, _ = insert(client, kind, message)

    for name, value in normalized.items():
        shown = value if isinstance(value, str) else "none" if value is None else ""
        assert name in page.text or name.startswith(("idempotency_", "reasons"))
        assert " ".join(shown.split()) in page.text, name
    assert all(reason in page.text for reason in normalized["reasons"])  # type: ignore[attr-defined]
    assert "It would be inserted" in page.text


def test_the_prediction_is_what_the_insert_does_and_nothing_is_written(
    client: Client, browser: NoScriptBrowser, dump: Dump
) -> None:
    """All rows of all tables are compared, before and after each page."""
    for message in (mail(1), mail(2, day=18)):
        insert(client, "email", message)
    insert(client, "telegram", telegram("Buy milk", date=1770000000))
    messages = {
        "skipped: a stored entry has its primary key": ("email", mail(1)),
        "skipped: a stored entry has its secondary key": ("email", mail(3)),
        "skipped: a stored entry has its primary key (another entry has": ("email", mail(1, day=18)),
        "updated: a stored entry has its primary key": ("telegram", telegram("Buy bread", date=1770000000)),
        "updated, without a change": ("telegram", telegram("Buy milk", date=1770000000)),
        "inserted: no stored entry": ("telegram", telegram("Call home", 43)),
    }
    before = dump()
    pages = {expected: paste(browser, *message) for expected, message in messages.items()}
    assert dump() == before

    for expected, page in pages.items():
        assert f"It would be {expected}" in page.text
    split = pages["skipped: a stored entry has its primary key (another entry has"]
    update = pages["updated: a stored entry has its primary key"]
    other = next(row for row in dump()["pkm_entries"] if "<2@example.com>" in row)
    assert f"Split with {other[1]}" in split.text
    assert "Changes capture_text, clean_text, content_hash" in update.text.replace("title, ", "")
    assert "stored Buy milk afterwards Buy bread" in update.text
    for expected, (kind, message) in messages.items():
        _, stored = insert(client, kind, message)
        assert str(stored["action"]) == expected.partition(":")[0].partition(",")[0]


def test_a_message_that_the_api_would_refuse_is_shown_with_its_reason(
    client: Client, browser: NoScriptBrowser, dump: Dump
) -> None:
    policy = {"policy_key": "telegram_link_v1", "source": "telegram", "content_type": "link", "conflict_action": "skip"}
    client.put("/policies", json={**policy, "enabled": False})
    before = dump()

    for kind, message, reason in (
        ("email", "Subject: hello\n\ntext", "Refused with 400"),
        ("email", " ", "the mail is empty"),
        ("telegram", "{", "not valid JSON"),
        ("telegram", "[]", "must be a JSON object"),
        ("telegram", '{"text": "a", "text": "b"}', "twice in one object"),
        ("telegram", telegram("https://a.example/x"), "'telegram_link_v1' is a disabled policy"),
    ):
        page = paste(browser, kind, message)
        assert "Refused with 400" in page.text, message
        assert reason in page.text
    assert dump() == before


def test_a_bad_form_is_refused(browser: NoScriptBrowser) -> None:
    page = browser.get(FORM)

    assert browser.send(page, FORM, kind="fax", message="x").status == 400
    assert browser.send(page, FORM, kind="email", message="a\0b").status == 400
    assert browser.send(page, FORM, kind="email", message="x" * 1024 * 1024).status == 413


def test_a_message_stays_text_on_the_page(browser: NoScriptBrowser) -> None:
    for kind, message in (
        ("email", mail(1, subject=HOSTILE) + HOSTILE),
        ("telegram", telegram(HOSTILE)),
        ("telegram", HOSTILE),
    ):
        page = paste(browser, kind, message)

        assert not [found for tag, found in page.tags if tag == "img" and found.get("src") == "x"]
        assert not [tag for tag, found in page.tags if tag == "script" and not found.get("src")]
        assert dict(page.form(FORM).fields)["message"].strip() == message.replace("\r\n", "\n").strip()


def test_pasting_needs_the_scope_of_the_route(browser: NoScriptBrowser, make_token: MakeToken, client: Client) -> None:
    _, reader = make_token("grace", "read")
    _, writer = make_token("ada", "read", "write")
    browser.log_in(reader)
    listed = browser.get("/console/ingest")
    token = dict(listed.form("/console/theme").fields)["form_token"]
    forged = browser.post(FORM, [("form_token", token), ("kind", "email"), ("message", mail(1))])
    shown = browser.get(FORM)
    other = NoScriptBrowser(client)
    other.log_in(writer)

    assert (listed.status, shown.status, forged.status) == (200, 403, 403)
    assert not [link for link in listed.links if link.startswith("/console/ingest/")]
    assert FORM in other.get("/console/ingest").links
    assert paste(other, "email", mail(1)).status == 200
    assert other.get("/console/ingest/policy").status == 403


def test_test_mode_decides_which_entries_count(client: Client, browser: NoScriptBrowser) -> None:
    insert(client, "email", mail(1))
    client.put("/test-mode", json={"enabled": True})
    page = paste(browser, "email", mail(1))

    assert "It would be inserted" in page.text
    assert "pkm_test , because test mode is on" in page.text
