"""The credentials of open streams are checked repeatedly, whatever fails in between."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from contextlib import closing
from pathlib import Path

import pytest

from onceward.http.problem import Response, problem
from onceward.hub.db.engine import open_database
from onceward.hub.events.feed import Feed
from onceward.hub.events.handshake import UNAUTHORIZED, CloseReason
from onceward.hub.security import revocation
from onceward.hub.security.auth import LOCAL, Credentials, Principal
from onceward.hub.security.streams import OpenStreams

CREDENTIALS = Credentials(None, is_local=True, needed="read")


class Follower:
    """A session that only records how it is ended."""

    due = float("inf")

    def __init__(self) -> None:
        self.owner: Hashable = CREDENTIALS
        self.ended: asyncio.Future[CloseReason] = asyncio.get_running_loop().create_future()

    def wake(self) -> None: ...

    def is_stalled(self, _now: float, _stall_seconds: float) -> bool:
        return False

    def end(self, ending: CloseReason) -> None:
        self.ended.set_result(ending)

    def cut(self, ending: CloseReason) -> None:
        raise AssertionError(ending)

    def dismiss(self, ending: CloseReason) -> None:
        if not self.ended.done():
            self.end(ending)


@pytest.mark.parametrize("status", [401, 403])
def test_only_a_refusal_ends_a_stream_and_nothing_ends_the_watch(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    verdicts: list[Principal | Response | Exception] = [LOCAL, problem(503, "away"), ValueError("a bug"), LOCAL]
    given: list[bool] = []

    async def watched() -> None:
        feed, one = Feed(database, ask_database=False), Follower()

        async def authenticate(
            _database: object, credentials: set[Credentials]
        ) -> dict[Credentials, Principal | Response]:
            given.append(one.ended.done())
            verdict = verdicts.pop(0) if verdicts else problem(status, "no")
            if isinstance(verdict, Exception):
                raise verdict
            return dict.fromkeys(credentials, verdict)

        monkeypatch.setattr(revocation, "authenticate_all", authenticate)
        monkeypatch.setattr(revocation, "CHECK_SECONDS", 0)
        feed.enter(one)
        watching = asyncio.create_task(revocation.end_revoked_streams(feed, OpenStreams(1), database))
        async with asyncio.timeout(30):
            assert await one.ended is UNAUTHORIZED
        feed.leave(one)
        watching.cancel()
        await asyncio.wait({watching})
        await feed.stop()

    with closing(open_database(f"sqlite:///{tmp_path}/hub.db")) as database:
        asyncio.run(watched())

    assert given[:5] == [False] * 5
    assert "visitors_not_judged" in [record.msg for record in caplog.records]
