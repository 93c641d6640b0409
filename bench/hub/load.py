"""Load on one hub, for developers: a few rows, in half a minute.

    python -m bench.hub.load --database sqlite --rows new,duplicate --seconds 3 --rounds 3

Each row has 32 keep-alive connections, over HTTP, with full durability. The table shows the requests per second, their
ratio to a bare FastAPI route measured right before and after, the latencies, and the CPU time per request of all processes
of the hub. Every response is checked. The rows: new, new-keyed, duplicate, chat, insert, upload, health.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.postgres import PostgresServer

from bench.hub.contest import BARE, CONNECTIONS, LoadFigures, Server, Summary, compete
from bench.hub.process import running_bare, running_hub
from bench.hub.rows import BARE_GET, BARE_POST, ROWS, bare_rows, prepare, rows_of
from bench.peers.process import ROOT

SQLITE = "sqlite"
POSTGRES = "postgres"


@dataclass(frozen=True, slots=True)
class Ground:
    """A scratch folder on disk, and the PostgreSQL server of a run, if it has one."""

    folder: Path
    postgres: PostgresServer | None

    def database(self) -> str:
        """Return the URL of a new database; empty for the SQLite file of a data folder."""
        return "" if self.postgres is None else self.postgres.create_database()

    @property
    def database_pid(self) -> int | None:
        return None if self.postgres is None else self.postgres.pid


@contextmanager
def ground(database: str) -> Iterator[Ground]:
    # Not the system's temporary folder: it may be in memory, where a sync costs nothing.
    (ROOT / "build").mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="bench-")))
        yield Ground(folder, stack.enter_context(PostgresServer()) if database == POSTGRES else None)


@contextmanager
def bare_server() -> Iterator[Server]:
    with running_bare() as served:
        yield Server(BARE, served, bare_rows(served.port))


@contextmanager
def hub_server(on: Ground, name: str, *, workers: int = 1, source: Path = ROOT) -> Iterator[Server]:
    """Run an empty hub."""
    data = on.folder / name.replace(" ", "-")
    with running_hub(data, database=on.database(), workers=workers, source=source) as served:
        yield Server(name, served, rows_of(served.port, prepare(served.port)), on.database_pid)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.hub.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=(SQLITE, POSTGRES), default=SQLITE)
    parser.add_argument("--rows", default=",".join(ROWS), help="rows to measure, separated by commas")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each run of a row")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, action="append", help="worker processes; may be repeated")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--beside", type=Path, help="another source tree, whose hub is measured in the same rounds")
    given = parser.parse_args(arguments)
    rows = given.rows.split(",")
    if unknown := set(rows) - set(ROWS):
        parser.error(f"unknown rows {sorted(unknown)}; the rows are {', '.join(ROWS)}")
    with ExitStack() as stack:
        on = stack.enter_context(ground(given.database))
        bare = stack.enter_context(bare_server())
        sources = {"hub": ROOT, **({"beside": given.beside.resolve()} if given.beside else {})}
        servers = [
            stack.enter_context(hub_server(on, _name(source, workers), workers=workers, source=path))
            for workers in given.workers or [1]
            for source, path in sources.items()
        ]
        figures = compete(
            bare,
            servers,
            rows,
            rounds=given.rounds,
            seconds=given.seconds,
            connections=given.connections,
            report=_report,
        )
    print_figures(figures, [server.name for server in servers], rows)
    return 0


def _name(source: str, workers: int) -> str:
    return source if workers == 1 else f"{source} {workers} workers"


_COLUMNS = "{:<22}{:<12}{:>9}{:>8}{:>9}{:>9}{:>9}{:>10}{:>11}{:>10}"


def print_figures(figures: LoadFigures, servers: Sequence[str], rows: Sequence[str]) -> None:
    print(
        _COLUMNS.format(
            "server", "row", "rate/s", "÷ bare", "p50 ms", "p99 ms", "p99÷p50", "max ms", "CPU µs/rq", "db µs/rq"
        )
    )
    for server in (*servers, BARE):
        for row in (*rows, BARE_POST, BARE_GET):
            summary = figures.summary(server, row)
            if summary is not None:
                print(_COLUMNS.format(server, row, *_cells(summary)))


def _cells(summary: Summary) -> Iterator[str]:
    yield f"{summary.rate:,.0f}"
    yield "" if summary.ratio is None else f"{summary.ratio:.3f}"
    yield f"{summary.p50 * 1e3:.2f}"
    yield f"{summary.p99 * 1e3:.2f}"
    yield f"{summary.spread:.1f}"
    yield f"{summary.slowest * 1e3:.1f}"
    yield f"{summary.cpu * 1e6:,.0f}"
    yield f"{summary.database_cpu * 1e6:,.0f}"


def _report(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
