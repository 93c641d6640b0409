"""Tasks, one task with its attachments, and the forms that create and delete them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.hub.console.conftest import MakeToken
from tests.hub.console.no_script_browser import NoScriptBrowser, Page
from tests.hub.in_process_hub import Client, in_process_hub

from onceward.hub.config import data_folder
from onceward.hub.config.config import AttachmentsSettings, Config
from onceward.hub.tasks import NewTaskAttachment, create_link_attachment

PLAN = b"Paint it green."


@pytest.fixture
def task(client: Client) -> str:
    """Create a task; return its path in the console."""
    client.post("/v1/tasks", json={"id": "t1", "title": "Paint the shed"}).raise_for_status()
    return "/console/tasks/t1"


def attachments(client: Client) -> list[dict[str, object]]:
    found: list[dict[str, object]] = client.get("/v1/tasks/t1/attachments").json()["attachments"]
    return found


def events(client: Client) -> list[str]:
    return [one["name"] for one in client.get("/api/v1/events").json()["events"]]


def test_a_task_shows_its_attachments_with_their_labels(client: Client, browser: NoScriptBrowser) -> None:
    empty = browser.get("/console/tasks")
    client.post("/v1/tasks", json={"id": "t1", "title": "Paint the shed"})
    bare = browser.get("/console/tasks/t1")
    fields = {"kind": "spec", "labels": "green"}
    client.post("/v1/tasks/t1/attachments", data=fields, files={"content": ("plan.txt", PLAN)})
    listed, page = browser.get("/console/tasks"), browser.get("/console/tasks/t1")

    assert "No tasks yet" in empty.text
    assert "No attachments" in bare.text
    assert "/console/tasks/t1" in listed.links
    for words in ("Paint the shed", "plan.txt", "spec", "text/plain", "15 B", "green"):
        assert words in page.text
    assert browser.get("/console/tasks/none").status == 404


def test_a_form_that_is_sent_twice_creates_one_task(client: Client, browser: NoScriptBrowser) -> None:
    page = browser.get("/console/tasks")
    first = browser.send(page, "/console/tasks", title="Paint the shed", spec_id="docs/shed.md")
    second = browser.send(page, "/console/tasks", title="Paint the shed", spec_id="docs/shed.md")
    other = browser.send(page, "/console/tasks", title="Paint the fence")

    listed = client.get("/v1/tasks").json()["tasks"]
    assert [(one["title"], one["spec_id"]) for one in listed] == [("Paint the shed", "docs/shed.md")]
    assert first.path == second.path == f"/console/tasks/{listed[0]['id']}"
    assert "The task is created" in first.text
    assert (other.status, "has already stored task" in other.text) == (409, True)


def test_a_title_that_is_refused_is_shown_again_with_the_reason(client: Client, browser: NoScriptBrowser) -> None:
    page = browser.send(browser.get("/console/tasks"), "/console/tasks", title="é" * 300)

    assert (page.status, "Nothing was stored: title" in page.text) == (400, True)
    assert dict(page.form("/console/tasks").fields)["title"] == "é" * 300
    assert client.get("/v1/tasks").json()["tasks"] == []


def test_an_upload_needs_no_script_and_is_stored_once_however_often_it_is_sent(
    client: Client, browser: NoScriptBrowser, task: str, config: Config
) -> None:
    page = browser.get(task)
    fields = {"kind": "spec", "title": "The plan", "labels": "Draft, green", "expires_at": "2999-12-31"}
    first = browser.attach(page, task, "plan.txt", PLAN, **fields)
    second = browser.attach(page, task, "plan.txt", PLAN, **fields)
    other = browser.attach(page, task, "plan.txt", b"Paint it red.", **fields)

    assert ("The file is attached" in first.text, "It is stored once" in second.text) == (True, True)
    assert (other.status, "has already stored attachment" in other.text) == (409, True)
    assert len([file for file in (Path(config.hub.data_dir) / "blobs" / "sha256").rglob("*") if file.is_file()]) == 1
    (stored,) = attachments(client)
    assert {name: stored[name] for name in ("kind", "title", "labels", "expires_at", "filename", "size_bytes")} == {
        "kind": "spec",
        "title": "The plan",
        "labels": ["draft", "green"],
        "expires_at": "2999-12-31T23:59:59.999999Z",
        "filename": "plan.txt",
        "size_bytes": len(PLAN),
    }
    assert events(client) == ["task.attachment_added"]


def test_a_double_click_while_the_first_upload_still_runs_stores_one_attachment(
    client: Client, browser: NoScriptBrowser, task: str
) -> None:
    fields = {**dict(browser.get(task).form(task).fields), "kind": "spec"}
    fields.pop("content")

    async def click_twice() -> list[httpx.Response]:
        sent = (client.client.post(task, data=fields, files={"content": ("plan.txt", PLAN)}) for _ in range(4))
        return await asyncio.gather(*sent)

    answers = client.run(click_twice())

    assert [answer.status_code for answer in answers] == [303] * 4
    assert sorted(answer.headers["location"].rpartition("=")[2] for answer in answers) == ["again"] * 3 + ["attached"]
    assert len(attachments(client)) == 1
    assert events(client) == ["task.attachment_added"]


@pytest.mark.parametrize(
    ("fields", "filename", "problem"),
    [
        ({"kind": "letter"}, "a.txt", "kind must be one of"),
        ({"expires_at": "2001-01-01"}, "a.txt", "expires_at must be in the future"),
        ({"idempotency_key": "x"}, "a.txt", "idempotency_key is missing or not valid"),
        ({}, "", "content is missing: choose a file"),
    ],
)
def test_an_upload_that_is_refused_keeps_its_fields_and_stores_nothing(
    client: Client, browser: NoScriptBrowser, task: str, fields: dict[str, str], filename: str, problem: str
) -> None:
    wanted = {"kind": "spec", "labels": "green", **fields}
    page = browser.attach(browser.get(task), task, filename or " ", PLAN if filename else b"", **wanted)

    assert (page.status, problem in page.text) == (400, True), page.text
    assert dict(page.form(task).fields)["labels"] == "green"
    assert (attachments(client), events(client)) == ([], [])


def test_a_script_gets_json(client: Client, browser: NoScriptBrowser, task: str) -> None:
    fields = {**dict(browser.get(task).form(task).fields), "kind": "spec"}
    fields.pop("content")
    asked = {"files": {"content": ("plan.txt", PLAN)}, "headers": {"Accept": "application/json"}}
    first, second = (client.post(task, data=fields, **asked) for _ in range(2))
    bad = client.post(task, data={**fields, "kind": "letter"}, **asked)
    forged = client.post(task, data={**fields, "form_token": "x"}, **asked)

    (stored,) = attachments(client)
    assert (first.status_code, first.json()) == (201, {"id": stored["id"], "is_new": True})
    assert (second.status_code, second.json()) == (201, {"id": stored["id"], "is_new": False})
    assert (bad.status_code, bad.json()["errors"][0]["field"]) == (400, "kind")
    assert (forged.status_code, forged.json()["code"]) == (403, "forbidden")


class Body:
    """A multipart body that is sent in pieces. It counts the pieces of the file that the server has read."""

    PIECES = 200

    def __init__(self, *fields: tuple[str, str], after: tuple[tuple[str, str], ...] = ()) -> None:
        self.sent = 0
        self._fields = fields
        self._after = after

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"".join(self._part(*field) for field in self._fields)
        yield b'--b\r\nContent-Disposition: form-data; name="content"; filename="a.txt"\r\n\r\n'
        for _ in range(self.PIECES):
            self.sent += 1
            yield b"x" * 1024
        yield b"\r\n" + b"".join(self._part(*field) for field in self._after) + b"--b--\r\n"

    @staticmethod
    def _part(name: str, value: str) -> bytes:
        return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}


def key() -> tuple[str, str]:
    return ("idempotency_key", "k" * 22)


@pytest.mark.parametrize("case", ["no token", "token of another visitor", "token after the file", "other site"])
def test_a_forged_upload_is_refused_before_the_hub_reads_its_file(
    client: Client, browser: NoScriptBrowser, task: str, config: Config, case: str
) -> None:
    own = ("form_token", dict(browser.get(task).form(task).fields)["form_token"])
    fields = [key(), ("kind", "spec")]
    headers = dict(MULTIPART)
    match case:
        case "no token":
            body = Body(*fields)
        case "token of another visitor":
            NoScriptBrowser(client).get(task)
            body = Body(own, *fields)
        case "token after the file":
            body = Body(*fields, after=(own,))
        case _:
            headers |= {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
            body = Body(own, *fields)
    answer = client.post(task, content=body, headers=headers)

    assert answer.status_code == 403
    assert body.sent <= 1
    assert (attachments(client), events(client)) == ([], [])
    assert not [file for file in Path(config.hub.data_dir).rglob("*") if file.suffix == ".part"]


def test_the_same_upload_with_its_token_first_is_accepted(client: Client, browser: NoScriptBrowser, task: str) -> None:
    own = ("form_token", dict(browser.get(task).form(task).fields)["form_token"])
    body = Body(own, key(), ("kind", "spec"))
    answer = client.post(task, content=body, headers=MULTIPART)

    assert (answer.status_code, body.sent) == (303, Body.PIECES)
    assert attachments(client)[0]["size_bytes"] == 1024 * Body.PIECES


def test_an_upload_over_a_limit_is_refused_while_it_arrives(config: Config) -> None:
    small = AttachmentsSettings(max_upload_bytes=20_000, max_bytes_per_principal=5_000)
    with in_process_hub(dataclasses.replace(config, attachments=small)) as client:
        client.post("/v1/tasks", json={"id": "t1", "title": "Paint the shed"}).raise_for_status()
        browser = NoScriptBrowser(client)
        page = browser.get("/console/tasks/t1")
        own = ("form_token", dict(page.form(page.path).fields)["form_token"])
        body = Body(own, key(), ("kind", "spec"))
        too_large = client.post(page.path, content=body, headers=MULTIPART)
        over_quota = browser.attach(page, page.path, "a.txt", b"x" * 6_000, kind="spec")

        assert (too_large.status_code, "limited to 20000 bytes" in too_large.text) == (413, True)
        assert body.sent <= 21
        assert (over_quota.status, "do not fit into the quota of" in over_quota.text) == (413, True)
        assert (attachments(client), events(client)) == ([], [])


FORMS = ("/console/tasks", "/console/tasks/t1", "/console/tasks/t1/link", "/console/tasks/t1/delete")


def test_a_reader_sees_no_buttons_and_its_forged_forms_are_refused(
    client: Client, browser: NoScriptBrowser, task: str, make_token: MakeToken
) -> None:
    client.post("/v1/tasks/t1/attachments/link", json={"kind": "spec", "repo_path": "a.md"}).raise_for_status()
    (stored,) = attachments(client)
    one = f"/console/attachments/{stored['id']}"
    _, writer = make_token("writer", "write", "read")
    _, text = make_token("grace", "read")
    browser.log_in(text)
    pages = [browser.get(path) for path in ("/console/tasks", task, one)]
    token = ("form_token", dict(pages[0].form("/console/theme").fields)["form_token"])
    fields = [token, key(), ("title", "Mine"), ("kind", "spec"), ("where", "b.md"), ("task_id", "t1")]
    body = Body(token, key(), ("kind", "spec"))
    upload = client.post(task, content=body, headers=MULTIPART)
    forged = [browser.post(path, fields) for path in (*FORMS[:1], *FORMS[2:], one, f"{one}/remove")]

    for page in pages:
        assert page.status == 200
        assert not [form for path in (*FORMS, one, f"{one}/remove") if (form := page.has_form(path))]
        assert not [link for link in page.links if link.endswith(("/delete", "/remove"))]
    assert (upload.status_code, body.sent) == (403, 0)
    assert [page.status for page in forged] == [403] * 5
    assert "scope write" in forged[0].text
    assert [browser.get(path).status for path in (f"{task}/delete", f"{one}/remove")] == [403, 403]
    with_token = {"Authorization": f"Bearer {writer}"}
    assert len(client.get("/v1/tasks", headers=with_token).json()["tasks"]) == 1
    assert client.get("/v1/tasks/t1/attachments", headers=with_token).json()["attachments"] == [stored]


def test_a_token_narrowed_to_tasks_may_upload_and_one_narrowed_to_topics_may_not(
    client: Client, browser: NoScriptBrowser, task: str, make_token: MakeToken
) -> None:
    _, topics = make_token("topics", "read", "write:topics")
    _, tasks = make_token("tasks", "read:tasks", "write:tasks")
    refused = browser.log_in(topics, task)
    other = NoScriptBrowser(client)
    accepted = other.attach(other.log_in(tasks, task), task, "plan.txt", PLAN, kind="spec")

    assert not refused.has_form(task)
    assert "The file is attached" in accepted.text


def test_an_upload_without_a_session_is_refused_before_it_is_read(
    client: Client, task: str, make_token: MakeToken
) -> None:
    make_token("ada", "read")
    body = Body(("form_token", "x"), key())
    answer = client.post(task, content=body, headers=MULTIPART)

    assert (answer.status_code, body.sent) == (401, 0)


def test_a_task_is_deleted_after_a_question_and_a_second_click_finds_it_deleted(
    client: Client, browser: NoScriptBrowser, task: str
) -> None:
    browser.attach(browser.get(task), task, "plan.txt", PLAN, kind="spec")
    question = browser.get(f"{task}/delete")
    pages = [browser.send(question, f"{task}/delete") for _ in range(2)]

    assert "Delete this task and all its attachments?" in question.text
    assert [(page.path, "are deleted" in page.text) for page in pages] == [("/console/tasks", True)] * 2
    assert client.get("/v1/tasks/t1").status_code == 404
    assert events(client) == ["task.attachment_added", "task.attachment_removed"]


def test_a_link_is_attached_once_for_each_form(client: Client, browser: NoScriptBrowser, task: str) -> None:
    page, action = browser.get(task), f"{task}/link"
    first, second = (browser.send(page, action, where="https://example.com/shed", kind="diagram") for _ in range(2))
    other = browser.send(page, action, where="https://example.com/fence", kind="diagram")
    path = browser.send(browser.get(task), action, where="docs/shed.md", kind="spec")
    bad = browser.send(browser.get(task), action, where="../shed.md", kind="spec")

    assert ("The link is attached" in first.text, "It is stored once" in second.text, other.status) == (True, True, 409)
    assert "The link is attached" in path.text
    assert (bad.status, "repo_path must not have" in bad.text) == (400, True)
    assert [one.get("external_url") or one["repo_path"] for one in attachments(client)] == [
        "docs/shed.md",
        "https://example.com/shed",
    ]


def test_attachments_are_filtered_by_kind_and_label_and_paged(
    browser: NoScriptBrowser, task: str, config: Config
) -> None:
    with data_folder.opened(config) as database, database.write() as tx:
        for number in range(105):
            new = NewTaskAttachment(kind="spec" if number else "diagram", labels=("odd",) if number % 2 else ())
            with contextlib.suppress(StopIteration):
                steps = create_link_attachment.steps(tx, "t1", new, repo_path=f"docs/{number:03}.md")
                while True:
                    next(steps)
    everything = browser.get(task)
    older = browser.get(next(link for link in everything.links if "after=" in link))
    odd = browser.get(f"{task}?kind=spec&label=odd")
    none = browser.get(f"{task}?kind=diagram&label=odd")

    assert (names(everything), names(older)) == (
        [f"{n:03}" for n in range(104, 4, -1)],
        [f"{n:03}" for n in range(4, -1, -1)],
    )
    assert names(odd) == [f"{n:03}" for n in range(103, 0, -2)]
    assert (names(none), "None match" in none.text) == ([], True)
    assert f"{task}?label=odd" in [link.replace("kind=&", "") for link in everything.links]
    assert browser.get(f"{task}?kind=letter").status == 400
    assert browser.get(f"{task}?after=nonsense").status == 400


def names(page: Page) -> list[str]:
    return [word[5:8] for word in page.text.split() if word.startswith("docs/") and word.endswith(".md")]
