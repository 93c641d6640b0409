"""Writers with connections of their own: each inserts a row first, pauses, and appends its event last.

The pause after the append stands for a commit that takes its time. It is where an id that was drawn first can become
visible last; the log must not let that happen.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import sqlalchemy

from onceward.hub.db.engine import Transaction, open_database
from onceward.hub.db.tables import messages
from onceward.hub.db.timestamps import new_id, now_text
from onceward.hub.events.log import CHANNEL, NewEvent, append

WRITERS = 8
PAUSE_SECONDS_MAX = 0.006
COMMIT_SECONDS_MAX = 0.003

Append = Callable[[Transaction, NewEvent], int]


def append_in_turn(tx: Transaction, event: NewEvent) -> int:
    """Append events in order, as the hub does."""
    (event_id,) = append(tx, [event])
    return event_id


# The statement of the log on PostgreSQL without its lock.
_WITHOUT_TURN = sqlalchemy.text("""
    WITH written AS (
        INSERT INTO events (name, topic_id, entity_type, entity_id, data, created_at)
        VALUES (:name, :topic_id, :entity_type, :entity_id, :data, :created_at)
        RETURNING event_id
    )
    SELECT event_id, pg_notify(:channel, '') FROM written
""")


def append_out_of_turn(tx: Transaction, event: NewEvent) -> int:
    """Append without the lock: ids are assigned in one order and committed in another."""
    fields = {name: getattr(event, name) for name in NewEvent._fields}
    return int(tx.execute(_WITHOUT_TURN, {**fields, "created_at": now_text(), "channel": CHANNEL}).scalar_one())


def write_all(
    url: str, topic: str, each: int, how: Append = append_in_turn, seed: int = 0, over: threading.Event | None = None
) -> list[int]:
    """Run the writers for this many messages each, or until stopped; return the ids of the events, unordered."""
    over = over or threading.Event()
    with ThreadPoolExecutor(WRITERS) as threads:
        done = threads.map(
            lambda number: _write(url, topic, each, how, random.Random(seed + number), over), range(WRITERS)
        )
        return list(itertools.chain.from_iterable(done))


def _write(url: str, topic: str, each: int, how: Append, chance: random.Random, over: threading.Event) -> list[int]:
    ids: list[int] = []
    # A separate pool, so that the writers wait for each other only in the database.
    with closing(open_database(url, pool_size=1)) as database:
        while len(ids) < each and not over.is_set():
            with database.write() as tx:
                row = {"id": new_id("msg"), "topic_id": topic, "sender": "writer", "content": "…"}
                tx.execute(sqlalchemy.insert(messages).values(**row, created_at=now_text()))
                over.wait(chance.uniform(0, PAUSE_SECONDS_MAX))
                ids.append(how(tx, NewEvent("topic.message_added", topic, "message", row["id"], "{}")))
                over.wait(chance.uniform(0, COMMIT_SECONDS_MAX))
    return ids
