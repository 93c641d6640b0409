"""Who follows a stream is judged again and again, whatever goes wrong in between."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from contextlib import closing
from pathlib import Path

import pytest

from onceward.db.engine import open_database
from onceward.events.feed import Feed
from onceward.events.hello import UNAUTHORIZED, Ending
from onceward.http.problem import Answer, problem
from onceward.hub import visitors
from onceward.hub.auth import LOCAL, Principal, Visitor
from onceward.hub.streams import OpenStreams

VISITOR = Visitor(None, from_here=True, needed="read")


class Follower:
    """A session that does nothing but say when it is ended."""

    due = float("inf")

    def __init__(self) -> None:
        self.visitor: Hashable = VISITOR
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()

    def wake(self) -> None: ...

    def is_stalled(self, _now: float, _stall_seconds: float) -> bool:
        return False

    def end(self, ending: Ending) -> None:
        self.ended.set_result(ending)

    def cut(self, ending: Ending) -> None:
        raise AssertionError(ending)

    def dismiss(self, ending: Ending) -> None:
        if not self.ended.done():
            self.end(ending)


@pytest.mark.parametrize("status", [401, 403])
def test_nothing_but_a_refusal_ends_a_stream_and_nothing_ends_the_watch(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    verdicts: list[Principal | Answer | Exception] = [LOCAL, problem(503, "away"), ValueError("a bug"), LOCAL]
    given: list[bool] = []

    async def watched() -> None:
        feed, one = Feed(database, ask_database=False), Follower()

        async def judge(_database: object, asked: set[Visitor]) -> dict[Visitor, Principal | Answer]:
            given.append(one.ended.done())
            verdict = verdicts.pop(0) if verdicts else problem(status, "no")
            if isinstance(verdict, Exception):
                raise verdict
            return dict.fromkeys(asked, verdict)

        monkeypatch.setattr(visitors, "judged_again", judge)
        monkeypatch.setattr(visitors, "CHECK_SECONDS", 0)
        feed.enter(one)
        watching = asyncio.create_task(visitors.watch(feed, OpenStreams(1), database))
        async with asyncio.timeout(30):
            assert await one.ended is UNAUTHORIZED
        feed.leave(one)
        watching.cancel()
        await asyncio.wait({watching})
        await feed.stop()

    with closing(open_database(f"sqlite:///{tmp_path}/hub.db")) as database:
        asyncio.run(watched())

    assert given[:5] == [False] * 5
    assert "visitors_not_judged" in caplog.messages
