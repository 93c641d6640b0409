"""Topics and one topic."""

from __future__ import annotations

from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.in_process_hub import Client


def test_a_topic_shows_its_messages_and_attachments(client: Client, browser: NoScriptBrowser) -> None:
    empty = browser.get("/console/topics")
    topic = client.post("/api/v1/topics", json={"title": "Order 17"}).json()["topic"]["id"]
    client.post(f"/api/v1/topics/{topic}/messages", json={"sender": "ada", "content": "Where is it?"})
    client.post(f"/api/v1/topics/{topic}/attachments", json={"kind": "note", "value_json": {"text": "on its way"}})
    listed, page = browser.get("/console/topics"), browser.get(f"/console/topics/{topic}")

    assert "No topics yet" in empty.text
    assert f"/console/topics/{topic}" in listed.links
    for words in ("Order 17", "Where is it?", "ada", "note", "on its way"):
        assert words in page.text
    assert browser.get("/console/topics/top_none").status == 404
