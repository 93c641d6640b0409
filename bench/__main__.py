"""Measure, print the tables, and save them as Markdown and SVG.

python -m bench                      everything but --grown and --million, about half an hour
python -m bench --part http          only the middleware; saves files only with --out
python -m bench --part load --grown  only the hub under load, also with up to a million rows in each table
python -m bench --quick              a smoke test: memory and SQLite, no servers, no peers; saves files only with --out
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.servers.postgres import PostgresServer

from bench import chart, names, slow_disk, table
from bench.arena import Arena, arena
from bench.blobs import collect, put, transfer
from bench.blobs import table as blobs_table
from bench.by_hand import ByHand
from bench.contest import Figures, Unable, compete
from bench.http import contest as http
from bench.http import options as http_options
from bench.http import table as http_table
from bench.http.load import CONNECTIONS_MAX
from bench.hub import attachments, fanout, load_part, startup
from bench.hub import table as hub_table
from bench.hub.load_part import LoadPlan
from bench.ingest import archives, insert
from bench.ingest import table as ingest_table
from bench.peers.process import ROOT, PeerProcess, make_environment
from bench.turns import fanout as streams
from bench.turns import overhead, tools
from bench.turns import table as turns_table
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and durations of a run. Rounds are short and many, because the speed of a disk changes within seconds."""

    stores: tuple[str, ...] = names.STORES
    rounds: int = 8
    # Not shorter: with 64 callers a call takes milliseconds, so starting and ending would be a large part of a round.
    seconds: float = 0.3
    # More rounds, because a round has fewer calls when syncs are slow.
    slow_rounds: int = 16
    peers: bool = True
    http_stores: tuple[str, ...] = names.HTTP_STORES
    http_connections: int = CONNECTIONS_MAX
    http_rounds: int = 12
    # A round waits for the last request of each connection. It is long enough that this wait does not matter.
    http_seconds: float = 0.3
    http_option_requests: int = 1000
    databases: tuple[str, ...] = names.DATABASES
    clients: int = 200
    fanout_seconds: float = 3.0
    starts: int = 5
    blob_mib: int = 256
    small_blobs: int = 300
    blob_rounds: int = 5
    transfer_mib: int = 2048
    garbage: tuple[int, ...] = (1_000, 10_000, 100_000)
    messages: int = 10_000
    grown: tuple[int, ...] = (10_000, 100_000)
    # Long enough for several turns in each of 64 sessions.
    turn_seconds: float = 1.0
    followers: tuple[int, ...] = (1, 50)
    deltas: int = 500
    stream_rounds: int = 3
    load: LoadPlan = field(default_factory=LoadPlan)


QUICK = Plan(
    names.EMBEDDED,
    rounds=1,
    seconds=0.02,
    slow_rounds=1,
    peers=False,
    http_stores=(names.SQLITE,),
    http_connections=8,
    http_rounds=1,
    http_seconds=0.01,
    http_option_requests=3,
    databases=(names.SQLITE,),
    clients=5,
    fanout_seconds=0.1,
    starts=0,
    blob_mib=1,
    small_blobs=16,
    blob_rounds=1,
    transfer_mib=2,
    garbage=(20, 40),
    messages=40,
    grown=(),
    turn_seconds=0.02,
    followers=(1, 3),
    deltas=10,
    stream_rounds=1,
    load=LoadPlan(
        rounds=1, seconds=0.01, connections=8, warm_up=20, requests=50, workers=(1,), fresh_hub_for_memory=False
    ),
)


PARTS = ("ledger", "http", "hub", "load", "blobs", "ingest", "turns", "agents")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure Onceward, hand-written statements and comparable libraries."
    )
    parser.add_argument("--quick", action="store_true", help="run a smoke test of a few seconds")
    parser.add_argument("--out", type=Path, help="folder for results.md and results.svg (default: bench/)")
    parser.add_argument(
        "--store", action="append", choices=names.STORES, help="measure only this store; may be repeated"
    )
    parser.add_argument("--part", choices=PARTS, help="measure only this part")
    parser.add_argument(
        "--million", action="store_true", help="also measure with a million entries and a million blobs"
    )
    parser.add_argument(
        "--grown", action="store_true", help="also measure the hub under load with up to a million rows in each table"
    )
    options = parser.parse_args(arguments)
    plan = QUICK if options.quick else Plan()
    if options.grown:
        plan = replace(plan, load=replace(plan.load, grown=(10_000, 100_000, 1_000_000)))
    if options.million:
        plan = replace(plan, grown=(*plan.grown, 1_000_000), garbage=(*plan.garbage, 1_000_000))
    if options.store:
        chosen = tuple(options.store)
        plan = replace(
            plan,
            stores=chosen,
            http_stores=tuple(name for name in chosen if name in names.HTTP_STORES),
            databases=tuple(name for name in chosen if name in names.DATABASES),
        )
    partial = options.quick or options.store or options.part
    folder = options.out or (None if partial else ROOT / "bench")
    python = _peers_python() if plan.peers and options.part not in {"hub", "blobs", "ingest"} else None
    # Not the system's temporary folder: it may be in memory, where a sync costs nothing.
    (ROOT / "build").mkdir(exist_ok=True)
    texts: list[str] = []
    if options.part in {None, "ledger"}:
        figures, versions = measure(plan, python)
        texts.append(table.render(figures, machine(), versions, plan.rounds, plan.seconds))
    if options.part in {None, "http"}:
        texts.append(measure_http(plan, python))
    if options.part in {None, "hub"}:
        texts.append(measure_hub(plan))
    if options.part in {None, "load"}:
        texts.append(load_part.measure(plan.load, plan.databases, python, _report))
    if options.part in {None, "blobs"}:
        texts.append(measure_blobs(plan))
    if options.part in {None, "ingest"}:
        texts.append(measure_ingest(plan))
    if options.part in {None, "turns"}:
        texts.append(measure_turns(plan, python))
    if options.part in {None, "agents"}:
        texts.append(measure_agents(plan, python))
    text = "\n".join(texts)
    print(text)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.md").write_text(text, "utf-8")
        if not partial:  # the chart has rows of several parts, and of peers
            (folder / "results.svg").write_text(chart.draw(text), "utf-8")
    return 0


