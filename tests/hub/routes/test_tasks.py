"""Tasks and attachments over HTTP, with SQLite and a folder, and with PostgreSQL and S3."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from tests.hub.in_process_hub import Client
from tests.hub.tasks import backends
from tests.hub.tasks_hub import UPLOADS, attach, problem, tasks_hub, upload

from onceward.hub.db.engine import open_database
from onceward.hub.routes.tasks import _FIELDS
from onceward.hub.security import tokens

GC = "/v1/admin/gc-blobs"


@pytest.fixture(params=backends.BOTH)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    with tasks_hub(request.param, request, tmp_path) as client:
        yield client


def events(client: Client) -> list[tuple[str, str]]:
    found = client.get("/api/v1/events").json()["events"]
    return [(event["name"], event["entity_id"]) for event in found]


def test_a_task_is_created_read_listed_and_deleted(client: Client) -> None:
    made = client.post("/v1/tasks", json={"title": "Zwei", "spec_id": "docs/a.md"})
    task = made.json()

    assert made.status_code == 201
    assert set(task) == {"id", "title", "spec_id", "created_at", "updated_at"}
    assert client.get(f"/v1/tasks/{task['id']}").json() == task
    listed = client.get("/v1/tasks").json()["tasks"]
    assert [one["id"] for one in listed] == [task["id"], "t1"]
    assert "spec_id" not in listed[1]
    assert [one["id"] for one in client.get("/v1/tasks?limit=1").json()["tasks"]] == [task["id"]]
    gone = client.request("DELETE", f"/v1/tasks/{task['id']}")
    assert (gone.status_code, gone.json()) == (200, {"id": task["id"]})
    assert problem(client.get(f"/v1/tasks/{task['id']}"), 404)["code"] == "notFound"


def test_a_list_of_tasks_continues_where_its_page_ended(client: Client) -> None:
    for number in range(4):
        assert client.post("/v1/tasks", json={"id": f"n{number}", "title": "N"}).status_code == 201
    first = client.get("/v1/tasks?limit=2").json()
    second = client.get("/v1/tasks", params={"limit": 2, "after": first["next_after"]}).json()
    last = client.get("/v1/tasks", params={"limit": 2, "after": second["next_after"]}).json()

    ids = [[one["id"] for one in page["tasks"]] for page in (first, second, last)]
    assert ids == [["n3", "n2"], ["n1", "n0"], ["t1"]]
    assert [page.get("next") for page in (first, second, last)] == [first["next_after"], second["next_after"], None]
    assert problem(client.get("/v1/tasks?after=n3"), 400)["errors"][0]["field"] == "after"


def test_an_invalid_task_is_refused(client: Client) -> None:
    assert problem(client.post("/v1/tasks", json={"id": "t1", "title": "x"}), 409)["code"] == "conflict"
    for sent in ({}, {"title": " "}, {"title": 1}, {"title": "x", "id": "a/b"}, {"title": "x", "colour": "red"}):
        assert problem(client.post("/v1/tasks", json=sent), 400)["errors"]
    for limit in ("0", "501", "x"):
        assert problem(client.get(f"/v1/tasks?limit={limit}"), 400)["errors"]


def test_an_unknown_id_is_not_found(client: Client) -> None:
    link = {"kind": "spec", "repo_path": "a"}
    for method, path, body in (
        ("GET", "/v1/tasks/none", None),
        ("DELETE", "/v1/tasks/none", None),
        ("GET", "/v1/tasks/none/attachments", None),
        ("POST", "/v1/tasks/none/attachments/link", link),
        ("GET", "/v1/attachments/at-none", None),
        ("DELETE", "/v1/attachments/at-none", None),
        ("GET", "/v1/attachments/at-none/content", None),
        ("PUT", "/v1/attachments/at-none/labels", {"labels": []}),
    ):
        assert problem(client.request(method, path, json=body), 404)["code"] == "notFound", path
    unknown = upload(client, ("kind", "spec"), ("content", b"1", "a"), path="/v1/tasks/none/attachments")
    assert problem(unknown, 404)["code"] == "notFound"


def test_attachments_of_both_kinds_are_listed_shown_labelled_and_deleted(client: Client) -> None:
    file = attach(client, b"1", ("labels[]", "B"), ("labels", "a"), ("meta", '{"k": 1}'))
    # Six plain characters, which are not decoded as an escape.
    meta = {"deep": {"k": ["\\u0000"]}}
    sent = {"kind": " SPEC ", "external_url": "https://example.com/a.pdf", "labels": ["x"], "meta": meta}
    link = client.post(f"{UPLOADS}/link", json=sent)
    shown = link.json()

    assert link.status_code == 201
    assert (shown["kind"], shown["media_type_source"], shown["meta"]) == ("spec", "inferred", meta)
    assert file["labels"] == ["a", "b"]
    assert client.get(UPLOADS).json()["attachments"] == [shown, file]
    assert client.get(f"{UPLOADS}?limit=1").json()["attachments"] == [shown]
    assert client.get(f"/v1/attachments/{file['id']}").json() == file
    labelled = client.put(f"/v1/attachments/{file['id']}/labels", json={"labels": ["New", "new"]}).json()
    assert labelled == {**file, "labels": ["new"], "updated_at": labelled["updated_at"]}
    assert problem(client.get(f"/v1/attachments/{shown['id']}/content"), 400)["code"] == "badRequest"
    for one in (file, shown):
        gone = client.request("DELETE", f"/v1/attachments/{one['id']}")
        assert (gone.status_code, gone.json()) == (200, {"id": one["id"]})
    assert client.get(UPLOADS).json()["attachments"] == []
    added, removed = "task.attachment_added", "task.attachment_removed"
    assert events(client) == [(added, file["id"]), (added, shown["id"]), (removed, file["id"]), (removed, shown["id"])]


def test_an_invalid_limit_for_attachments_is_refused(client: Client) -> None:
    for limit in ("0", "501", "x"):
        assert problem(client.get(f"{UPLOADS}?limit={limit}"), 400)["errors"][0]["field"] == "limit"
    assert problem(client.get("/v1/tasks/none/attachments?limit=1"), 404)["code"] == "notFound"


@pytest.mark.parametrize("blank", ["", " ", "\t"], ids=["empty", "blank", "tab"])
def test_a_blank_label_is_refused_however_it_is_sent(client: Client, blank: str) -> None:
    made = attach(client, b"1", ("labels", "a"))
    link = {"kind": "spec", "repo_path": "a", "labels": ["b", blank]}
    for answer in (
        upload(client, ("kind", "spec"), ("labels", "b"), ("labels", blank), ("content", b"1", "a")),
        upload(client, ("kind", "spec"), ("labels[]", blank), ("content", b"1", "a")),
        client.post(f"{UPLOADS}/link", json=link),
        client.put(f"/v1/attachments/{made['id']}/labels", json={"labels": [blank]}),
    ):
        assert problem(answer, 400)["errors"] == [{"field": "labels", "message": "must not be blank"}]
    assert client.get(UPLOADS).json()["attachments"] == [made]


def test_deleting_a_task_has_an_event_for_each_attachment(client: Client) -> None:
    made = {attach(client, b"%d" % number)["id"] for number in range(3)}
    client.request("DELETE", "/v1/tasks/t1")

    assert {entity for name, entity in events(client) if name == "task.attachment_removed"} == made
    assert problem(client.get(UPLOADS), 404)


def test_an_invalid_link_is_refused(client: Client) -> None:
    for sent in (
        {"kind": "spec"},
        {"repo_path": "a"},
        {"kind": "spec", "repo_path": "a", "external_url": "https://a.b"},
        {"kind": "spec", "repo_path": "../a"},
        {"kind": "spec", "external_url": "javascript:alert(1)"},
        {"kind": "spec", "repo_path": "a", "labels": "x"},
        {"kind": "spec", "repo_path": "a", "meta": []},
        {"kind": "spec", "repo_path": "a", "expires_at": "2020-01-01"},
        {"kind": "spec", "repo_path": "a", "content": "x"},
    ):
        assert problem(client.post(f"{UPLOADS}/link", json=sent), 400)["code"] == "badRequest", sent
    too_large = {"kind": "spec", "repo_path": "a", "meta": {"k": "x" * 20_000}}
    assert problem(client.post(f"{UPLOADS}/link", json=too_large), 413)["code"] == "payloadTooLarge"
    assert client.get(UPLOADS).json()["attachments"] == []


def test_a_keyed_request_is_replayed_for_tasks_links_and_uploads(client: Client) -> None:
    asked: list[Callable[[str], httpx.Response]] = [
        lambda key: client.post("/v1/tasks", json={"title": "x"}, headers={"Idempotency-Key": key}),
        lambda key: client.post(
            f"{UPLOADS}/link", json={"kind": "spec", "repo_path": "a"}, headers={"Idempotency-Key": key}
        ),
        lambda key: upload(client, ("kind", "spec"), ("content", b"1", "a"), headers={"Idempotency-Key": key}),
    ]
    for number, ask in enumerate(asked):
        first, second, other = ask(f"k{number}"), ask(f"k{number}"), ask(f"other{number}")
        assert (first.status_code, second.status_code, second.text) == (201, 201, first.text)
        assert "idempotent-replayed" in second.headers
        assert other.json()["id"] != first.json()["id"]
    assert len(client.get(UPLOADS).json()["attachments"]) == 4
    assert len(client.get("/v1/tasks").json()["tasks"]) == 3


def forget_responses(ledger: Path) -> None:
    """Make it look as if their process had died after the commit, before the ledger was told, and their claims had
    expired.
    """
    with closing(sqlite3.connect(ledger)) as database, database:
        database.execute(
            """UPDATE platform_idempotency_keys SET status = 'in_progress', completed_at = NULL, lease_until = created_at,
               expires_at = NULL, response_status = NULL, response_headers = NULL, response_body = NULL"""
        )


def test_a_retry_whose_first_response_was_lost_finds_what_was_created(client: Client, tmp_path: Path) -> None:
    asked: list[Callable[[], httpx.Response]] = [
        lambda: client.post("/v1/tasks", json={"title": "x"}, headers={"Idempotency-Key": "task"}),
        lambda: client.post(
            f"{UPLOADS}/link", json={"kind": "spec", "repo_path": "a"}, headers={"Idempotency-Key": "link"}
        ),
        lambda: upload(client, ("kind", "spec"), ("content", b"1", "a"), headers={"Idempotency-Key": "file"}),
    ]
    first = [ask() for ask in asked]
    forget_responses(tmp_path / "keys.db")
    again = [ask() for ask in asked]

    assert [(one.status_code, one.json()) for one in again] == [(201, one.json()) for one in first]
    assert ["idempotent-replayed" in one.headers for one in again] == [False] * 3
    assert len(client.get(UPLOADS).json()["attachments"]) == 2
    assert len(client.get("/v1/tasks").json()["tasks"]) == 2
    assert len(events(client)) == 2


def test_damage_is_reported_quarantined_and_repaired(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with tasks_hub("sqlite-folder", request, tmp_path) as client:
        made = attach(client, b"what was sent")
        file = tmp_path / "blobs/sha256" / made["sha256"][:2] / made["sha256"][2:4] / made["sha256"]
        file.chmod(0o600)
        file.write_bytes(b"what was kept")

        checked, aside = (client.post("/v1/admin/fsck", json={"quarantine": put}).json() for put in (False, True))

        assert checked["damaged"][0]["problem"] == "wrong-content"
        assert checked["damaged"][0]["attachments"] == [made["id"]]
        assert [one["damaged"][0]["quarantined"] for one in (checked, aside)] == [False, True]
        assert problem(client.get(f"/v1/attachments/{made['id']}/content"), 404)
        attach(client, b"what was sent")
        assert client.get(f"/v1/attachments/{made['id']}/content").content == b"what was sent"


def test_gc_only_counts_unless_it_is_confirmed(client: Client) -> None:
    made = attach(client, b"12345")
    client.request("DELETE", f"/v1/attachments/{made['id']}")

    default = client.post(GC, json={})
    dry = client.post(GC, json={"grace_seconds": 0})
    unconfirmed = client.post(GC, json={"dry_run": False, "grace_seconds": 0})
    run = client.post(GC, json={"dry_run": False, "grace_seconds": 0, "batch_size": 1}, headers={"X-Confirm": "true"})

    assert default.json()["candidate_count"] == 0
    counted = {"candidate_count": 1, "failed_count": 0, "reclaimed_bytes": 5, "expired_count": 0, "orphan_count": 0}
    assert dry.json() == {**counted, "deleted_count": 0, "dry_run": True}
    assert "X-Confirm" in problem(unconfirmed, 400)["detail"]
    assert run.json() == {**counted, "deleted_count": 1, "dry_run": False}
    for sent in ({"grace_seconds": -1}, {"batch_size": 0}, {"dry_run": "no"}, {"now": True}):
        assert problem(client.post(GC, json=sent), 400)["errors"], sent


def test_fsck_and_the_backfill_respond(client: Client) -> None:
    attach(client, b"1")
    client.post("/v1/tasks", json={"id": "t2", "title": "x", "spec_id": "docs/a.md"})

    assert client.post("/v1/admin/fsck", json={}).json() == {"damaged": [], "wrong_counters": []}
    first, second = (client.post("/v1/admin/backfill-spec-attachments").json() for _ in range(2))
    assert first == {"task_count": 1, "added_count": 1, "skipped_count": 0, "failed": []}
    assert second == {"task_count": 1, "added_count": 0, "skipped_count": 1, "failed": []}
    lines = {"Accept": "application/x-ndjson"}
    reported = client.post("/v1/admin/backfill-spec-attachments", headers=lines).text.splitlines()
    assert [json.loads(line) for line in reported] == [
        {"progress": {"done": 1, "total": 1, "unit": "tasks"}},
        {"result": second},
    ]
    (spec,) = client.get("/v1/tasks/t2/attachments").json()["attachments"]
    assert (spec["kind"], spec["repo_path"], spec["title"]) == ("spec", "docs/a.md", "docs/a.md")


def test_admin_needs_its_scope_and_read_does_not_allow_writes(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with tasks_hub("sqlite-folder", request, tmp_path) as client:
        database = open_database(f"sqlite:///{tmp_path}/hub.db")
        with database.write() as tx:
            sent = {
                scope: {"authorization": f"Bearer {tokens.create(tx, scope, [scope])[1]}"}
                for scope in ("read", "write", "admin")
            }
        database.close()
        made = upload(client, ("kind", "spec"), ("content", b"1", "a"), headers=sent["write"])
        assert made.status_code == 201
        content = f"/v1/attachments/{made.json()['id']}/content"

        assert problem(client.get(content), 401)
        assert client.get(content, headers=sent["read"]).content == b"1"
        assert problem(client.get(content, headers=sent["write"]), 403)
        assert problem(upload(client, ("kind", "spec"), ("content", b"1", "a"), headers=sent["read"]), 403)
        for path in (GC, "/v1/admin/fsck", "/v1/admin/backfill-spec-attachments"):
            assert problem(client.post(path, json={}, headers=sent["write"]), 403)
            assert client.post(path, json={}, headers=sent["admin"]).status_code == 200
        # Only an admin switches off the check of the media type, and it may be switched on by anybody.
        wrong = (("kind", "spec"), ("media_type", "image/png"), ("content", b"text", "a"))
        off = ("reject_media_type_mismatch", "false")
        assert problem(upload(client, *wrong, off, headers=sent["write"]), 403)
        on = ("reject_media_type_mismatch", "true")
        assert problem(upload(client, *wrong, on, headers=sent["write"]), 400)


def test_a_path_with_a_nul_is_not_found(client: Client) -> None:
    for path in ("/v1/tasks/a%00b", "/v1/attachments/a%00b", "/v1/attachments/a%00b/content"):
        assert client.get(path).status_code in {400, 404}


def test_the_document_describes_uploads(client: Client) -> None:
    document = client.get("/openapi.json").json()
    body = document["paths"]["/v1/tasks/{task_id}/attachments"]["post"]["requestBody"]

    assert set(body["content"]) == {"multipart/form-data"}
    described = set(body["content"]["multipart/form-data"]["schema"]["properties"])
    assert described == {*_FIELDS, "content"}
    assert re.search("multipart", json.dumps(document))
