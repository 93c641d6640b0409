"""Contest of servers: each round measures every mode once, with the bare route right before and right after Onceward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bench import names
from bench.arena import Arena
from bench.contest import Figures, Unable
from bench.http.load import Mode
from bench.http.server import REPLAYED, Entry, ServerProcess

_HERE = "bench.http.entries"
BARE = Entry(names.BARE, f"{_HERE}:bare", remembers=False)
OURS = Entry(names.MIDDLEWARE, f"{_HERE}:ours", marker=REPLAYED)
PLAIN_BARE = Entry(names.PLAIN_BARE, f"{_HERE}:plain_bare", remembers=False)
PLAIN_OURS = Entry(names.PLAIN_MIDDLEWARE, f"{_HERE}:plain_ours", marker=REPLAYED)
PLAIN_DICT = Entry(names.PLAIN_DICT, f"{_HERE}:plain_dict", marker=REPLAYED)

_REDIS_PEERS = (
    Entry(names.HTTP_IDEMKIT, "bench.peers.http_idemkit:make", "idemkit", b"\r\nidempotency-replayed: true"),
    Entry(names.HTTP_HEADER, "bench.peers.http_asgi_idempotency_header:make", "asgi-idempotency-header", REPLAYED),
    Entry(
        names.HTTP_IDEMGATE,
        "bench.peers.http_idemgate:make",
        "idemgate",
        cannot={Mode.NO_KEY: "idemgate refuses requests without a key on the routes that it protects."},
    ),
    Entry(names.HTTP_POWERTOOLS, "bench.peers.http_powertools:make", "aws-lambda-powertools"),
)
_SQLITE_PEERS = (
    Entry(
        names.HTTP_FASTAPI_IDEMPOTENCY,
        "bench.peers.http_fastapi_idempotency:make",
        "fastapi-idempotency",
        REPLAYED,
        {Mode.NO_KEY: "fastapi-idempotency treats equal requests without a key as retries, so no request bypasses it."},
    ),
)


@dataclass(frozen=True, slots=True)
class Group:
    """The bare application, Onceward, and the other servers that are compared with the same bare application."""

    bare: ServerProcess
    ours: ServerProcess
    others: tuple[ServerProcess, ...]

    def __iter__(self) -> Iterator[ServerProcess]:
        yield from (self.bare, self.ours, *self.others)


def groups(ground: Arena, python: Path | None, connections: int) -> tuple[Group, ...]:
    """Return the servers for this store. Peers need `python`, the interpreter of their environment."""

    def server(entry: Entry, python: Path | None = None) -> ServerProcess:
        return ServerProcess(entry, ground.place() if entry.remembers else "", python, connections=connections)

    peers = _SQLITE_PEERS if ground.store == names.SQLITE else _REDIS_PEERS
    return (
        Group(server(BARE), server(OURS), tuple(server(peer, python) for peer in peers) if python else ()),
        Group(server(PLAIN_BARE), server(PLAIN_OURS), (server(PLAIN_DICT),)),
    )


def compete(
    store: str, contest: Sequence[Group], rounds: int, seconds: float, report: Callable[[str], None]
) -> Figures:
    """Measure all servers on this store. An extra round before the first warms up."""
    figures = Figures.empty()
    figures.stores[store] = [server.entry.name for group in contest for server in group]
    with ExitStack() as stack:
        servers = [server for group in contest for server in group]
        for server in servers:
            stack.callback(server.close)
            server.spawn()
        stack.callback(_end_all, servers)
        for group in contest:
            for server in group:
                _start(store, server, group.bare, figures)
        for number in range(rounds + 1):
            report(f"{store}, HTTP: {f'round {number} of {rounds}' if number else 'warming up'}")
            found = figures if number else Figures(figures.stores, {}, figures.unable, {})
            for mode in Mode:
                for group in contest if number % 2 else reversed(contest):
                    _measure_group(store, group, mode, seconds, found)
    return figures


def _end_all(servers: Sequence[ServerProcess]) -> None:
    for server in servers:
        server.end()


def _start(store: str, server: ServerProcess, bare: ServerProcess, figures: Figures) -> None:
    reason = ""
    try:
        server.start()
    except Unable as error:
        reason = str(error)
    if not reason and server.server != bare.server:
        reason = f"Its server packages differ: {server.server}, expected {bare.server}."
    if reason:
        figures.unable |= {(store, server.entry.name, mode): reason for mode in Mode}


def _measure_group(store: str, group: Group, mode: Mode, seconds: float, figures: Figures) -> None:
    """Measure a group. The bare rate is the mean of the runs before and after Onceward, so outside load affects both."""
    before = _rate(store, group.bare, mode, seconds, figures)
    ours = _rate(store, group.ours, mode, seconds, figures)
    after = _rate(store, group.bare, mode, seconds, figures)
    _note(store, group.bare, mode, fmean((before, after)) if before and after else None, figures)
    _note(store, group.ours, mode, ours, figures)
    for server in group.others:
        _note(store, server, mode, _rate(store, server, mode, seconds, figures), figures)


def _rate(store: str, server: ServerProcess, mode: Mode, seconds: float, figures: Figures) -> float | None:
    key = (store, server.entry.name, mode)
    if key in figures.unable:
        return None
    try:
        return server.rate(mode, seconds)
    except Unable as reason:
        figures.unable[key] = str(reason)
        figures.rates.pop(key, None)
        return None


def _note(store: str, server: ServerProcess, mode: Mode, rate: float | None, figures: Figures) -> None:
    if rate is not None:
        figures.rates.setdefault((store, server.entry.name, mode), []).append(rate)
