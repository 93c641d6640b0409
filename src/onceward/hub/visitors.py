"""Checks again and again whether those with an open stream or a waiting request may still have it.

One statement for each process and check, however many streams there are.
"""

from __future__ import annotations

import asyncio
import logging

from onceward.db.engine import Database
from onceward.events.feed import Feed
from onceward.events.hello import UNAUTHORIZED
from onceward.http.problem import Answer
from onceward.hub.auth import Visitor, judged_again
from onceward.hub.streams import OpenStreams

# A stream ends within 2 seconds of its token: one check, and time for clients that do not read.
CHECK_SECONDS = 0.5
_REFUSALS = frozenset({401, 403})

logger = logging.getLogger("onceward.hub")


async def watch(feed: Feed, streams: OpenStreams, database: Database) -> None:
    """End streams whose visitor would no longer be let in. While the database does not answer, they go on."""
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        try:
            await _check(feed, streams, database)
        except Exception:  # a bug; without this loop a revoked token would keep its streams
            logger.exception("visitors_not_judged")


async def _check(feed: Feed, streams: OpenStreams, database: Database) -> None:
    visitors = {one for one in feed.visitors if isinstance(one, Visitor)} | streams.visitors
    if not visitors:
        return
    for visitor, found in (await judged_again(database, visitors)).items():
        if isinstance(found, Answer) and found.status in _REFUSALS:
            feed.dismiss(visitor, UNAUTHORIZED)
            streams.dismiss(visitor)
