"""Load on one hub, for developers: a few rows, in half a minute.

    python -m bench.hub.load --database sqlite --rows new,duplicate --seconds 3 --rounds 3

Each row has 32 keep-alive connections, over HTTP, with full durability. The table shows the requests per second, their
ratio to a bare FastAPI route measured right before and after, the latencies, and the CPU time per request of all processes
of the hub. Every response is checked. The rows: new, new-keyed, duplicate, chat, insert, upload, health.

    --workers 1 --workers 2   compare one worker with two
    --beside ../other-tree    compare with the hub of another source tree
    --grown 100000            compare with a hub that has this many attachments, events, turns, entries and files
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import names
from bench.hub.contest import BARE, CONNECTIONS, LoadFigures, Summary, compete
from bench.hub.grown import make_base
from bench.hub.load_table import size_name
from bench.hub.rows import BARE_GET, BARE_POST, ROWS
from bench.hub.servers import HubData, bare_server, ground, hubs
from bench.peers.process import ROOT

_STORES = {"sqlite": names.SQLITE, "postgres": names.POSTGRES}
_COLUMNS = "{:<18}{:<11}{:>9}{:>8}{:>9}{:>9}{:>9}{:>10}{:>11}{:>10}"
_HEADING = ("server", "row", "rate/s", "÷ bare", "p50 ms", "p99 ms", "p99÷p50", "max ms", "CPU µs/rq", "db µs/rq")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.hub.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=tuple(_STORES), default="sqlite")
    parser.add_argument("--rows", default=",".join(ROWS), help="rows to measure, separated by commas")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each run of a row")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, action="append", help="worker processes of the hub; may be repeated")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--beside", type=Path, help="another source tree, whose hub is measured in the same rounds")
    parser.add_argument(
        "--grown", type=int, action="append", default=[], help="also measure a hub with this many rows in each table"
    )
    given = parser.parse_args(arguments)
    rows = given.rows.split(",")
    if unknown := set(rows) - set(ROWS):
        parser.error(f"unknown rows {sorted(unknown)}; the rows are {', '.join(ROWS)}")
    sources = {"hub": ROOT, **({"beside": given.beside.resolve()} if given.beside else {})}
    with ExitStack() as stack:
        on = stack.enter_context(ground(_STORES[given.database]))
        data = [
            HubData(f"{name}, {workers} w", on.folder / f"{name}-{workers}", on.database(), workers, source)
            for workers in given.workers or [1]
            for name, source in sources.items()
        ]
        if given.grown:
            base = make_base(on)
            data += [base.copy(f"{size_name(count)} rows", count) for count in given.grown]
        servers = stack.enter_context(hubs(on, data))
        figures = compete(
            stack.enter_context(bare_server()),
            servers,
            rows,
            rounds=given.rounds,
            seconds=given.seconds,
            connections=given.connections,
            report=lambda text: print(f"bench: {text}", file=sys.stderr, flush=True),
        )
    print(rendered(figures, [server.name for server in servers], rows))
    return 0


def rendered(figures: LoadFigures, servers: Sequence[str], rows: Sequence[str]) -> str:
    """Return the table of a run, one line for each server and row."""
    lines = [_COLUMNS.format(*_HEADING)]
    for server in (*servers, BARE):
        for row in (*rows, BARE_POST, BARE_GET):
            summary = figures.summary(server, row)
            if summary is not None:
                lines.append(_COLUMNS.format(server, row, *_cells(summary)))
    return "\n".join(lines)


def _cells(summary: Summary) -> Iterator[str]:
    yield f"{summary.rate:,.0f}"
    yield "" if summary.ratio is None else f"{summary.ratio:.3f}"
    yield f"{summary.p50 * 1e3:.2f}"
    yield f"{summary.p99 * 1e3:.2f}"
    yield f"{summary.spread:.1f}"
    yield f"{summary.slowest * 1e3:.1f}"
    yield f"{summary.cpu * 1e6:,.0f}"
    yield f"{summary.database_cpu * 1e6:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
