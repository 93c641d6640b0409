"""Contest of the load benchmark: each round measures every row on all servers in turn, between two bare runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from bench.connections import Connections
from bench.hub.process import Served
from bench.hub.rows import Row, get_health
from bench.process_tree import cpu_seconds

CONNECTIONS = 32
BARE = "bare"
# The bare routes are fast, so that a shorter run has as many requests.
_BARE_SHARE = 0.5
_WARM_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Server:
    """A server in the contest, with its rows. `database_pid` is the first process of its database server, if any."""

    name: str
    served: Served
    rows: Mapping[str, Row]
    database_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One run of a row.

    Attributes:
        rate: Requests per second.
        p50, p99, slowest: Seconds of a request.
        cpu: CPU seconds per request, of all processes of the server.
        database_cpu: CPU seconds per request of the database server; 0 for SQLite.
        bare: Rate of the bare route, right before and after.
    """

    rate: float
    p50: float
    p99: float
    slowest: float
    cpu: float
    database_cpu: float = 0.0
    bare: float | None = None


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
    """Rounds by server and row."""

    rounds: dict[tuple[str, str], list[Round]] = field(default_factory=dict)

    def add(self, server: str, row: str, one: Round) -> None:
        self.rounds.setdefault((server, row), []).append(one)

    def summary(self, server: str, row: str) -> Summary | None:
        found = self.rounds.get((server, row))
        return Summary(found) if found else None

    def ratio(self, above: tuple[str, str], below: tuple[str, str], of: Callable[[Round], float]) -> float | None:
        """Return the median of the ratios of each round, whose two sides were measured within seconds of each other."""
        pairs = zip(self.rounds.get(above, []), self.rounds.get(below, []), strict=False)
        ratios = [of(top) / of(bottom) for top, bottom in pairs if of(bottom)]
        return statistics.median(ratios) if ratios else None


def measure(server: Server, row: Row, seconds: float, connections: int = CONNECTIONS) -> Round:
    """Run one row on a server. Raises `WrongResponse` if any response is wrong."""
    port = server.served.port
    with closing(Connections(port, connections, get_health(port))) as opened:
        before, database_before = _cpu(server)
        driven = opened.drive(row.request, seconds, row.check)
        after, database_after = _cpu(server)
    ordered = sorted(driven.latencies)
    return Round(
        rate=driven.rate,
        p50=ordered[len(ordered) // 2],
        p99=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        slowest=ordered[-1],
        cpu=(after - before) / driven.requests,
        database_cpu=(database_after - database_before) / driven.requests,
    )


def _cpu(server: Server) -> tuple[float, float]:
    database = server.database_pid
    return cpu_seconds(server.served.pid), 0.0 if database is None else cpu_seconds(database)


def compete(
    bare: Server,
    servers: Sequence[Server],
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
        found = figures if number else LoadFigures()
        span = seconds if number else min(seconds, _WARM_SECONDS)
        step = 1 if number % 2 else -1
        last: dict[str, Round] = {}
        for name in rows[::step]:
            _measure_row(bare, servers[::step], name, span, connections, last, found)
    return figures


def _measure_row(
    bare: Server,
    servers: Sequence[Server],
    name: str,
    seconds: float,
    connections: int,
    last: dict[str, Round],
    figures: LoadFigures,
) -> None:
    """Measure one row on all servers that have it. `last` has the bare run that ended right before, if any."""
    having = [server for server in servers if name in server.rows]
    route = having[0].rows[name].bare

    def run_bare() -> Round:
        found = measure(bare, bare.rows[route], seconds * _BARE_SHARE, connections)
        figures.add(BARE, route, found)
        return found

    before = last.get(route) or run_bare()
    runs = [(server, measure(server, server.rows[name], seconds, connections)) for server in having]
    last.clear()
    last[route] = after = run_bare()
    for server, run in runs:
        figures.add(server.name, name, replace(run, bare=(before.rate + after.rate) / 2))
