"""Contest of the load benchmark: each round measures every row on all servers in turn, between two bare runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol

from bench.connections import Connections
from bench.contest import Unable
from bench.hub.rows import Row, bare_of, get_health
from bench.process_tree import cpu_seconds

CONNECTIONS = 32
BARE = "bare FastAPI"
# The bare routes are fast, so that a shorter run has as many requests.
_BARE_SHARE = 0.5
_WARM_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Round:
    """One run of a row. A figure that a contestant does not have is NaN.

    Attributes:
        rate: Requests per second.
        p50, p99, slowest: Seconds of a request.
        cpu: CPU seconds per request, of all processes of the server.
        database_cpu: CPU seconds per request of the database server; 0 for SQLite.
        bare: Rate of the bare route, right before and after.
    """

    rate: float
    p50: float = math.nan
    p99: float = math.nan
    slowest: float = math.nan
    cpu: float = math.nan
    database_cpu: float = 0.0
    bare: float | None = None


class Contestant(Protocol):
    """A server to measure. Only a peer may raise `Unable`: then its row gets a dash, with the reason as a footnote."""

    @property
    def name(self) -> str: ...

    @property
    def is_peer(self) -> bool: ...

    def has(self, row: str) -> bool: ...

    def measure(self, row: str, seconds: float, connections: int) -> Round:
        """Run one row. Raises `WrongResponse` if any response is wrong."""
        ...


@dataclass(frozen=True, slots=True)
class Server:
    """An HTTP server: its port, its first process, and its rows. `database_pid` is that of its database server."""

    name: str
    port: int
    pid: int
    rows: Mapping[str, Row]
    database_pid: int | None = None
    is_peer: bool = False

    def has(self, row: str) -> bool:
        return row in self.rows

    def measure(self, row: str, seconds: float, connections: int) -> Round:
        requests = self.rows[row]
        with closing(Connections(self.port, connections, get_health(self.port))) as opened:
            before, database_before = self._cpu()
            driven = opened.drive(requests.request, seconds, requests.check)
            after, database_after = self._cpu()
        ordered = sorted(driven.latencies)
        return Round(
            rate=driven.rate,
            p50=ordered[len(ordered) // 2],
            p99=ordered[len(ordered) * 99 // 100],
            slowest=ordered[-1],
            cpu=(after - before) / driven.requests,
            database_cpu=(database_after - database_before) / driven.requests,
        )

    def _cpu(self) -> tuple[float, float]:
        database = self.database_pid
        return cpu_seconds(self.pid), 0.0 if database is None else cpu_seconds(database)


@dataclass(frozen=True, slots=True)
class Summary:
    """All rounds of a row on a server: medians, and the slowest request of all."""

    rounds: Sequence[Round]

    def _median(self, of: Callable[[Round], float]) -> float:
        return statistics.median(map(of, self.rounds))

    @property
    def rate(self) -> float:
        return self._median(lambda one: one.rate)

    @property
    def ratio(self) -> float | None:
        """The rate as a multiple of the bare route: the median of the ratios of each round."""
        ratios = [one.rate / one.bare for one in self.rounds if one.bare]
        return statistics.median(ratios) if ratios else None

    @property
    def p50(self) -> float:
        return self._median(lambda one: one.p50)

    @property
    def p99(self) -> float:
        return self._median(lambda one: one.p99)

    @property
    def spread(self) -> float:
        """The 99th percentile as a multiple of the median request."""
        return self._median(lambda one: one.p99 / one.p50)

    @property
    def slowest(self) -> float:
        return max(one.slowest for one in self.rounds)

    @property
    def cpu(self) -> float:
        return self._median(lambda one: one.cpu)

    @property
    def database_cpu(self) -> float:
        return self._median(lambda one: one.database_cpu)


@dataclass(slots=True)
class LoadFigures:
    """Rounds by contestant and row, and the reasons why a peer has none."""

    rounds: dict[tuple[str, str], list[Round]] = field(default_factory=dict)
    unable: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, name: str, row: str, one: Round) -> None:
        self.rounds.setdefault((name, row), []).append(one)

    def summary(self, name: str, row: str) -> Summary | None:
        found = self.rounds.get((name, row))
        return Summary(found) if found else None

    def ratio(self, row: str, above: str, below: str, of: Callable[[Round], float]) -> float | None:
        """Return the median of the ratios of each round, whose two sides were measured within seconds of each other."""
        pairs = zip(self.rounds.get((above, row), []), self.rounds.get((below, row), []), strict=False)
        ratios = [of(top) / of(bottom) for top, bottom in pairs if of(bottom)]
        return statistics.median(ratios) if ratios else None


def compete(
    bare: Contestant,
    contestants: Sequence[Contestant],
    rows: Sequence[str],
    *,
    rounds: int,
    seconds: float,
    connections: int = CONNECTIONS,
    report: Callable[[str], None] = lambda _: None,
) -> LoadFigures:
    """Measure all rows. An extra round before the first warms up; the order is reversed in every second round."""
    figures = LoadFigures()
    for number in range(rounds + 1):
        report(f"round {number} of {rounds}" if number else "warming up")
        found = figures if number else LoadFigures(unable=figures.unable)
        span = seconds if number else min(seconds, _WARM_SECONDS)
        step = 1 if number % 2 else -1
        last: dict[str, Round] = {}
        for row in rows[::step]:
            _measure_row(bare, contestants[::step], row, span, connections, last, found)
    return figures


def _measure_row(
    bare: Contestant,
    contestants: Sequence[Contestant],
    row: str,
    seconds: float,
    connections: int,
    last: dict[str, Round],
    figures: LoadFigures,
) -> None:
    """Measure one row on all contestants that have it. `last` has the bare run that ended right before, if any."""
    route = bare_of(row)

    def run_bare() -> Round:
        found = bare.measure(route, seconds * _BARE_SHARE, connections)
        figures.add(bare.name, route, found)
        return found

    before = last.get(route) or run_bare()
    runs: list[tuple[str, Round]] = []
    for one in contestants:
        if one.has(row) and (one.name, row) not in figures.unable:
            try:
                runs.append((one.name, one.measure(row, seconds, connections)))
            except Unable as reason:
                if not one.is_peer:
                    raise
                figures.unable[one.name, row] = str(reason)
                figures.rounds.pop((one.name, row), None)
    last.clear()
    last[route] = after = run_bare()
    for name, run in runs:
        figures.add(name, row, replace(run, bare=(before.rate + after.rate) / 2))
