"""The page of ingest: what inserts did, and the newest entries."""

from __future__ import annotations

import re

from tests.hub.console.no_script_browser import NoScriptBrowser, Page
from tests.hub.in_process_hub import Client
from tests.hub.ingest_hub import PLAIN, newsletter, thought

PAGE = "/console/ingest"


def counted(page: Page) -> list[int]:
    return [int(found) for found in re.findall(r"([\d,]+) since the start", page.text)]


def test_an_empty_page_says_where_entries_come_from(browser: NoScriptBrowser) -> None:
    page = browser.get(PAGE)

    assert "No entries yet" in page.text
    assert "Test mode is off" in page.text
    assert "email_newsletter_v1" in page.text


def test_entries_are_counted_by_what_their_insert_did(client: Client, browser: NoScriptBrowser) -> None:
    before = counted(browser.get(PAGE))
    key = {"Idempotency-Key": "one"}
    for payload in (thought(1), thought(1, "Buy bread"), {"source": "email"}):
        client.post("/db/insert", json=payload)
    client.post("/db/insert", json={"items": [newsletter("<1@x>", None), newsletter("<1@x>", None), 5]})
    for _ in range(2):
        client.post("/db/insert", json=PLAIN, headers=key)
    after = counted(browser.get(PAGE))

    assert [now - then for now, then in zip(after, before, strict=True)] == [3, 1, 1, 2]
    assert 'onceward_entries_total{action="skipped"}' in client.get("/metrics").text


def test_the_newest_entries_are_listed_with_policy_and_keys_and_can_be_filtered(
    client: Client, browser: NoScriptBrowser
) -> None:
    items = [thought(number, f"Text {number}", title=f"Thought {number}") for number in range(60)]
    client.post("/db/insert", json={"items": items})
    client.post("/db/insert", json=newsletter("<1@example.com>", "day", title="Weekly update"))
    client.post("/db/insert", json=PLAIN)
    first = browser.get(PAGE)
    older = browser.get(next(link for link in first.links if "after=" in link))
    mails = browser.get(f"{PAGE}?source=+Email&content_type=newsletter")
    nothing = browser.get(f"{PAGE}?source=fax")

    for words in ("62 stored in pkm", "Weekly update", "primary <1@example.com>", "By hand", "no policy", "tg:7:59"):
        assert words in first.text
    assert ("Thought 0 " in first.text, "Thought 0 " in older.text) == (False, True)
    assert ("Weekly update" in mails.text, "Thought" in mails.text) == (True, False)
    assert "No entry matches" in nothing.text
    assert browser.get(f"{PAGE}?after=x").status == 400


def test_test_mode_is_shown_and_decides_what_is_listed(client: Client, browser: NoScriptBrowser) -> None:
    client.post("/db/insert", json=PLAIN)
    client.put("/test-mode", json={"enabled": True})
    page = browser.get(PAGE)

    assert "Test mode is on" in page.text
    assert "By hand" not in page.text
    assert "0 stored in pkm_test" in page.text
