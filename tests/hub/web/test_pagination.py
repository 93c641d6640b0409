"""Every list of the hub comes in pages, with the same parameters and the same two fields beside the items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from tests.hub.in_process_hub import Client, in_process_hub
from tests.hub.tasks_hub import problem

from onceward.core.claim import Claim
from onceward.hub import tasks, topics
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.ingest.entries.policy import policy_page
from onceward.hub.ingest.entries.schema import PKM


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of the hub: its path, its field, the field that names an item, and how to add one more item."""

    path: str
    field: str
    name: str
    add: Callable[[int], str]


@pytest.fixture
def config(database: Database, database_url: str, tmp_path: Path) -> Config:
    assert database is not None
    return Config(HubSettings(data_dir=str(tmp_path), database=database_url, ledger=f"sqlite:///{tmp_path}/keys.db"))


@pytest.fixture
def client(config: Config) -> Iterator[Client]:
    with in_process_hub(config) as client:
        yield client


def posted(client: Client, path: str, sent: dict[str, Any]) -> Any:
    answer = client.post(path, json=sent)
    assert answer.status_code == 201, answer.text
    return answer.json()


LISTS = ["topics", "messages", "attachments", "of-kind", "tasks", "task-attachments", "policies", "claims", "oldest"]


@pytest.fixture(params=LISTS)
def listed(request: pytest.FixtureRequest, client: Client, config: Config) -> Iterator[Listed]:
    topic = posted(client, "/api/v1/topics", {"title": "T"})["topic"]["id"]
    posted(client, "/v1/tasks", {"id": "t1", "title": "T"})
    with data_folder.ledger(config) as ledger:

        def policy(number: int) -> str:
            sent = {"policy_key": f"p{number}", "source": "s", "content_type": "c", "conflict_action": "skip"}
            assert client.put("/policies", json=sent).status_code == 200
            return f"p{number}"

        def claim(number: int) -> str:
            assert isinstance(ledger.blocking.begin("charges", f"c{number:02}", {}, repeatable=True), Claim)
            return f"c{number:02}"

        def attachment(number: int, kind: str) -> str:
            sent = {"kind": kind, "value_json": {"n": number}}
            return str(posted(client, f"/api/v1/topics/{topic}/attachments", sent)["attachment"]["id"])

        def of_kind(number: int) -> str:
            attachment(-number, "other")
            return attachment(number, "wanted")

        def message(number: int) -> str:
            sent = {"sender": "ada", "content": str(number)}
            return str(posted(client, f"/api/v1/topics/{topic}/messages", sent)["message"]["id"])

        def link(number: int) -> str:
            sent = {"kind": "spec", "repo_path": str(number)}
            return str(posted(client, "/v1/tasks/t1/attachments/link", sent)["id"])

        yield {
            "topics": Listed("/api/v1/topics", "topics", "id", lambda n: _id(client, "/api/v1/topics", "topic", n)),
            "messages": Listed(f"/api/v1/topics/{topic}/messages", "messages", "id", message),
            "attachments": Listed(
                f"/api/v1/topics/{topic}/attachments", "attachments", "id", lambda n: attachment(n, "note")
            ),
            "of-kind": Listed(f"/api/v1/topics/{topic}/attachments?kind=wanted", "attachments", "id", of_kind),
            "tasks": Listed("/v1/tasks", "tasks", "id", lambda n: str(posted(client, "/v1/tasks", {"title": f"{n}"})["id"])),
            "task-attachments": Listed("/v1/tasks/t1/attachments", "attachments", "id", link),
            "policies": Listed("/policies", "policies", "policy_key", policy),
            "claims": Listed("/api/v1/claims?scope=charges", "claims", "key", claim),
            "oldest": Listed("/api/v1/claims?scope=charges&oldest=true", "claims", "key", claim),
        }[request.param]  # fmt: skip


def _id(client: Client, path: str, field: str, number: int) -> str:
    return str(posted(client, path, {"title": str(number)})[field]["id"])


def pages(client: Client, listed: Listed, limit: int, between: Callable[[], object] = lambda: None) -> list[list[str]]:
    """Return the names of the items of every page; `between` runs after each page."""
    found: list[list[str]] = []
    cursor: dict[str, str] = {}
    while True:
        path = listed.path + ("&" if "?" in listed.path else "?") + f"limit={limit}"
        page = client.get(path + "".join(f"&after={after}" for after in cursor.values())).json()
        found.append([one[listed.name] for one in page[listed.field]])
        if not page["has_more"]:
            assert page["next_after"] is None
            return found
        cursor = {"after": page["next_after"]}
        between()