def measure(plan: Plan, python: Path | None) -> tuple[Figures, dict[str, str]]:
    """Return the figures of keyed calls and the versions of the peers measured."""
    figures = Figures.empty()
    versions: dict[str, str] = {}
    for store in plan.stores:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(_scratch()))
            ground = stack.enter_context(arena(store, folder))
            contestants = list(ground.contestants(python))
            for contestant in contestants:
                stack.callback(contestant.close)
            figures.merge(compete(store, contestants, plan.rounds, plan.seconds, _report))
            figures.trips |= {(store, name): trips for name, trips in ground.trips(python).items()}
            versions |= {peer.name: peer.version for peer in contestants if isinstance(peer, PeerProcess)}
            if store == names.SQLITE:
                figures.merge(slow_disk.measure(folder, plan.slow_rounds, plan.seconds))
    return figures, {name: version for name, version in versions.items() if name != names.DBOS_WAL}


def measure_http(plan: Plan, python: Path | None) -> str:
    """Measure the middleware and return its table."""
    figures = Figures.empty()
    versions: dict[str, str] = {}
    server: dict[str, str] = {}
    for store in plan.http_stores:
        with ExitStack() as stack:
            ground = stack.enter_context(arena(store, Path(stack.enter_context(_scratch()))))
            groups = http.groups(ground, python, plan.http_connections)
            figures.merge(http.compete(store, groups, plan.http_rounds, plan.http_seconds, _report))
            server |= groups[0].bare.server
            versions |= {peer.entry.package: peer.version for peer in groups[0].others}
    servers = http_table.render(
        figures,
        versions,
        server,
        connections=plan.http_connections,
        rounds=plan.http_rounds,
        seconds=plan.http_seconds,
    )
    _report("HTTP: options of the middleware")
    return f"{servers.rstrip()}\n\n{http_options.render(plan.http_option_requests, plan.http_rounds)}"


def measure_hub(plan: Plan) -> str:
    """Measure the hub and return its tables."""
    rows = Figures.empty()
    for store in plan.databases:
        _report(f"{store}: attachments")
        with ExitStack() as stack:
            folder = Path(stack.enter_context(_scratch()))
            url, by_hand = _database(store, folder, stack)
            database = stack.enter_context(closing(open_database(url)))
            migrate(database)
            rows.merge(attachments.compete(store, database, by_hand, plan.rounds, plan.seconds))
    with _scratch() as name:
        folder = Path(name)
        _report(f"deliveries to {plan.clients} clients")
        deliveries = fanout.measure(f"sqlite:///{folder}/hub.db", plan.clients, plan.fanout_seconds, ready_made=True)
        _report("startup")
        started = startup.measure(folder, plan.starts) if plan.starts else {}
    figures = hub_table.HubFigures(rows, deliveries, started)
    return hub_table.render(figures, rounds=plan.rounds, seconds=plan.seconds, clients=plan.clients)


def measure_blobs(plan: Plan) -> str:
    """Measure blobs and return their tables."""
    figures = blobs_table.BlobFigures()
    with _scratch() as name:
        folder = Path(name)
        figures.puts = put.compete(folder, plan.blob_mib * 1024**2, plan.small_blobs, plan.blob_rounds, _report)
        _report(f"an upload of {plan.transfer_mib} MiB")
        figures.hub = transfer.measure(folder, plan.transfer_mib, plan.small_blobs)
    for store in plan.databases:
        took = figures.collected[store] = {}
        with ExitStack() as stack:
            folder = Path(stack.enter_context(_scratch()))
            server = None if store == names.SQLITE else stack.enter_context(PostgresServer())
            for count in plan.garbage:
                _report(f"{store}: garbage collection of {count:,} blobs")
                url = f"sqlite:///{folder}/{count}.db" if server is None else server.create_database()
                took[count] = collect.measure(url, folder, count)
    return blobs_table.render(figures, rounds=plan.blob_rounds)


