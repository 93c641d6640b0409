"""Gauges that a hub reads from its database and its ledger.

    onceward_in_doubt                  claims in doubt
    onceward_in_doubt_oldest_seconds   the time since the oldest of them was claimed
    onceward_turns{state}              turns by state
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
from onceward.hub.turns.model.turn import State
from onceward.ledger.ledger import Ledger
from onceward.metrics import CachedValue, DoubtGauges

# Two statements in one, because each half has a partial index. See `hub/db/turn_tables.py`.
COUNT_TURNS = RawStatement("""
    SELECT state, count(*) FROM turns WHERE state IN ('accumulating', 'processing', 'committing') GROUP BY state
    UNION ALL
    SELECT state, count(*) FROM turns WHERE state IN ('complete', 'superseded', 'failed') GROUP BY state
""")


class HubGauges(Collector):
    """Collector of the gauges of one hub."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self._doubts = DoubtGauges(ledger)
        self._turns = CachedValue(lambda: count_turns(database))

    def collect(self) -> Iterator[Metric]:
        yield from self._doubts.collect()
        turns = GaugeMetricFamily("onceward_turns", "Turns by state.", labels=["state"])
        for state, count in (self._turns.get() or {}).items():
            turns.add_metric([state], count)
        yield turns
        build = GaugeMetricFamily(
            "onceward_build_info", "Version of the hub and of Python.", labels=["version", "python"]
        )
        build.add_metric([version("onceward"), platform.python_version()], 1)
        yield build


def count_turns(database: Database) -> dict[str, int]:
    """Count the turns of each state; states without turns count 0."""
    found = {row[0]: int(row[1]) for row in database.rows(COUNT_TURNS, {})}
    return {state.value: found.get(state.value, 0) for state in State}
