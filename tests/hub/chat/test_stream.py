"""Followers of a turn share reads, but never across principals, never an outdated one, and the hub waits for them."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import SECONDS_MAX, soon

from onceward.errors import NotFound
from onceward.hub.chat import stream as turn_stream
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.state import HubState
from onceward.hub.turns.model.stream import stream_page
from onceward.turns import UserMessage

Story = Callable[["Followed"], Awaitable[None]]


class Followed:
    """A hub with a finished turn of Ada's, and reads of its stream that block until they are released."""

    def __init__(self, hub: HubState, patch: pytest.MonkeyPatch) -> None:
        self.hub = hub
        self.turn_id = ""
        self.reads = 0
        self.let_go = threading.Event()
        self._stream_page = stream_page
        patch.setattr(turn_stream, "stream_page", self._blocked_page)

    def _blocked_page(self, *arguments: Any) -> Any:
        page = self._stream_page(*arguments)
        self.reads += 1
        assert self.let_go.wait(SECONDS_MAX)
        return page

    async def say(self, text: str) -> str:
        received = await self.hub.turns.gateway.receive_message(UserMessage(content=text, principal="ada"))
        await self.hub.turns.finished("ada", received.turn_id, SECONDS_MAX)
        return received.turn_id

    def follow(self, principal: str) -> asyncio.Task[bytes]:
        """Return the first event of the turn that this principal gets."""

        async def first() -> bytes:
            stream = turn_stream.events_of(self.hub.turns, self.hub.database, principal, self.turn_id, None)
            await anext(stream)
            return await anext(stream)

        return asyncio.create_task(first())


@pytest.fixture
def run_story(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    shutil.copy(sqlite_template, tmp_path / "hub.db")

    async def with_hub(story: Story) -> None:
        hub = HubState(Config(HubSettings(data_dir=str(tmp_path))))
        await hub.open()
        followed = Followed(hub, monkeypatch)
        try:
            followed.turn_id = await followed.say("Refund my order 12345")
            await story(followed)
        finally:
            followed.let_go.set()
            await hub.close()

    return lambda story: asyncio.run(with_hub(story))


def test_a_stranger_never_shares_a_read_of_the_owner(run_story: Callable[[Story], None]) -> None:
    async def story(followed: Followed) -> None:
        owner = followed.follow("ada")
        await soon(lambda: followed.reads == 1)
        with pytest.raises(NotFound):
            await asyncio.wait_for(followed.follow("bob"), SECONDS_MAX)
        followed.let_go.set()
        assert b"event: delta" in await owner

    run_story(story)


def test_a_caller_after_an_invalidation_reads_again(run_story: Callable[[Story], None]) -> None:
    async def story(followed: Followed) -> None:
        early = [followed.follow("ada") for _ in range(5)]
        await soon(lambda: followed.reads == 1)
        await followed.say("Refund my order 12346")
        late = [followed.follow("ada") for _ in range(5)]
        await soon(lambda: followed.reads == 2)
        followed.let_go.set()
        assert len({*await asyncio.gather(*early, *late)}) == 1

    run_story(story)


def test_a_hub_closes_when_the_last_read_has_ended(run_story: Callable[[Story], None]) -> None:
    async def story(followed: Followed) -> None:
        leaving = followed.follow("ada")
        await soon(lambda: followed.reads == 1)
        leaving.cancel()
        stop = asyncio.create_task(followed.hub.turns.stop())
        assert not (await asyncio.wait({stop}, timeout=0.2))[0]
        followed.let_go.set()
        await asyncio.wait_for(stop, SECONDS_MAX)

    run_story(story)