def measure_ingest(plan: Plan) -> str:
    """Measure ingest and return its tables."""
    figures = ingest_table.IngestFigures()
    _report("normalizing")
    figures.normalized, payloads = archives.normalized(plan.messages)
    for store in plan.databases:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(_scratch()))
            if store == names.SQLITE:
                url, other = f"sqlite:///{folder}/hub.db", f"sqlite:///{folder}/raw.db"
            else:
                server = stack.enter_context(PostgresServer())
                url, other = server.create_database(), server.create_database()
            database = stack.enter_context(closing(open_database(url)))
            migrate(database)
            with closing(open_database(other)) as raw:
                migrate(raw)
            _report(f"{store}: inserting")
            with insert.writer(other) as write:
                figures.first[store], figures.again[store] = insert.compete(database, write, payloads)
            _report(f"{store}: archives")
            clear = functools.partial(insert.emptied, database)
            figures.archives[store] = archives.backfilled(database, folder, plan.messages, clear)
            _report(f"{store}: inserting into growing tables")
            clear()
            with insert.writer(url) as write:
                figures.growth[store] = insert.grown(database, write, payloads, plan.grown)
    return ingest_table.render(figures)


def measure_turns(plan: Plan, python: Path | None) -> str:
    """Measure turns and return their tables."""
    figures = turns_table.TurnFigures()
    for store in plan.databases:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(_scratch()))
            ground = stack.enter_context(arena(store, folder))
            _report(f"{store}: turns")
            figures.turns.merge(_turns(plan, ground))
            _report(f"{store}: tools")
            callers = list(tools.contestants(ground, python))
            for caller in callers:
                stack.callback(caller.close)
            figures.tools.merge(compete(store, callers, plan.rounds, plan.seconds, _report, tools.SCENARIOS))
            figures.versions |= {
                caller.name.partition(" ")[0]: caller.version for caller in callers if isinstance(caller, PeerProcess)
            }
        with ExitStack() as stack:
            folder = Path(stack.enter_context(_scratch()))
            url = "" if store == names.SQLITE else stack.enter_context(PostgresServer()).create_database()
            _report(f"{store}: streams")
            figures.streams[store] = streams.measure(folder, plan.followers, plan.deltas, plan.stream_rounds, url)
    return turns_table.render(
        figures,
        rounds=plan.rounds,
        seconds=plan.seconds,
        turn_seconds=plan.turn_seconds,
        stream_rounds=plan.stream_rounds,
    )


def measure_agents(plan: Plan, python: Path | None) -> str:
    """Measure the integrations of agent frameworks and return their table."""
    from bench.agents import contestants as agents  # noqa: PLC0415  # it imports the frameworks, which takes seconds
    from bench.agents import table as agents_table  # noqa: PLC0415

    with ExitStack() as stack:
        folder = Path(stack.enter_context(_scratch()))
        numbers = itertools.count()
        tools = list(agents.contestants(lambda: f"sqlite:///{folder}/{next(numbers)}.db", python))
        for one in tools:
            stack.callback(one.close)
        figures = compete(names.SQLITE, tools, plan.rounds, plan.seconds, _report, agents.SCENARIOS)
        peers = [one.version for one in tools if isinstance(one, PeerProcess) and one.version]
        versions = {names.AGENT_ONCE: peers[0]} if peers else {}
    return agents_table.render(figures, versions, rounds=plan.rounds, seconds=plan.seconds)


def _turns(plan: Plan, ground: Arena) -> Figures:
    connect = ground.connect
    assert connect is not None
    url, beside = ground.place(), ground.place()
    # As in the hub: one PostgreSQL database for both, and on SQLite one file for each.
    ledger_url = url if ground.port is not None else ground.place()
    with closing(overhead.Turns(url, ledger_url)) as ours, closing(ByHand(lambda: connect(beside))) as by_hand:
        return compete(ground.store, [ours, by_hand], plan.rounds, plan.turn_seconds, _report, overhead.SCENARIOS)


def _database(
    store: str, folder: Path, stack: ExitStack
) -> tuple[str, Callable[[str], tuple[attachments.ByHand, Callable[[], None]]]]:
    if store == names.SQLITE:
        path = folder / "hub.db"
        return f"sqlite:///{path}", functools.partial(attachments.sqlite_by_hand, str(path))
    url = stack.enter_context(PostgresServer()).create_database()
    return url, functools.partial(attachments.postgres_by_hand, url)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="bench-")


def machine() -> str:
    """Describe the machine, with the time of one sync: on a slow disk, a library's own cost is less visible."""
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()},"
        f" SQLite {sqlite3.sqlite_version}. Writing and syncing 4 KiB takes {_sync_seconds() * 1e6:.0f} µs."
    )


def _sync_seconds() -> float:
    took: list[float] = []
    with tempfile.TemporaryFile(dir=ROOT / "build") as file:
        for _ in range(51):
            began = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), 0)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took)


def _peers_python() -> Path | None:
    try:
        return make_environment()
    except Unable as reason:
        _report(f"peers are left out: {reason}")
        return None


def _report(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
