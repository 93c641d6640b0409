"""Those who follow a stream, looked at anew: a stream outlives the request it began with, but not its token."""

from __future__ import annotations

import asyncio
import logging

from onceward.db.engine import Database
from onceward.events.feed import Feed
from onceward.events.hello import UNAUTHORIZED
from onceward.http.problem import Answer
from onceward.hub.auth import Visitor, judged

# How long after its token a stream ends at most, and how often a process asks the database for each token in use.
LOOK_SECONDS = 1.0
_REFUSALS = frozenset({401, 403})

logger = logging.getLogger("onceward.hub")


async def watch(feed: Feed, database: Database) -> None:
    """End streams whose visitor would no longer be let in. While the database does not answer, they go on."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            await _look_through(feed, database)
        except Exception:  # a bug; without this loop a revoked token would keep its streams
            logger.exception("visitors_not_judged")


async def _look_through(feed: Feed, database: Database) -> None:
    for visitor in feed.visitors:
        if not isinstance(visitor, Visitor):
            continue
        found = await judged(database, visitor)
        if isinstance(found, Answer) and found.status in _REFUSALS:
            feed.dismiss(visitor, UNAUTHORIZED)
