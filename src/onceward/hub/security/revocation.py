"""Periodic check of the tokens of open streams and waiting requests.

Each check is one query per process, however many streams are open.
"""

from __future__ import annotations

import asyncio
import logging

from onceward.core.log_event import log_event
from onceward.http.problem import Response
from onceward.hub.db.engine import Database
from onceward.hub.events.feed import Feed
from onceward.hub.events.handshake import UNAUTHORIZED
from onceward.hub.security.auth import Credentials, authenticate_all
from onceward.hub.security.streams import OpenStreams
from onceward.store.failure_streak import FailureStreak

# A stream must end within 2 seconds after its token: one interval, plus the extra time for a client that does not read.
CHECK_SECONDS = 0.5
_REFUSALS = frozenset({401, 403})

logger = logging.getLogger("onceward.hub")


async def end_revoked_streams(feed: Feed, streams: OpenStreams, database: Database) -> None:
    """End streams whose credentials are no longer accepted. While the database is down, they continue."""
    streak = FailureStreak()
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        try:
            await _check(feed, streams, database)
        except Exception as error:  # noqa: BLE001  # a bug; if this loop ended, a revoked token would keep its streams
            if (count := streak.failed(error)) is not None:
                log_event(logger.error, "visitors_not_judged", error, failure_count=count)
        else:
            streak.succeeded()


async def _check(feed: Feed, streams: OpenStreams, database: Database) -> None:
    open_credentials = {one for one in feed.owners if isinstance(one, Credentials)} | streams.credentials
    if not open_credentials:
        return
    for credentials, found in (await authenticate_all(database, open_credentials)).items():
        if isinstance(found, Response) and found.status in _REFUSALS:
            feed.dismiss(credentials, UNAUTHORIZED)
            streams.dismiss(credentials)
