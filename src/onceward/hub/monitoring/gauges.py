"""Gauges that a hub reads from its database and its ledger.

    onceward_in_doubt                  claims in doubt
    onceward_in_doubt_oldest_seconds   the time since the oldest of them was claimed
    onceward_turns{state}              turns by state
    onceward_stored_bytes{principal}   bytes of attachments, of the principals that store the most
    onceward_stored_bytes_max          the quota of each principal; not there without a quota
    onceward_build_info{version,…}     always 1

All workers share the database and the ledger, so the worker that answers a scrape shows the numbers of all of them. They
are not in the files in which the workers add up their counters.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from onceward.hub.db.engine import Database
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.tasks.quota import largest_usage
from onceward.hub.turns.model.turn import State
from onceward.ledger.ledger import Ledger
from onceward.metrics import CachedValue, DoubtGauges

# Principals are names of tokens, so there are few. The limit is for a hub where they are not.
PRINCIPALS_MAX = 100

# Two statements in one, because each half has a partial index. See `hub/db/turn_tables.py`.
COUNT_TURNS = RawStatement("""
    SELECT state, count(*) FROM turns WHERE state IN ('accumulating', 'processing', 'committing') GROUP BY state
    UNION ALL
    SELECT state, count(*) FROM turns WHERE state IN ('complete', 'superseded', 'failed') GROUP BY state
""")


class HubGauges(Collector):
    """Collector of the gauges of one hub."""

    def __init__(self, database: Database, ledger: Ledger, bytes_max: int = 0) -> None:
        self._doubts = DoubtGauges(ledger)
        self._turns = CachedValue(lambda: count_turns(database))
        self._stored = CachedValue(lambda: largest_usage(database, PRINCIPALS_MAX))
        self._bytes_max = bytes_max

    def collect(self) -> Iterator[Metric]:
        yield from self._doubts.collect()
        turns = GaugeMetricFamily("onceward_turns", "Turns by state.", labels=["state"])
        for state, count in (self._turns.get() or {}).items():
            turns.add_metric([state], count)
        yield turns
        stored = GaugeMetricFamily(
            "onceward_stored_bytes", "Bytes of the attachments of a principal.", labels=["principal"]
        )
        for one in self._stored.get() or ():
            stored.add_metric([one.principal], one.stored_bytes)
        yield stored
        if self._bytes_max:
            yield GaugeMetricFamily(
                "onceward_stored_bytes_max", "Bytes that each principal may store.", value=self._bytes_max
            )
        build = GaugeMetricFamily(
            "onceward_build_info", "Version of the hub and of Python.", labels=["version", "python"]
        )
        build.add_metric([version("onceward"), platform.python_version()], 1)
        yield build


def count_turns(database: Database) -> dict[str, int]:
    """Count the turns of each state; states without turns count 0."""
    found = {row[0]: int(row[1]) for row in database.rows(COUNT_TURNS, {})}
    return {state.value: found.get(state.value, 0) for state in State}
