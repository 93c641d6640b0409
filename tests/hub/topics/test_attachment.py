"""Adding, finding and changing attachments, on both databases."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import text

from onceward.core.canonical import Json
from onceward.errors import InvalidInput, NotFound, OncewardError
from onceward.hub import topics
from onceward.hub.db.engine import Database
from onceward.hub.events import log
from onceward.hub.topics import Attached, NewAttachment, Topic
from onceward.hub.topics.attachment import FIND
from onceward.hub.topics.identity import value_key


@pytest.fixture
def topic(database: Database) -> Topic:
    with database.write() as tx:
        return topics.create_topic(tx, "Where the money went")[0]


Add = Callable[..., Attached]


@pytest.fixture
def add(database: Database, topic: Topic) -> Add:
    def add(value: Any = None, *, topic_id: str = topic.id, kind: str = "citation", **fields: Any) -> Attached:
        with database.write() as tx:
            return topics.attach(tx, topic_id, NewAttachment(kind, {} if value is None else value, **fields))

    return add


def events_of(database: Database) -> list[log.Event]:
    with database.read() as tx:
        return log.page(tx, 0, log.extent(tx).last_event_id, 500)


def rows(database: Database) -> int:
    with database.read() as tx:
        return int(tx.execute(text("SELECT count(*) FROM topic_attachments")).scalar_one())


def test_a_new_attachment_has_one_row_and_one_event_that_carries_it(database: Database, topic: Topic, add: Add) -> None:
    attached = add({"url": "https://example.com", "title": "Ä"}, dedupe_key="url:https://example.com", key="url")

    event = events_of(database)[-1]
    assert attached.event_id == event.event_id
    assert (event.name, event.topic_id, event.entity_type) == ("topic.attachment_added", topic.id, "attachment")
    assert json.loads(event.data) == {
        "attachment": {
            "id": attached.attachment.id,
            "topic_id": topic.id,
            "kind": "citation",
            "key": "url",
            "value_json": {"url": "https://example.com", "title": "Ä"},
            "dedupe_key": "url:https://example.com",
            "source_message_id": None,
            "created_at": attached.attachment.created_at,
        }
    }
    assert attached.attachment.id.startswith("att_")


def test_the_same_attachment_again_is_the_same_row_and_no_event(database: Database, add: Add) -> None:
    first = add({"a": 1}, dedupe_key="k")
    before = events_of(database)

    again = add({"a": 1}, dedupe_key="k")

    assert again == Attached(first.attachment, None, value_differs=False)
    assert events_of(database) == before


def test_another_value_under_the_same_dedupe_key_is_reported_and_not_stored(database: Database, add: Add) -> None:
    first = add({"title": "old"}, dedupe_key="k")

    again = add({"title": "new"}, dedupe_key="k")

    assert again == Attached(first.attachment, None, value_differs=True)
    assert rows(database) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1.0}, {"a": 1}),
        ({"a": 1e2}, {"a": 100}),
        ({"a": {"y": [], "x": None}}, {"a": {"x": None, "y": []}}),
    ],
    ids=["key order", "1.0", "1e2", "nested"],
)
def test_without_a_dedupe_key_the_same_value_is_the_same_attachment(
    add: Add, one: dict[str, object], other: dict[str, object]
) -> None:
    first, again = add(one), add(other)

    assert again.attachment.id == first.attachment.id
    assert (again.event_id, again.value_differs) == (None, False)


@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": 1}, {"a": True}), ({"a": [1, 2]}, {"a": [2, 1]}), ({"a": ""}, {"a": None}), ({"a": "1"}, {"a": 1})],
    ids=["true", "array order", "empty", "text"],
)
def test_another_value_without_a_dedupe_key_is_another_attachment(
    add: Add, one: dict[str, object], other: dict[str, object]
) -> None:
    assert add(one).attachment.id != add(other).attachment.id


def test_no_key_and_an_empty_key_are_the_same(add: Add) -> None:
    first = add({"a": 1}, key=None)

    assert add({"a": 1}, key="").attachment == first.attachment
    assert add({"a": 1}, key="k").attachment != first.attachment


def test_topic_kind_and_key_identify_an_attachment(database: Database, add: Add) -> None:
    with database.write() as tx:
        other, _ = topics.create_topic(tx, "Another")
    ids = {
        add(dedupe_key="k").attachment.id,
        add(dedupe_key="k", kind="note").attachment.id,
        add(dedupe_key="k", key="x").attachment.id,
        add(dedupe_key="k", topic_id=other.id).attachment.id,
        add(dedupe_key="K").attachment.id,
    }

    assert len(ids) == 5


def test_a_long_value_is_identified_by_its_digest(add: Add) -> None:
    long: dict[str, Json] = {"text": "x" * 600}

    assert add(long).attachment.dedupe_key == value_key(long)
    assert value_key(long).startswith("sha256:")
    assert len(value_key(long)) == 7 + 64
    assert add(long).event_id is None


def test_large_integers_need_a_dedupe_key_and_are_never_rounded(database: Database, add: Add) -> None:
    with pytest.raises(InvalidInput, match="dedupe_key"):
        add({"n": 2**53})
    first = add({"n": 2**53}, dedupe_key="k")

    assert first.attachment.value_json == {"n": 2**53}
    assert add({"n": 2**53}, dedupe_key="k").value_differs is False
    assert add({"n": 2**53 + 1}, dedupe_key="k").value_differs is True
    assert rows(database) == 1


def test_an_unknown_topic_or_message_is_refused_and_nothing_is_written(
    database: Database, topic: Topic, add: Add
) -> None:
    with database.write() as tx:
        other, _ = topics.create_topic(tx, "Another")
        foreign, _ = topics.post_message(tx, other.id, "ada", "hello")
    before = events_of(database)

    for fields, error in [
        ({"topic_id": "top_none"}, NotFound),
        ({"source_message_id": "msg_none"}, InvalidInput),
        ({"source_message_id": foreign.id}, InvalidInput),
        ({"source_message_id": ""}, InvalidInput),
    ]:
        with pytest.raises(error):
            add({"a": 1}, **fields)

    assert rows(database) == 0
    assert events_of(database) == before
    assert topic.id != other.id


def test_a_duplicate_with_a_foreign_message_is_refused_like_a_first_one(add: Add) -> None:
    add({"a": 1})

    with pytest.raises(InvalidInput, match="source_message_id"):
        add({"a": 1}, source_message_id="msg_none")


def test_an_attachment_stores_the_message_it_came_from(database: Database, topic: Topic, add: Add) -> None:
    with database.write() as tx:
        message, _ = topics.post_message(tx, topic.id, "ada", "see example.com")

    assert add({"a": 1}, source_message_id=message.id).attachment.source_message_id == message.id


# The explicit update.


def update(database: Database, topic: Topic, value: Any, **fields: Any) -> Attached:
    with database.write() as tx:
        return topics.update_attachment(tx, topic.id, NewAttachment("citation", value, **fields))


def test_an_update_changes_the_value_and_has_one_event(database: Database, topic: Topic, add: Add) -> None:
    first = add({"title": "old"}, dedupe_key="k")

    changed = update(database, topic, {"title": "new"}, dedupe_key="k")
    again = update(database, topic, {"title": "new"}, dedupe_key="k")

    assert changed.attachment.id == first.attachment.id
    assert changed.attachment.value_json == {"title": "new"}
    assert changed.event_id is not None
    assert again == Attached(changed.attachment, None)
    assert [event.name for event in events_of(database)][-2:] == ["topic.attachment_added", "topic.attachment_updated"]
    assert json.loads(events_of(database)[-1].data)["attachment"]["value_json"] == {"title": "new"}


def test_an_update_of_a_missing_attachment_is_not_found(database: Database, topic: Topic, add: Add) -> None:
    add({"a": 1}, dedupe_key="k")

    with pytest.raises(NotFound):
        update(database, topic, {"a": 2}, dedupe_key="other")
    with pytest.raises(InvalidInput, match="dedupe_key"):
        update(database, topic, {"a": 2})
    with pytest.raises(InvalidInput, match="source_message_id"):
        update(database, topic, {"a": 2}, dedupe_key="k", source_message_id="msg_none")
    assert len(events_of(database)) == 2


# Finding.


def test_an_attachment_is_found_by_its_dedupe_key(database: Database, topic: Topic, add: Add) -> None:
    first = add({"a": 1}, dedupe_key="k").attachment

    with database.read() as tx:
        assert topics.find_attachment_by_dedupe_key(tx, topic.id, "citation", None, "k") == first
        assert topics.find_attachment_by_dedupe_key(tx, topic.id, "citation", "", "k") == first
        assert topics.find_attachment_by_dedupe_key(tx, topic.id, "citation", "x", "k") is None
        assert topics.find_attachment_by_dedupe_key(tx, topic.id, "citation", None, "other") is None


def test_a_list_is_newest_first_limited_and_filtered(database: Database, topic: Topic, add: Add) -> None:
    made = [add({"n": n}, kind="odd" if n % 2 else "even", key="k" if n < 2 else None).attachment for n in range(6)]

    with database.read() as tx:
        assert topics.list_attachments(tx, topic.id, 100).items == made[::-1]
        assert topics.list_attachments(tx, topic.id, 2).items == made[:-3:-1]
        assert topics.list_attachments(tx, topic.id, 100, kind="odd").items == made[5::-2]
        assert topics.list_attachments(tx, topic.id, 100, key="k").items == made[1::-1]
        assert topics.list_attachments(tx, topic.id, 100, key="").items == made[:1:-1]
        assert topics.list_attachments(tx, topic.id, 100, dedupe_key='{"n":3}').items == [made[3]]
        with pytest.raises(NotFound):
            topics.list_attachments(tx, "top_none", 100)


# The index itself.

INSERT = text("""
    INSERT INTO topic_attachments (id, topic_id, kind, key, value_json, dedupe_key, created_at)
    VALUES (:id, :topic_id, 'k', :key, '{}', :dedupe_key, '2026')
