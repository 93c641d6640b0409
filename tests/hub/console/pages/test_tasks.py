"""Tasks and one task."""

from __future__ import annotations

from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.in_process_hub import Client


def test_a_task_shows_its_attachments_with_their_labels(client: Client, browser: NoScriptBrowser) -> None:
    empty = browser.get("/console/tasks")
    client.post("/v1/tasks", json={"id": "t1", "title": "Paint the shed"})
    bare = browser.get("/console/tasks/t1")
    fields = {"kind": "spec", "labels": "green"}
    client.post("/v1/tasks/t1/attachments", data=fields, files={"content": ("plan.txt", b"Paint it green.")})
    listed, page = browser.get("/console/tasks"), browser.get("/console/tasks/t1")

    assert "No tasks yet" in empty.text
    assert "No attachments" in bare.text
    assert "/console/tasks/t1" in listed.links
    for words in ("Paint the shed", "plan.txt", "spec", "text/plain", "15 bytes", "green"):
        assert words in page.text
    assert browser.get("/console/tasks/none").status == 404
