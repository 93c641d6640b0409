"""Tasks: creating, finding, listing and deleting them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event
from tests.hub.tasks.attachment_store import AttachmentStore

from onceward.errors import AlreadyThere, InvalidInput, NotFound
from onceward.hub import tasks
from onceward.hub.db.engine import Database
from onceward.hub.db.request_key import RequestKey, request_key
from onceward.hub.tasks.attachment import REMOVED


def keyed(key: str = "k1") -> RequestKey:
    found = request_key("ada", key, 3600)
    assert found is not None
    return found


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    executed: list[str] = []

    def on_statement(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        executed.append(statement)

    event.listen(database.engine, "before_cursor_execute", on_statement)
    try:
        yield executed
    finally:
        event.remove(database.engine, "before_cursor_execute", on_statement)


def test_a_task_is_created_found_and_listed(attachment_store: AttachmentStore) -> None:
    second = attachment_store.task("t2", title="Zwei ä", spec_id="docs/a.md")
    with attachment_store.database.read() as tx:
        assert tasks.get_task(tx, "t2") == second
        assert [task.id for task in tasks.list_tasks(tx, 10).items] == ["t2", "t1"]
        assert [task.id for task in tasks.list_tasks(tx, 1).items] == ["t2"]

    assert (second.title, second.spec_id) == ("Zwei ä", "docs/a.md")
    assert second.created_at == second.updated_at


def pages(
    attachment_store: AttachmentStore, limit: int, between: Callable[[], object] = lambda: None
) -> list[list[str]]:
    """Return the ids of every page; `between` runs after each page."""
    found: list[list[str]] = []
    after: str | None = ""
    while after is not None:
        with attachment_store.database.read() as tx:
            page = tasks.list_tasks(tx, limit, after)
        found.append([task.id for task in page.items])
        after = page.next_after
        between()
    return found


def test_pages_give_every_task_once_even_with_equal_times(attachment_store: AttachmentStore) -> None:
    for number in range(6):
        attachment_store.task(f"n.{number}")
    attachment_store.write("UPDATE tasks SET created_at = :at WHERE id > 'n.1'", at="2026-01-01T00:00:00.000000Z")
    (whole,) = pages(attachment_store, 500)

    assert len(set(whole)) == len(whole) == 7
    for limit in range(1, 9):
        found = pages(attachment_store, limit)
        assert [one for page in found for one in page] == whole
        assert all(len(page) == limit for page in found[:-1])
        assert found[-1]


def test_a_page_continues_where_the_last_one_ended_despite_inserts_and_deletes(
    attachment_store: AttachmentStore,
) -> None:
    for number in range(6):
        attachment_store.task(f"n{number}")
    gone = iter(["n4", "n0"])

    def meddle() -> None:
        with attachment_store.database.write() as tx:
            tasks.create_task(tx, "Newer")
            if (task_id := next(gone, None)) is not None:
                tasks.delete_task(tx, task_id)

    assert pages(attachment_store, 2, meddle) == [["n5", "n4"], ["n3", "n2"], ["n1", "t1"]]


@pytest.mark.parametrize("after", ["t1", "2026-01-01~t1", "2026-01-01T00:00:00.000000Z~", "~t1", "\0"])
def test_an_unknown_cursor_is_refused(attachment_store: AttachmentStore, after: str) -> None:
    with attachment_store.database.read() as tx, pytest.raises(InvalidInput) as raised:
        tasks.list_tasks(tx, 10, after)

    assert [field for field, _ in raised.value.fields] == ["after"]


def test_a_task_without_an_id_gets_a_short_one(attachment_store: AttachmentStore) -> None:
    with attachment_store.database.write() as tx:
        made = {tasks.create_task(tx, "A task").id for _ in range(3)}

    assert len(made) == 3
    assert all(one.startswith("tk-") and len(one) == 11 for one in made)


def test_a_taken_id_is_refused_and_nothing_changes(attachment_store: AttachmentStore) -> None:
    with pytest.raises(AlreadyThere, match="t1"):
        attachment_store.task("t1", title="Another")

    with attachment_store.database.read() as tx:
        assert tasks.get_task(tx, "t1").title == "A task"


def test_an_id_that_is_not_a_plain_name_is_refused(attachment_store: AttachmentStore) -> None:
    for task_id in ("", ".hidden", "a/b", "a b", "ä", "x" * 129, "a\n"):
        with pytest.raises(InvalidInput, match="id"):
            attachment_store.task(task_id)


def test_an_unknown_task_is_not_found(attachment_store: AttachmentStore) -> None:
    with attachment_store.database.write() as tx:
        for ask in (tasks.get_task, tasks.list_attachments, tasks.delete_task):
            with pytest.raises(NotFound, match="task 't9' does not exist"):
                ask(tx, "t9")
    with pytest.raises(NotFound, match="task 't9' does not exist"):
        attachment_store.link("t9", repo_path="a")
    with pytest.raises(NotFound, match="task 't9' does not exist"):
        attachment_store.attach(b"1", task_id="t9")

    assert attachment_store.keys() == set()


def test_the_same_request_finds_the_task_of_its_first_run(attachment_store: AttachmentStore) -> None:
    made = []
    for _ in range(2):
        with attachment_store.database.write() as tx:
            made.append(tasks.create_task(tx, "Keyed", request=keyed()))
            made.append(tasks.create_task(tx, "Keyed and named", task_id="t2", request=keyed("k2")))

    assert made[:2] == made[2:]
    assert attachment_store.count("tasks") == 3


def test_an_expired_key_makes_a_new_task(attachment_store: AttachmentStore) -> None:
    with attachment_store.database.write() as tx:
        first = tasks.create_task(tx, "Keyed", request=keyed())
    with attachment_store.database.write() as tx:
        second = tasks.create_task(tx, "Keyed", request=RequestKey(keyed().digest, "9999"))
        again = tasks.create_task(tx, "Keyed", request=keyed())

    assert first.id != second.id == again.id


def test_deleting_a_task_has_an_event_for_each_attachment_and_affects_no_other_task(
    attachment_store: AttachmentStore,
) -> None:
    attachment_store.task("t2")
    attached = [
        attachment_store.attach(b"1", labels=("x",)),
        attachment_store.attach(b"1"),
        attachment_store.link(repo_path="a"),
    ]
    other = attachment_store.attach(b"1", task_id="t2")
    with attachment_store.database.write() as tx:
        assert tasks.delete_task(tx, "t1") == 3

    removed = attachment_store.events(REMOVED)
    assert {event.entity_id for event in removed} == {one.id for one in attached}
    assert len(removed) == 3
    assert attachment_store.rows("SELECT id FROM attachments") == [(other.id,)]
    assert attachment_store.count("attachment_labels") == 0
    assert attachment_store.content(other.id) == b"1"


def test_a_rolled_back_deletion_has_no_events(attachment_store: AttachmentStore) -> None:
    attachment_store.attach(b"1")

    def taken_back() -> None:
        with attachment_store.database.write() as tx:
            tasks.delete_task(tx, "t1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        taken_back()

    assert attachment_store.events(REMOVED) == []
    assert attachment_store.count("attachments") == 1


def test_listing_tasks_runs_the_same_query_with_and_without_attachments(attachment_store: AttachmentStore) -> None:
    def listed() -> list[str]:
        with statements(attachment_store.database) as executed, attachment_store.database.read() as tx:
            tasks.list_tasks(tx, 50)
        return [one for one in executed if "SELECT" in one]

    before = listed()
    for number in range(20):
        attachment_store.link(repo_path=f"docs/{number}", labels=("x", "y"))
    attachment_store.attach(b"1")

    assert listed() == before
    assert len(before) == 1
    assert "attachments" not in before[0]


def test_listing_attachments_runs_two_queries_for_any_number_of_attachments(attachment_store: AttachmentStore) -> None:
    for number in range(20):
        attachment_store.link(repo_path=f"docs/{number}", labels=(f"l{number}",))
    with statements(attachment_store.database) as executed, attachment_store.database.read() as tx:
        found = tasks.list_attachments(tx, "t1").items

    assert [one.labels for one in found] == [(f"l{number}",) for number in reversed(range(20))]
    assert len([one for one in executed if "SELECT" in one]) == 2