""")


@pytest.mark.parametrize("keys", [(None, None), (None, ""), ("", None), ("x", "x")], ids=str)
def test_the_unique_index_refuses_a_second_row_from_any_writer(
    database: Database, topic: Topic, keys: tuple[str | None, str | None]
) -> None:
    def insert(number: int, key: str | None, dedupe_key: str = "d") -> None:
        with database.write() as tx:
            tx.execute(INSERT, {"id": f"att_{number}", "topic_id": topic.id, "key": key, "dedupe_key": dedupe_key})

    insert(1, keys[0])
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        insert(2, keys[1])
    insert(3, keys[1], "another")
    insert(4, "other key")

    assert rows(database) == 3


@pytest.mark.parametrize(("topic_id", "dedupe_key"), [("top_none", "d"), (None, "")], ids=["no topic", "empty key"])
def test_the_tables_refuse_invalid_rows(
    database: Database, topic: Topic, topic_id: str | None, dedupe_key: str
) -> None:
    values = {"id": "att_1", "topic_id": topic_id or topic.id, "key": None, "dedupe_key": dedupe_key}
    with pytest.raises(sqlalchemy.exc.IntegrityError), database.write() as tx:
        tx.execute(INSERT, values)

    assert rows(database) == 0


def test_deleting_a_topic_deletes_its_messages_and_attachments(database: Database, topic: Topic, add: Add) -> None:
    with database.write() as tx:
        message, _ = topics.post_message(tx, topic.id, "ada", "hello")
    add({"a": 1}, source_message_id=message.id)

    with database.write() as tx:
        tx.execute(text("DELETE FROM topics"))

    assert rows(database) == 0


def test_threads_that_add_the_same_attachment_concurrently_get_one_row(database: Database, add: Add) -> None:
    barrier = threading.Barrier(8)
    answers: list[Attached | OncewardError] = []

    def race() -> None:
        barrier.wait()
        answers.extend([add({"n": number}) for number in range(10)])

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = [answer for answer in answers if isinstance(answer, Attached)]
    assert len(found) == 80
    assert len({answer.attachment.id for answer in found}) == 10
    assert sum(answer.event_id is not None for answer in found) == 10
    assert len(events_of(database)) == 11


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_postgresql_uses_the_index_of_each_read_before_the_table_is_analyzed(database: Database, topic: Topic) -> None:
    many = text(
        "INSERT INTO topic_attachments (id, topic_id, kind, value_json, dedupe_key, created_at)"
        " SELECT 'att_' || n, :topic_id, 'citation', '{}', 'key' || n, '2026' FROM generate_series(1, 3000) AS n"
    )
    asked = json.dumps([{"topic_id": topic.id, "kind": "citation", "key": "", "dedupe_key": "key7"}])
    plans: list[str] = []

    def explain(_connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "FROM topic_attachments" in statement:
            cursor.execute(f"EXPLAIN {statement}", parameters)
            plans.append("\n".join(row[0] for row in cursor.fetchall()))

    with database.write() as tx:
        tx.execute(many, {"topic_id": topic.id})
        found = tx.execute(text(f"EXPLAIN {FIND.many}"), {"asked": asked}).scalars()
        lookup = "\n".join(found)
        sqlalchemy.event.listen(tx, "before_cursor_execute", explain)
        topics.list_attachments(tx, topic.id, 10, kind="citation")

    assert "idx_topic_attachments_dedupe" in lookup
    assert "idx_topic_attachments_kind" in plans[0]
