"""The page of one attachment: its preview, its content, its labels, and its removal."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.hub.console.conftest import MakeToken
from tests.hub.console.no_script_browser import NoScriptBrowser, Page
from tests.hub.console.sample_claims import HOSTILE
from tests.hub.in_process_hub import Client

from onceward.hub.config.config import Config

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.fixture
def task(client: Client) -> str:
    client.post("/v1/tasks", json={"id": "t1", "title": HOSTILE}).raise_for_status()
    return "/v1/tasks/t1"


def upload(client: Client, name: str, content: bytes, **fields: str) -> str:
    """Attach a file; return its path in the console."""
    files = {"content": (name, content)}
    sent = client.post("/v1/tasks/t1/attachments", data={"kind": "other", **fields}, files=files)
    return f"/console/attachments/{sent.raise_for_status().json()['id']}"


def images(page: Page) -> list[str | None]:
    return [found.get("src") for tag, found in page.tags if tag == "img" and found.get("alt")]


@pytest.mark.usefixtures("task")
def test_images_and_texts_are_shown_and_active_content_is_not(client: Client, browser: NoScriptBrowser) -> None:
    image = upload(client, "a.png", PNG)
    text = upload(client, "a.txt", b"It began with <script>alert(1)</script> in a title.\n")
    svg = upload(client, "a.svg", SVG)
    page = upload(client, "a.html", b"<!doctype html><title>x</title><script>alert(1)</script>")
    pdf = upload(client, "a.pdf", b"%PDF-1.7\n" + bytes(40))
    long = upload(client, "a.log", b"A line of the log.\n" * 2000)

    assert images(browser.get(image)) == [f"{image}/content"]
    assert "It began with <script>alert(1)</script> in a title." in browser.get(text).text
    assert "This is the beginning" in browser.get(long).text
    assert len(browser.get(long).text) < 20_000
    for path in (svg, page, pdf):
        shown = browser.get(path)
        assert ("is not shown in a page" in shown.text, images(shown)) == (True, []), path
        assert not [tag for tag, _ in shown.tags if tag == "pre"]


def fixed_headers(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name not in {"x-request-id", "set-cookie"}}


@pytest.mark.usefixtures("task")
def test_content_has_the_headers_and_conditions_of_the_api(client: Client, browser: NoScriptBrowser) -> None:
    for name, content in (("a.png", PNG), ("a.svg", SVG), ("Grün.txt", b"Green and white.")):
        path = f"{upload(client, name, content)}/content"
        shown, api = browser.get(path).response, client.get(path.replace("/console/", "/v1/"))

        assert shown.content == content
        assert fixed_headers(shown) == fixed_headers(api)
    assert shown.headers["content-security-policy"] == "default-src 'none'; sandbox"
    part = client.get(path, headers={"Range": "bytes=0-4"})
    known = client.get(path, headers={"If-None-Match": shown.headers["etag"]})
    head = client.request("HEAD", path)
    assert (part.status_code, part.content) == (206, b"Green")
    assert (known.status_code, known.content) == (304, b"")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "16")
    assert client.get(path, headers={"Range": "bytes=99-"}).status_code == 416


@pytest.mark.usefixtures("task")
def test_content_needs_a_session_that_may_read_tasks(
    client: Client, browser: NoScriptBrowser, make_token: MakeToken
) -> None:
    path = f"{upload(client, 'a.txt', b'Green.')}/content"
    _, other = make_token("ada", "read:topics", "read:events")
    _, reader = make_token("grace", "read:tasks")
    without = client.get(path)
    browser.log_in(other)
    refused = browser.get(path)
    accepted = NoScriptBrowser(client).log_in(reader, path)

    assert (without.status_code, without.headers["location"].partition("?")[0]) == (303, "/console/login")
    assert refused.status == 403
    assert accepted.response.text == "Green."


@pytest.mark.usefixtures("task")
def test_hostile_names_titles_and_labels_are_text(client: Client, browser: NoScriptBrowser) -> None:
    path = upload(client, HOSTILE.replace("/", "_"), PNG, title=HOSTILE, labels="<script>alert(1)</script>")
    for page in (browser.get(path), browser.get(f"{path}/remove"), browser.get("/console/tasks/t1")):
        assert "<script>alert(1)</script>" in page.text
        assert not [found for tag, found in page.tags if tag == "img" and found.get("src") == "x"]
        assert not [tag for tag, found in page.tags if tag == "script" and not found.get("src")]
        assert not [name for _, found in page.tags for name in found if name.startswith("on") or name == "style"]
        assert page.response.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")


@pytest.mark.usefixtures("task")
def test_labels_are_replaced_and_an_attachment_is_removed_after_a_question(
    client: Client, browser: NoScriptBrowser
) -> None:
    path = upload(client, "a.txt", b"Green.", labels="draft")
    labelled = browser.send(browser.get(path), path, labels="Final, green")
    refused = browser.send(browser.get(path), path, labels="x" * 65)
    question = browser.get(f"{path}/remove")
    pages = [browser.send(question, f"{path}/remove") for _ in range(2)]

    assert "The labels are replaced" in labelled.text
    assert "final green" in labelled.text
    assert (refused.status, "must be at most 64 characters" in refused.text) == (400, True)
    assert "Remove this attachment?" in question.text
    assert [(page.path, "The attachment is removed" in page.text) for page in pages] == [
        ("/console/tasks/t1", True)
    ] * 2
    assert client.get("/v1/tasks/t1/attachments").json()["attachments"] == []


@pytest.mark.usefixtures("task")
def test_bytes_that_are_missing_are_reported_in_place_of_the_preview(
    client: Client, browser: NoScriptBrowser, config: Config
) -> None:
    path = upload(client, "a.txt", b"Green.")
    (blob,) = [file for file in (Path(config.hub.data_dir) / "blobs" / "sha256").rglob("*") if file.is_file()]
    blob.unlink()
    page = browser.get(path)

    assert (page.status, "The bytes cannot be read" in page.text) == (200, True)
    assert browser.get(f"{path}/content").status in {404, 503}


@pytest.mark.usefixtures("task")
def test_a_link_has_a_page_without_content(client: Client, browser: NoScriptBrowser) -> None:
    link = {"kind": "spec", "external_url": "https://example.com/shed"}
    made = client.post("/v1/tasks/t1/attachments/link", json=link).json()
    path = f"/console/attachments/{made['id']}"
    page = browser.get(path)

    assert "this is a link" in page.text
    assert [found["rel"] for tag, found in page.tags if found.get("href") == link["external_url"]] == [
        "noopener noreferrer nofollow"
    ]
    assert browser.get(f"{path}/content").status == 400
    assert browser.get("/console/attachments/at-00000000").status == 404
