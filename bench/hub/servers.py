"""Servers of the load benchmark: the bare routes and the hubs, each with its own data."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.postgres import PostgresServer

from bench import names
from bench.arena import make_room
from bench.hub.contest import BARE, Server
from bench.hub.process import BareProcess, HubProcess
from bench.hub.rows import Place, bare_rows, prepare, rows_of
from bench.peers.process import ROOT


@dataclass(frozen=True, slots=True)
class Ground:
    """A scratch folder on disk, and the PostgreSQL server of a run, if it has one."""

    folder: Path
    postgres: PostgresServer | None

    @property
    def database_pid(self) -> int | None:
        return None if self.postgres is None else self.postgres.pid

    def database(self, template: str = "") -> str:
        """Return the URL of a new database, or of a copy; empty for SQLite, whose file is in the data folder."""
        if self.postgres is None:
            return ""
        return self.postgres.create_database(template.rpartition("/")[2] or "template1")


@contextmanager
def ground(store: str) -> Iterator[Ground]:
    # Not the system's temporary folder: it may be in memory, where a sync costs nothing.
    (ROOT / "build").mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="bench-")))
        postgres = stack.enter_context(PostgresServer()) if store == names.POSTGRES else None
        if postgres is not None:
            make_room(postgres)
        yield Ground(folder, postgres)


@dataclass(frozen=True, slots=True)
class HubData:
    """The data of a hub to start. With `place`, the data has been prepared; `source` is the tree whose code it runs."""

    name: str
    folder: Path
    database: str = ""
    workers: int = 1
    source: Path = ROOT
    place: Place | None = None


@contextmanager
def hubs(on: Ground, data: Sequence[HubData]) -> Iterator[list[Server]]:
    """Start these hubs together, and prepare those that are empty."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(HubProcess(one.folder, database=one.database, workers=one.workers, source=one.source))
            for one in data
        ]
        yield [
            Server(
                one.name,
                process.port,
                process.pid,
                rows_of(process.port, one.place or prepare(process.port)),
                on.database_pid,
            )
            for one, process in zip(data, processes, strict=True)
        ]


@contextmanager
def bare_server() -> Iterator[Server]:
    with BareProcess() as process:
        yield Server(BARE, process.port, process.pid, bare_rows(process.port))
