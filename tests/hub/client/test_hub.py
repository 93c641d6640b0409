"""Every method of the client, against a hub."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.hub.client.conftest import RunWithHub
from tests.hub.client.connection_breaking_proxy import ConnectionBreakingProxy

from onceward import errors
from onceward.hub import topics
from onceward.hub.client import Event, Hub, Topic
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import open_database


def test_topics_and_messages_are_made_listed_and_found(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        made = await hub.create_topic("Release 2.0")
        first = await hub.post_message(made.topic.id, "ada", "Is it done?")
        second = await hub.post_message(made.topic.id, "bob", "Nearly.")

        assert made.topic.title == "Release 2.0"
        assert datetime.now(UTC) - made.topic.created_at < timedelta(minutes=1)
        assert await hub.topic(made.topic.id) == made.topic
        assert made.topic in await hub.topics(limit=100)
        assert await hub.messages(made.topic.id) == [second.message, first.message]
        assert await hub.messages(made.topic.id, limit=1) == [second.message]
        assert made.event_id is not None
        assert first.event_id is not None
        assert made.event_id < first.event_id

    run_with_hub(url, use)


def test_a_list_without_a_limit_is_complete(url: str, run_with_hub: RunWithHub, data_dir: Path) -> None:
    with contextlib.closing(open_database(f"sqlite:///{data_dir}/hub.db")) as database, database.write() as tx:
        topic, _ = topics.create_topic(tx, "Long")
        messages = [topics.post_message(tx, topic.id, "ada", str(number))[0].id for number in range(101)]
        new = [topics.NewAttachment("note", {"n": number}) for number in range(101)]
        attached = [topics.attach(tx, topic.id, one).attachment.id for one in new]
        made = [topics.create_topic(tx, str(number))[0].id for number in range(101)]
    keys = [f"{number:03}" for number in range(501)]
    with data_folder.ledger(Config(HubSettings(data_dir=str(data_dir)))) as ledger:
        for key in keys:
            ledger.blocking.begin("many", key, None, repeatable=True)

    async def use(hub: Hub) -> None:
        assert [one.id for one in await hub.messages(topic.id)] == messages[::-1]
        assert [one.id for one in await hub.attachments(topic.id, kind="note")] == attached[::-1]
        assert [one.id for one in await hub.topics()][:101] == made[::-1]
        listed = [claim.key async for claim in hub.claims.all("many", oldest=True)]
        assert listed == keys

    run_with_hub(url, use)


def test_an_attachment_is_added_once_found_and_changed(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        topic = (await hub.create_topic("Sources")).topic
        message = (await hub.post_message(topic.id, "ada", "See the paper")).message
        kind, paper = "citation", {"doi": "10.1/x", "pages": [1, 2]}
        first = await hub.attach(topic.id, kind, paper, dedupe_key="doi:10.1/x", source_message_id=message.id)
        again = await hub.attach(topic.id, kind, {"doi": "10.1/X"}, dedupe_key="doi:10.1/x")
        named = await hub.attach(topic.id, kind, {"doi": "10.1/y"}, key="main")

        assert first.event_id is not None
        assert not first.value_differs
        assert first.attachment.value_json == paper
        assert first.attachment.source_message_id == message.id
        assert (again.attachment, again.event_id, again.value_differs) == (first.attachment, None, True)
        assert await hub.attachments(topic.id) == [named.attachment, first.attachment]
        assert await hub.attachments(topic.id, key="main", kind=kind) == [named.attachment]
        assert await hub.find_attachment(topic.id, kind, "doi:10.1/x") == first.attachment
        assert await hub.find_attachment(topic.id, kind, "doi:10.1/x", key="main") is None
        found = await hub.find_attachment(topic.id, kind, named.attachment.dedupe_key, key="main")
        assert found == named.attachment
        assert await hub.find_attachment(topic.id, kind, named.attachment.dedupe_key) is None

        changed = await hub.update_attachment(topic.id, kind, {"doi": "10.1/z"}, dedupe_key="doi:10.1/x")
        same = await hub.update_attachment(topic.id, kind, {"doi": "10.1/z"}, dedupe_key="doi:10.1/x")

        assert changed.attachment.id == first.attachment.id
        assert changed.attachment.value_json == {"doi": "10.1/z"}
        assert changed.event_id is not None
        assert same.event_id is None

    run_with_hub(url, use)


def test_events_are_read_by_pages_and_to_the_end(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        topic = (await hub.create_topic("Log")).topic
        made = [await hub.post_message(topic.id, "ada", str(number)) for number in range(3)]
        page = await hub.events(topic_id=topic.id, limit=2)
        rest = await hub.events(page.next_after, topic_id=topic.id)
        everything = [event async for event in hub.all_events(topic_id=topic.id)]

        assert [event.name for event in page.events] == ["topic.created", "topic.message_added"]
        assert (page.has_more, rest.has_more, page.gap) == (True, False, None)
        assert [*page.events, *rest.events] == everything
        assert [event.event_id for event in everything][1:] == [one.event_id for one in made]
        assert everything[1] == Event(
            made[0].event_id or 0, "topic.message_added", topic.id, "message", made[0].message.id,
            everything[1].data, everything[1].created_at,
        )  # fmt: skip
        assert [event async for event in hub.all_events(everything[-2].event_id, topic_id=topic.id)] == everything[-1:]

    run_with_hub(url, use)


def test_all_events_are_read_over_any_number_of_pages(
    url: str, many_events: tuple[str, int], run_with_hub: RunWithHub
) -> None:
    topic_id, count = many_events

    async def use(hub: Hub) -> list[str]:
        return [event.entity_id async for event in hub.all_events(topic_id=topic_id)]

    assert run_with_hub(url, use) == [str(number) for number in range(count)]


def test_a_call_with_the_same_key_happens_once(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        topic = (await hub.create_topic("Once")).topic
        first = await hub.post_message(topic.id, "ada", "hello", idempotency_key="ada-1")
        again = await hub.post_message(topic.id, "ada", "hello", idempotency_key="ada-1")

        assert first == again
        assert len(await hub.messages(topic.id)) == 1
        with pytest.raises(errors.KeyReused):
            await hub.post_message(topic.id, "ada", "something else", idempotency_key="ada-1")

    run_with_hub(url, use)


def test_a_lost_response_is_requested_again_and_is_the_first_one(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        topic = (await hub.create_topic("Lost")).topic
        async with ConnectionBreakingProxy(url) as proxy, Hub(proxy.url) as far:
            proxy.lose_answers = 2
            made = await far.post_message(topic.id, "ada", "hello")

            assert proxy.lose_answers == 0
            assert proxy.connections == 3
            assert await hub.messages(topic.id) == [made.message]
            events = [event async for event in hub.all_events(topic_id=topic.id)]
            assert [event.event_id for event in events[1:]] == [made.event_id]

    run_with_hub(url, use)


def test_calls_without_a_key_are_separate_calls(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        topic = (await hub.create_topic("Twice")).topic
        for _ in range(2):
            await hub.post_message(topic.id, "ada", "hello")

        assert len(await hub.messages(topic.id)) == 2

    run_with_hub(url, use)


def test_the_hub_says_that_it_is_alive_and_ready(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        readiness = await hub.readyz()

        assert await hub.healthz()
        assert readiness.ready
        assert readiness.checks == {"database": "ok", "ledger": "ok", "blobs": "ok"}

    run_with_hub(url, use)


def test_names_with_every_kind_of_character_arrive_as_they_are(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        topic = (await hub.create_topic("Ünïcode & more? #1 %20 «✓»")).topic
        key = "a/b?c=d&e=%2F ü+"
        made = await hub.attach(topic.id, "note", {"text": "☃"}, key=key, dedupe_key=key)

        assert topic.title == "Ünïcode & more? #1 %20 «✓»"
        assert await hub.find_attachment(topic.id, "note", key, key=key) == made.attachment

    run_with_hub(url, use)


@pytest.mark.parametrize("topic_id", ["", ".", "..", "x/messages", "top_none", "%", "a b", "ü", "\ud800", "?limit=1"])
def test_an_odd_id_is_not_found(topic_id: str, url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> Topic:
        return await hub.topic(topic_id)

    with pytest.raises(errors.NotFound):
        run_with_hub(url, use)


def test_an_id_cannot_lead_to_another_path(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        topic = (await hub.create_topic("Elsewhere")).topic
        with pytest.raises(errors.NotFound):
            await hub.topic(f"{topic.id}/messages")

    run_with_hub(url, use)
