"""Topics and messages, and requests that run twice."""

from __future__ import annotations

import json

import pytest

from onceward.errors import InvalidInput, NotFound, TooLarge, TransactionConflict
from onceward.hub import topics
from onceward.hub.db.engine import Database
from onceward.hub.db.request_key import RequestKey, request_of
from onceward.hub.events import log
from onceward.hub.topics import Attached, NewAttachment, Topic


@pytest.fixture
def topic(database: Database) -> Topic:
    with database.write() as tx:
        return topics.create_topic(tx, "One")[0]


def log_of(database: Database) -> list[log.Event]:
    with database.read() as tx:
        return log.page(tx, 0, log.extent(tx).last_event_id, 500)


def test_a_topic_and_a_message_each_have_an_event_that_carries_them(database: Database) -> None:
    with database.write() as tx:
        topic, made = topics.create_topic(tx, "Übersicht")
        message, posted = topics.post_message(tx, topic.id, "ada", "hello")

    first, second = log_of(database)
    assert (first.event_id, first.name, first.entity_id, first.topic_id) == (made, "topic.created", topic.id, topic.id)
    assert json.loads(first.data)["topic"]["title"] == "Übersicht"
    assert (second.event_id, second.name, second.entity_id) == (posted, "topic.message_added", message.id)
    assert json.loads(second.data)["message"]["content"] == "hello"


def test_lists_are_newest_first_and_limited(database: Database, topic: Topic) -> None:
    with database.write() as tx:
        more = [topics.create_topic(tx, f"T{n}")[0] for n in range(3)]
        posted = [topics.post_message(tx, topic.id, "ada", f"{n}")[0] for n in range(3)]

    with database.read() as tx:
        assert topics.list_topics(tx, 10).items == [*more[::-1], topic]
        assert topics.list_topics(tx, 2).items == more[:0:-1]
        assert topics.list_messages(tx, topic.id, 10).items == posted[::-1]
        assert topics.list_messages(tx, topic.id, 1).items == posted[:1:-1]
        assert topics.list_messages(tx, more[0].id, 10).items == []
        assert topics.get_topic(tx, topic.id) == topic


def test_an_unknown_id_is_not_found(database: Database, topic: Topic) -> None:
    with database.write() as tx:
        with pytest.raises(NotFound, match="top_none"):
            topics.get_topic(tx, "top_none")
        with pytest.raises(NotFound):
            topics.list_messages(tx, "top_none", 10)
        with pytest.raises(NotFound):
            topics.post_message(tx, "top_none", "ada", "hello")
        with pytest.raises(NotFound):
            topics.post_message(tx, "top_none", "ada", "hello", request_key("k"))

    assert [event.entity_id for event in log_of(database)] == [topic.id]


def test_texts_have_limits(database: Database, topic: Topic) -> None:
    with database.write() as tx:
        for title in ("", "  ", "x" * 513, "a\0b", "\ud800"):
            with pytest.raises(InvalidInput):
                topics.create_topic(tx, title)
        for sender, content in (("", "x"), ("ada", " "), ("a" * 256, "x"), ("ada", "\0")):
            with pytest.raises(InvalidInput):
                topics.post_message(tx, topic.id, sender, content)
        with pytest.raises(TooLarge):
            topics.post_message(tx, topic.id, "ada", "ä" * 32_769)
        topics.post_message(tx, topic.id, "a" * 255, "ä" * 32_768)
        topics.create_topic(tx, "x" * 512)


# A request that runs a second time: its process died between the commit and the record of its response.


def request_key(key: str, *, who: str = "ada", began_at: int = 1, attempt: int = 2) -> RequestKey:
    request = request_of(who, key, began_at, attempt)
    assert request is not None
    return request


def test_a_repeated_request_finds_the_topic_that_it_created(database: Database) -> None:
    with database.write() as tx:
        first = topics.create_topic(tx, "One", request_key("k", attempt=1))
    with database.write() as tx:
        again = topics.create_topic(tx, "One", request_key("k"))

    assert again == first
    assert len(log_of(database)) == 1


def test_a_repeated_request_finds_the_message_that_it_posted(database: Database, topic: Topic) -> None:
    with database.write() as tx:
        first = topics.post_message(tx, topic.id, "ada", "hello", request_key("k", attempt=1))
    with database.write() as tx:
        topics.post_message(tx, topic.id, "ada", "hello")
        again = topics.post_message(tx, topic.id, "ada", "hello", request_key("k"))

    assert again == first
    assert len(log_of(database)) == 3


def test_a_repeated_request_gets_its_first_result_after_it_added_an_attachment(
    database: Database, topic: Topic
) -> None:
    new = NewAttachment("citation", {"title": "Ä"}, dedupe_key="d")
    with database.write() as tx:
        first = topics.attach(tx, topic.id, new, request_key("k", attempt=1))
    with database.write() as tx:
        again = topics.attach(tx, topic.id, new, request_key("k"))

    assert first.event_id is not None
    assert again == first


def test_a_repeated_update_does_not_undo_later_changes(database: Database, topic: Topic) -> None:
    def update(value: str, request: RequestKey | None) -> Attached:
        with database.write() as tx:
            new = NewAttachment("citation", {"title": value}, dedupe_key="d")
            return topics.update_attachment(tx, topic.id, new, request)

    with database.write() as tx:
        topics.attach(tx, topic.id, NewAttachment("citation", {"title": "one"}, dedupe_key="d"))
    first = update("two", request_key("k", attempt=1))
    update("three", None)

    again = update("two", request_key("k"))

    assert again == first
    with database.read() as tx:
        (there,) = topics.list_attachments(tx, topic.id, 10).items
    assert there.value_json == {"title": "three"}


def test_a_concurrent_second_run_is_refused_by_the_index(database: Database, topic: Topic) -> None:
    """A worker that was frozen does not know that another has taken over its request, and does not read first."""
    with database.write() as tx:
        topics.post_message(tx, topic.id, "ada", "hello", request_key("k", attempt=1))

    with pytest.raises(TransactionConflict), database.write() as tx:
        topics.post_message(tx, topic.id, "ada", "hello", request_key("k", attempt=1))

    with database.read() as tx:
        assert len(topics.list_messages(tx, topic.id, 10).items) == 1


def test_another_key_principal_or_operation_is_another_request(database: Database, topic: Topic) -> None:
    requests = [
        request_key("k"),
        request_key("l"),
        request_key("k", who="bob"),
        request_key("k", began_at=2),
        None,
        None,
    ]
    with database.write() as tx:
        made = {topics.post_message(tx, topic.id, "ada", "hello", request)[0].id for request in requests}

    assert len(made) == 6


def test_a_request_that_changed_nothing_runs_again(database: Database, topic: Topic) -> None:
    new = NewAttachment("citation", {}, dedupe_key="d")
    with database.write() as tx:
        first = topics.attach(tx, topic.id, new)
        nothing = topics.attach(tx, topic.id, new, request_key("k", attempt=1))
        again = topics.attach(tx, topic.id, new, request_key("k"))

    assert nothing == again == Attached(first.attachment, None)