def test_pages_give_each_item_once_in_order_while_others_insert(client: Client, listed: Listed) -> None:
    made = [listed.add(number) for number in range(7)]
    (whole,) = pages(client, listed, 500)
    more = iter(range(10, 60))
    found = [name for page in pages(client, listed, 3, lambda: listed.add(next(more))) for name in page]

    assert set(made) <= set(whole)
    assert len(set(found)) == len(found)
    assert [name for name in found if name in whole] == whole


def test_a_page_is_full_unless_it_is_the_last_and_an_invalid_limit_or_cursor_is_refused(
    client: Client, listed: Listed
) -> None:
    for number in range(4):
        listed.add(number)
    sizes = [len(page) for page in pages(client, listed, 2)]
    joined = "&" if "?" in listed.path else "?"

    assert all(size == 2 for size in sizes[:-1])
    for name, value in [
        ("limit", "0"),
        ("limit", "501"),
        ("limit", "x"),
        ("after", "x~"),
        ("after", "%01"),
        ("after", "-1"),
    ]:
        body = problem(client.get(f"{listed.path}{joined}{name}={value}"), 400)
        assert [error["field"] for error in body["errors"]] == [name], value


def test_without_a_limit_a_page_has_a_hundred_items(client: Client, config: Config) -> None:
    with data_folder.opened(config) as database, database.write() as tx:
        for number in range(101):
            topics.create_topic(tx, str(number))
    page = client.get("/api/v1/topics").json()

    assert len(page["topics"]) == 100
    assert page["has_more"] is True
    assert page["next_after"] == page["topics"][-1]["id"]
    assert len(client.get("/api/v1/topics?limit=500").json()["topics"]) == 101


def test_the_document_shows_the_parameters_and_fields_of_every_list(client: Client) -> None:
    document = client.get("/openapi.json").json()
    lists = {}
    for path, item in document["paths"].items():
        shown = item.get("get", {}).get("responses", {}).get("200", {}).get("content", {}).get("application/json", {})
        name = shown.get("schema", {}).get("$ref", "").rpartition("/")[2]
        fields = document["components"]["schemas"].get(name, {}).get("properties", {})
        if any(one.get("type") == "array" for one in fields.values()) and "id" not in path.rpartition("/")[2]:
            lists[path] = item["get"]["parameters"], fields

    assert len(lists) >= 8
    for path, (parameters, fields) in lists.items():
        limits = {one["name"]: one["schema"] for one in parameters}
        assert limits["limit"] == {**limits["limit"], "minimum": 1, "maximum": 500, "default": 100}, path
        assert "after" in limits, path
        assert {"next_after", "has_more"} <= set(fields), path


READS: dict[str, Callable[[Transaction, str, str], object]] = {
    "topics": lambda tx, _, after: topics.list_topics(tx, 2, after),
    "messages": lambda tx, topic, after: topics.list_messages(tx, topic, 2, after.replace("top", "msg")),
    "attachments": lambda tx, topic, after: topics.list_attachments(tx, topic, 2, after.replace("top", "att")),
    "of-kind": lambda tx, topic, after: topics.list_attachments(tx, topic, 2, after.replace("top", "att"), kind="note"),
    "tasks": lambda tx, _, after: tasks.list_tasks(tx, 2, after and "2026-01-01T00:00:00.000000Z~t1"),
    "task-attachments": lambda tx, _, after: tasks.list_attachments(
        tx, "t1", 2, after and "2026-01-01T00:00:00.000000Z~at-1"
    ),
    "policies": lambda tx, _, after: policy_page(tx, PKM, 2, after and "3"),
}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", READS)
def test_a_page_is_read_from_an_index_in_order(database: Database, name: str) -> None:
    with database.write() as tx:
        topic, _ = topics.create_topic(tx, "T")
        tasks.create_task(tx, "T", task_id="t1")
    statements: list[tuple[str, Any]] = []

    def record(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", record)
    with database.read() as tx:
        for after in ("", topic.id):
            READS[name](tx, topic.id, after)
        pages = [one for one in statements if "LIMIT" in one[0]]
        plans = [tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values).all() for text, values in pages]
    event.remove(database.engine, "before_cursor_execute", record)

    assert len(plans) == 2
    steps = [str(step[-1]) for step in plans[0]], [str(step[-1]) for step in plans[1]]
    # The first page starts at an end of the index; no page sorts what it has found. Attachments of one microsecond are
    # sorted by their id.
    sorts = [step for plan in steps for step in plan if step == "USE TEMP B-TREE FOR ORDER BY"]
    assert sorts == [], steps
    assert not [step for step in steps[1] if step.startswith("SCAN")], steps
    if name == "of-kind":
        assert all("(topic_id=? AND kind=?" in plan[0] for plan in steps), steps
