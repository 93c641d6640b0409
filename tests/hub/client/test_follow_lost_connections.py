"""Followers of a hub with cut streams, a killed hub and deleted events: no event is missed silently."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.hub.client.conftest import RunWithHub
from tests.hub.client.connection_breaking_proxy import ConnectionBreakingProxy
from tests.hub.hub_process import RunningHub, running_hub

from onceward import errors
from onceward.hub.client import Event, Following, Gap, Hub
from onceward.hub.db.engine import open_database
from onceward.hub.db.timestamps import now_text
from onceward.hub.events.log import delete_old_events


def test_a_stream_that_is_cut_repeatedly_misses_nothing(url: str, run_with_hub: RunWithHub) -> None:
    choose = random.Random(4)

    async def use(hub: Hub) -> None:
        topic = (await hub.create_topic("Cut")).topic
        async with ConnectionBreakingProxy(url) as proxy, Hub(proxy.url) as far:
            following = far.follow(0, topic_id=topic.id)
            received = []
            for _ in range(8):
                made = [await hub.post_message(topic.id, "ada", "x") for _ in range(choose.randrange(4))]
                waiting = asyncio.create_task(anext(following))
                await asyncio.wait({waiting}, timeout=choose.random() * 0.02)
                await proxy.cut()
                made.append(await hub.post_message(topic.id, "ada", "x"))
                received.append(await waiting)
                while received[-1].event_id != made[-1].event_id:
                    received.append(await anext(following))

            assert proxy.connections > 4
            assert received == [event async for event in hub.all_events(topic_id=topic.id)]

    run_with_hub(url, use)


class RestartableHub:
    """A hub that can be killed, and is started again on the same data and the same port."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._processes = ExitStack()
        self._process = self._start("0")
        self.url = self._process.url

    def kill(self) -> None:
        self._process.process.kill()
        self._process.wait()

    def restart(self) -> None:
        self._process = self._start(str(self._process.port))

    def close(self) -> None:
        self._processes.close()

    def _start(self, port: str) -> RunningHub:
        return self._processes.enter_context(running_hub(data_dir=self.data_dir, args=("--port", port)))


@pytest.fixture(scope="module")
def restartable_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableHub]:
    with closing(RestartableHub(tmp_path_factory.mktemp("hub") / "data")) as hub:
        yield hub


def test_a_killed_and_restarted_hub_loses_nothing(restartable_hub: RestartableHub, run_with_hub: RunWithHub) -> None:
    """Neither the follower nor the writer gets an error."""
    count = 40

    async def follow(following: Following, received: list[Event], some: asyncio.Event) -> None:
        async for event in following:
            received.append(event)
            if len(received) == count // 4:
                some.set()
            if len(received) == count:
                return

    async def write(hub: Hub, topic_id: str) -> None:
        for number in range(count):
            await hub.post_message(topic_id, "ada", str(number))

    async def use(hub: Hub) -> None:
        made = await hub.create_topic("Killed")
        received: list[Event] = []
        some = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            following = hub.follow(made.event_id)
            tasks.create_task(follow(following, received, some))
            tasks.create_task(write(hub, made.topic.id))
            await some.wait()
            await asyncio.to_thread(restartable_hub.kill)
            await asyncio.to_thread(restartable_hub.restart)

        assert received == [event async for event in hub.all_events(made.event_id or 0)]
        assert [_content(event) for event in received] == [str(number) for number in range(count)]
        assert [one.content for one in await hub.messages(made.topic.id)] == [_content(one) for one in received[::-1]]

    run_with_hub(restartable_hub.url, use)


def test_events_that_are_no_longer_stored_are_never_skipped_silently(
    restartable_hub: RestartableHub, run_with_hub: RunWithHub
) -> None:
    async def use(hub: Hub) -> None:
        topic = (await hub.create_topic("Old")).topic
        last = [(await hub.post_message(topic.id, "ada", str(number))).event_id or 0 for number in range(9)][-1]
        with closing(open_database(f"sqlite:///{restartable_hub.data_dir}/hub.db")) as database, database.write() as tx:
            delete_old_events(tx, now_text(), limit=last - 4)
        with pytest.raises(errors.EventsLost) as raised:
            await anext(hub.follow(1))
        with pytest.raises(errors.EventsLost):
            await anext(hub.all_events())
        page = await hub.events(1, limit=1)
        oldest = last - 3

        assert (raised.value.after_event_id, raised.value.oldest_event_id) == (1, oldest)
        assert page.gap == Gap(1, oldest)
        assert (await anext(hub.follow(1, on_gap="continue"))).event_id == oldest
        assert (await anext(hub.follow(oldest - 1))).event_id == oldest
        assert [event.event_id async for event in hub.all_events(on_gap="continue")] == [*range(oldest, last + 1)]

    run_with_hub(restartable_hub.url, use)


def _content(event: Event) -> object:
    message = event.data["message"]
    assert isinstance(message, dict)
    return message["content"]
