"""The blocking client, and the cost of its import."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading

import pytest

from onceward import errors
from onceward.hub.client import BlockingHub, Event, Hub, TopicMade

# Packages of the hub that a client does not import. (httpx itself imports click, if it is installed.)
NOT_NEEDED = {"sqlalchemy", "alembic", "fastapi", "starlette", "pydantic", "uvicorn", "websockets", "structlog"}


def test_every_method_waits_for_its_response(url: str) -> None:
    with BlockingHub(url) as hub:
        made: TopicMade = hub.create_topic("Blocking")
        topic_id = made.topic.id
        message = hub.post_message(topic_id, "ada", "hello", idempotency_key=f"{topic_id}-1")
        added = hub.attach(topic_id, "note", {"a": 1}, dedupe_key="a")
        changed = hub.update_attachment(topic_id, "note", {"a": 2}, dedupe_key="a")

        assert hub.healthz()
        assert hub.readyz().ready
        assert hub.topic(topic_id) in hub.topics(limit=100)
        assert hub.messages(topic_id) == [message.message]
        assert hub.find_attachment(topic_id, "note", "a") == changed.attachment
        assert hub.attachments(topic_id) == [changed.attachment]
        expected = [made.event_id, message.event_id, added.event_id, changed.event_id]
        assert [event.event_id for event in hub.all_events(topic_id=topic_id)] == expected
        assert [event.event_id for event in hub.events(topic_id=topic_id).events] == expected
        with hub.follow(0, topic_id=topic_id) as following:
            first: Event = next(following)
            rest = [next(following).event_id for _ in range(3)]
            assert [first.event_id, *rest] == expected
            assert following.cursor == expected[-1]
            assert following.log_epoch
        assert list(following) == []
        with hub.follow() as following:
            last = hub.create_topic("After").event_id
            assert next(following).event_id == last


def test_it_has_every_method_of_the_async_hub_with_its_signature() -> None:
    verbs = {name for name in vars(Hub) if not name.startswith("_")} - {"aclose"}

    assert verbs <= set(vars(BlockingHub))
    for name in verbs:
        assert inspect.signature(getattr(BlockingHub, name)) == inspect.signature(getattr(Hub, name))
        assert getattr(BlockingHub, name).__doc__ == getattr(Hub, name).__doc__


def test_an_error_is_raised_in_the_caller(url: str) -> None:
    with BlockingHub(url) as hub:
        with pytest.raises(errors.NotFound):
            hub.topic("top_none")
        with pytest.raises(errors.OtherLog):
            next(hub.follow(10**12))
    with pytest.raises(errors.InvalidOption):
        BlockingHub("nowhere")


def test_half_read_streams_are_closed_with_the_hub(url: str) -> None:
    with BlockingHub(url) as hub:
        hub.create_topic("Half read")
        events = hub.all_events()
        next(iter(events))
        following = hub.follow(0)
        next(following)

    assert not any(thread.name == "onceward-hub-client" for thread in threading.enumerate())
    with pytest.raises(errors.StoreClosed):
        next(following)
    following.close()


def test_a_closed_hub_says_so_and_can_be_closed_again(url: str) -> None:
    hub = BlockingHub(url)
    hub.close()
    hub.close()

    with pytest.raises(errors.StoreClosed):
        hub.topics()


def test_a_caller_still_waiting_when_it_is_closed_gets_an_error(url: str) -> None:
    hub = BlockingHub(url)
    last = hub.create_topic("Waiting").event_id
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            next(hub.follow(last, topic_id="top_none"))
        except errors.StoreClosed as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.1)
    hub.close()
    waiting.join(20)

    assert len(raised) == 1


def test_threads_may_share_it(url: str) -> None:
    made: list[str] = []
    with BlockingHub(url) as hub:
        threads = [threading.Thread(target=lambda: made.append(hub.create_topic("Shared").topic.id)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(set(made)) == 8


def test_the_client_does_not_import_the_server() -> None:
    code = "import sys, onceward.hub.client; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert "httpx" in done.stdout.split()
    assert set(done.stdout.split()) & NOT_NEEDED == set()
