"""Servers for the behaviour suite: one for each framework and store, started once; or one of a test's own.

The basics (replay, duplicates, users, other requests, failures, bodies, streams) run `everywhere`: on each framework
with each store. All other tests run `on_the_diagonal` or on a `few`. Frameworks and stores meet only in the ledger, so
it is enough to run each framework once and each store at least once.

With `ONCEWARD_EVERYWHERE=1` (`make test-everywhere`) every test runs on each framework with each store. A test that
needs one kind of store, or something that only some frameworks have, names what it can run on: `on(EVERY, SQL)`, or the
`of` of its few.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from tests.backends import BACKENDS, ONE_OF_EACH_KIND, Servers
from tests.http.behaviour.demo_server import ASGI, WSGI, DemoServer, ForkServer

C = TypeVar("C")


class StartServer(Protocol):
    """Starts a server of the test's own: `start_server("flask", "sqlite", wait_seconds=5.0)`."""

    def __call__(self, framework: str, store: str, **options: object) -> DemoServer: ...


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    with closing(ForkServer()) as fork_server:
        yield fork_server


class Stores:
    """Data that stays as it is while other tests come and go. PostgreSQL's is shared: every key is new, and a
    database for each server would cost seconds.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    @cached_property
    def _database(self) -> str:
        return self._servers.postgres.create_database()

    def url(self, store: str, folder: Path) -> str:
        return self._database if store == "postgres" else BACKENDS[store].url(self._servers, folder)


@pytest.fixture(scope="session")
def stores(servers: Servers) -> Stores:
    return Stores(servers)


@pytest.fixture(scope="session")
def shared(
    fork_server: ForkServer, stores: Stores, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, str], DemoServer]]:
    """The server of a framework on a store, with the default options of the middleware."""
    running: dict[tuple[str, str], DemoServer] = {}
    with ExitStack() as stack:

        def get(framework: str, store: str) -> DemoServer:
            if (framework, store) not in running:
                folder = tmp_path_factory.mktemp(f"{framework}-{store}")
                server = DemoServer(fork_server, folder, framework, stores.url(store, folder))
                running[framework, store] = stack.enter_context(closing(server))
            return running[framework, store]

        yield get


@pytest.fixture
def start_server(fork_server: ForkServer, stores: Stores, tmp_path: Path) -> Iterator[StartServer]:
    with ExitStack() as stack:

        def start(framework: str, store: str, **options: object) -> DemoServer:
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            url = store if "://" in store else stores.url(store, folder)
            server = DemoServer(fork_server, folder, framework, url, **options)  # type: ignore[arg-type]  # options are mixed
            return stack.enter_context(closing(server))

        yield start


@pytest.fixture
def server(request: pytest.FixtureRequest, shared: Callable[[str, str], DemoServer]) -> DemoServer:
    """The shared server that the test asks for with `on(…)`."""
    framework, store = request.param
    return shared(framework, store)


EVERY = (*ASGI, *WSGI)
# Frameworks whose responses are ASGI applications with background tasks.
ASGI_RESPONSES = ("starlette", "fastapi", "litestar")
# The stores whose transactions a user can share.
SQL = ("sqlite", "postgres")
# The stores that several processes see, and that a restart leaves as they are.
SHARED = ("sqlite", "postgres", "redis")
# Each framework once, each store at least once; PostgreSQL and Redis under ASGI and under WSGI.
DIAGONAL = (
    ("starlette", "sqlite"),
    ("fastapi", "redis"),
    ("litestar", "postgres"),
    ("django-asgi", "memory"),
    ("flask", "postgres"),
    ("django-wsgi", "redis"),
)
_IN_FULL = os.environ.get("ONCEWARD_EVERYWHERE") == "1"


def few(*enough: C, of: tuple[C, ...]) -> tuple[C, ...]:
    """Return the cases, such as frameworks or stores, that are enough in the usual run; in a full run, all of them."""
    assert set(enough) <= set(of)
    return of if _IN_FULL else enough


def on(frameworks: Iterable[str], stores: Iterable[str] = ONE_OF_EACH_KIND) -> pytest.MarkDecorator:
    """Run a test on the shared server of each of these frameworks with each of these stores."""
    return _at(itertools.product(frameworks, stores))


def at(*enough: tuple[str, str]) -> pytest.MarkDecorator:
    """Run a test on the shared servers of these pairs of a framework and a store; in a full run, of all."""
    return on(EVERY) if _IN_FULL else _at(enough)


def for_each(frameworks: Iterable[str], stores: Iterable[str]) -> pytest.MarkDecorator:
    """Give a test that starts its own servers each `framework` with each `store`."""
    return pytest.mark.parametrize(("framework", "store"), list(itertools.product(frameworks, stores)))


def _at(pairs: Iterable[tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("server", [pytest.param(pair, id="-".join(pair)) for pair in pairs], indirect=True)


# Enough for what the frameworks cannot tell apart: one under ASGI, and one under WSGI.
ASGI_AND_WSGI = few("starlette", "flask", of=EVERY)
everywhere = on(EVERY)
on_the_diagonal = at(*DIAGONAL)
on_both_sides = on(ASGI_AND_WSGI, few("sqlite", of=ONE_OF_EACH_KIND))
