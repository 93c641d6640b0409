"""Following a hub: replay, then live, once and in order, with a cursor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.hub.client.conftest import RunWithHub
from tests.hub.client.connection_breaking_proxy import ConnectionBreakingProxy
from tests.waiting import soon

from onceward import errors
from onceward.hub.client import Event, Following, Hub


async def take(following: Following, count: int) -> list[Event]:
    return [await anext(following) for _ in range(count)]


def test_old_and_new_events_are_one_stream(url: str, many_events: tuple[str, int], run_with_hub: RunWithHub) -> None:
    topic_id, count = many_events

    async def use(hub: Hub) -> None:
        async with hub.follow(0, topic_id=topic_id) as following:
            replayed = await take(following, count)
            waiting = asyncio.create_task(anext(following))
            await until_cursor(following, (await hub.create_topic("Unwanted")).event_id)

            assert [event.entity_id for event in replayed] == [str(number) for number in range(count)]
            waiting.cancel()

        topic = (await hub.create_topic("Live")).topic
        async with hub.follow(following.cursor, topic_id=topic.id) as following:
            created = await anext(following)
            waiting = asyncio.create_task(anext(following))
            made = await hub.post_message(topic.id, "ada", "hello")

            assert (created.name, created.topic_id) == ("topic.created", topic.id)
            assert (await waiting).event_id == made.event_id == following.cursor

    run_with_hub(url, use)


async def until_cursor(following: Following, event_id: int | None) -> None:
    """A mark of progress moves the cursor past events that are not wanted, also while nobody is given an event."""
    assert event_id is not None
    await soon(lambda: (following.cursor or 0) >= event_id, "the cursor does not move")


def test_without_a_cursor_it_starts_now(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        await hub.create_topic("Before")
        async with hub.follow() as following:
            made = [await hub.create_topic("After") for _ in range(2)]

            assert [event.event_id for event in await take(following, 2)] == [one.event_id for one in made]

    run_with_hub(url, use)


def test_a_follower_continues_from_its_cursor(url: str, many_events: tuple[str, int], run_with_hub: RunWithHub) -> None:
    topic_id, count = many_events

    async def use(hub: Hub) -> None:
        async with hub.follow(0, topic_id=topic_id) as first:
            begun = await take(first, 5)
        async with hub.follow(first.cursor, topic_id=topic_id, log_epoch=first.log_epoch) as second:
            rest = await take(second, count - 5)

        assert [event.entity_id for event in begun + rest] == [str(number) for number in range(count)]

    run_with_hub(url, use)


def test_a_cancelled_wait_loses_nothing_and_closes_the_connection(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        topic = (await hub.create_topic("Cancelled")).topic
        async with ConnectionBreakingProxy(url) as proxy, Hub(proxy.url) as far:
            following = far.follow(0, topic_id=topic.id)
            await anext(following)
            waiting = asyncio.create_task(anext(following))
            await asyncio.wait({waiting}, timeout=0.05)
            waiting.cancel()
            await proxy.until_idle()
            made = [await hub.post_message(topic.id, "ada", "x") for _ in range(3)]

            assert [event.event_id for event in await take(following, 3)] == [one.event_id for one in made]
            assert waiting.cancelled()

    run_with_hub(url, use)


def test_closing_ends_a_waiting_follower_and_its_connection(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> list[int]:
        topic = (await hub.create_topic("Ended")).topic
        async with ConnectionBreakingProxy(url) as proxy, Hub(proxy.url) as far:
            following = far.follow(0, topic_id=topic.id)

            async def listen() -> list[int]:
                return [event.event_id async for event in following]

            listening = asyncio.create_task(listen())
            await until_cursor(following, 1)
            await following.aclose()
            await proxy.until_idle()
            with pytest.raises(StopAsyncIteration):
                await anext(following)
            return await listening

    assert len(run_with_hub(url, use)) <= 1


def test_a_follower_still_waiting_when_the_client_is_closed_gets_an_error(url: str, run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> None:
        await hub.create_topic("There is an event, whichever tests ran before")
        following = hub.follow(0)
        await anext(following)
        waiting = asyncio.create_task(_listen(following))
        await asyncio.wait({waiting}, timeout=0.05)
        await hub.aclose()
        await waiting

    with pytest.raises(errors.StoreClosed):
        run_with_hub(url, use)


async def _listen(following: Following) -> None:
    async for _ in following:
        pass


def test_a_cursor_beyond_the_end_belongs_to_another_log(url: str, run_with_hub: RunWithHub) -> None:
    with pytest.raises(errors.OtherLog):
        run_with_hub(url, lambda hub: anext(hub.follow(10**12)))


def test_a_cursor_of_another_log_is_refused(url: str, run_with_hub: RunWithHub) -> None:
    with pytest.raises(errors.OtherLog):
        run_with_hub(url, lambda hub: anext(hub.follow(0, log_epoch="another")))


@pytest.mark.parametrize("after", [-1, True, "1", 2**63])
def test_an_invalid_cursor_is_refused(after: int, url: str, run_with_hub: RunWithHub) -> None:
    with pytest.raises(errors.InvalidInput):
        run_with_hub(url, lambda hub: anext(hub.follow(after)))


@pytest.mark.parametrize("options", [{"on_gap": "ignore"}, {"silence_seconds": 0}], ids=str)
def test_invalid_options_are_refused(options: dict[str, Any], url: str, run_with_hub: RunWithHub) -> None:
    with pytest.raises(errors.InvalidOption):
        run_with_hub(url, lambda hub: anext(hub.follow(**options)))
    with pytest.raises(errors.InvalidOption):
        run_with_hub(url, lambda hub: anext(hub.all_events(on_gap="ignore")))  # type: ignore[arg-type]
