"""What every test may ask for: servers, and data of its own on each back end."""

from __future__ import annotations

import gc
import shutil
import signal
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.backends import BACKENDS, FOUR, Backend, Opener, Servers
from tests.servers.lending import Lending
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisCluster, RedisServer
from tests.servers.s3 import S3Server

from onceward.db.engine import Database, open_database
from onceward.db.migrate import migrate
from onceward.testing import PinnedClock

# Before any test imports them, whichever file comes first.
pytest.register_assert_rewrite("onceward.testing.caller", "onceward.testing.rules", "onceward.testing.contract")

# Answers take as long as they take on a busy machine; a failure prints the seed that repeats it.
# However busy the machine is: time is no property of what is tested.
settings.register_profile("onceward", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("onceward")

# Whoever is started in the background ignores it, and so do all its children, which are interrupted by tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: nobody needs to look through them for garbage each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """For tests/again.py: a run that broke off is not one in which a few tests failed."""
    cache = getattr(session.config, "cache", None)  # there is none with `-p no:cacheprovider`
    if cache is not None:
        # Workers do it, too, and their commander after them.
        cache.set("onceward/ended", int(exitstatus))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """An example with half a character in it can be told: workers send only what UTF-8 can say."""
    del item, call
    report = yield
    report.sections = [(title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with closing(Servers()) as servers:
        yield servers


@pytest.fixture(scope="session")
def postgres_server(servers: Servers) -> PostgresServer:
    """Shared with other tests: stop or freeze one of your own instead."""
    return servers.postgres


@pytest.fixture(scope="session")
def redis_server(servers: Servers) -> RedisServer:
    """Shared with other tests: stop or freeze one of your own instead."""
    return servers.redis


@pytest.fixture(scope="session")
def redis_cluster(servers: Servers) -> RedisCluster:
    """Shared with other tests: stop or freeze one of your own instead."""
    return servers.redis_cluster


@pytest.fixture
def s3_server(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Shared with other tests: stop or freeze one of your own instead. Its credentials are in the environment."""
    for name, value in servers.s3.environ.items():
        monkeypatch.setenv(name, value)
    return servers.s3


@pytest.fixture(params=FOUR)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each of the four in turn. A test may choose others: `@pytest.mark.parametrize("backend", …, indirect=True)`."""
    return BACKENDS[request.param]


@pytest.fixture
def store_url(backend: Backend, servers: Servers, tmp_path: Path) -> str:
    """The URL of empty data on each back end."""
    return backend.url(servers, tmp_path)


@pytest.fixture
def make_store(store_url: str) -> Iterator[Opener]:
    """Opens a store on the test's own data, as often as it is called: `make_store(clock)`."""
    with closing(Opener(store_url)) as opener:
        yield opener


@pytest.fixture
def clock() -> PinnedClock:
    return PinnedClock()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the hub's tables: copying it costs less than making them."""
    file = tmp_path_factory.mktemp("template") / "hub.db"
    with closing(open_database(f"sqlite:///{file}")) as database:
        migrate(database)
    return file


@pytest.fixture(scope="session")
def postgres_template(servers: Servers) -> str:
    """The name of a database with the hub's tables, to make others from."""
    url = servers.postgres.create_database()
    with closing(open_database(url)) as database:
        migrate(database)
    return url.rpartition("/")[2]


@pytest.fixture(scope="session")
def lending(servers: Servers, postgres_template: str) -> Lending:
    """Lends databases with the hub's tables."""
    return Lending(servers.postgres, postgres_template)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with the hub's tables, on each kind in turn."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "hub.db")
        yield f"sqlite:///{tmp_path}/hub.db"
    else:
        lending: Lending = request.getfixturevalue("lending")
        with lending.lend() as url:
            yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database of the hub with its tables, on each kind in turn."""
    with closing(open_database(database_url)) as database:
        migrate(database)
        yield database
