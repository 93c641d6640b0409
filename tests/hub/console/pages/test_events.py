"""Events: the log without script. The live stream is tested in a browser, and against a running hub."""

from __future__ import annotations

from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.in_process_hub import Client


def test_an_empty_log_says_what_would_appear(browser: NoScriptBrowser) -> None:
    assert "No events yet" in browser.get("/console/events").text


def test_the_log_is_paged_and_filtered_without_script(client: Client, browser: NoScriptBrowser) -> None:
    topic = client.post("/api/v1/topics", json={"title": "T"}).json()["topic"]["id"]
    for number in range(3):
        client.post(f"/api/v1/topics/{topic}/messages", json={"sender": "ada", "content": f"m{number}"})
    page = browser.get("/console/events")
    named = browser.get("/console/events?name=topic.created")
    none = browser.get("/console/events?topic=top_other")
    resumed = browser.get("/console/events?after=3")
    older = browser.get("/console/events?before=2")

    assert page.text.index("m2") < page.text.index("m0")
    assert "Resume point 4" in page.text
    assert "m0" not in named.text
    assert "Nothing matches here" in none.text
    assert "m2" in resumed.text
    assert "m1" not in resumed.text
    assert "topic.created" in older.text
    assert "m0" not in older.text
    assert browser.get("/console/events?after=x").status == 400
