"""Work of several threads in one transaction: shared where it can be, and each piece for itself where it matters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.backends import Servers
from tests.waiting import SECONDS_MAX, until

from onceward.db import together
from onceward.db.engine import Database, Transaction, open_database
from onceward.errors import StoreUnavailable

INSERT = text("INSERT INTO notes (id) VALUES (:id)")
OTHERS = 5


class Door:
    """What is entered around each transaction: the first to come stays in it until it is opened."""

    def __init__(self) -> None:
        self.entered = 0
        self.inside = threading.Event()
        self.open = threading.Event()

    @contextmanager
    def pass_through(self) -> Iterator[None]:
        self.entered += 1
        self.inside.set()
        assert self.open.wait(SECONDS_MAX)
        yield


class Company:
    """One thread that is held up in the door, and others that come meanwhile."""

    def __init__(self, database: Database, pool: ThreadPoolExecutor) -> None:
        self.database = database
        self.door = Door()
        self._pool = pool

    def first(self, work: Callable[[Transaction], object]) -> Future[object]:
        began = self._pool.submit(self.database.together, self.door.pass_through, nothing, work)
        assert self.door.inside.wait(SECONDS_MAX)
        return began

    def others(self, *works: Callable[[Transaction], object]) -> list[Future[object]]:
        began = []
        for work in works:
            began.append(self._pool.submit(self.database.together, self.door.pass_through, nothing, work))
            until(lambda: self._waiting() == len(began), "it does not wait")
        return began

    def _waiting(self) -> int:
        return sum(len(one._waiting) for one in self.database._together.values())

    def kept(self) -> list[str]:
        with self.database.read() as tx:
            return sorted(tx.execute(text("SELECT id FROM notes")).scalars())


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{tmp_path}/notes.db")) as database:
        with database.write() as tx:
            tx.execute(text("CREATE TABLE notes (id TEXT PRIMARY KEY)"))
        yield database


@pytest.fixture
def company(database: Database) -> Iterator[Company]:
    with ThreadPoolExecutor(OTHERS + 1) as pool:
        company = Company(database, pool)
        try:
            yield company
        finally:
            company.door.open.set()


def nothing() -> None:
    """What comes first, where nothing does."""


def noting(name: str) -> Callable[[Transaction], str]:
    def note(tx: Transaction) -> str:
        tx.execute(INSERT, {"id": name})
        return name

    return note


def failing(name: str) -> Callable[[Transaction], str]:
    def note_and_fail(tx: Transaction) -> str:
        tx.execute(INSERT, {"id": name})
        raise KeyError(name)

    return note_and_fail


def test_who_waits_meanwhile_shares_one_transaction(company: Company) -> None:
    first = company.first(noting("a"))
    others = company.others(*map(noting, "bcdef"))
    company.door.open.set()

    assert [one.result(SECONDS_MAX) for one in (first, *others)] == list("abcdef")
    assert company.kept() == list("abcdef")
    assert company.door.entered == 2


def test_one_that_raises_is_undone_and_the_others_are_not(company: Company) -> None:
    first = company.first(noting("a"))
    others = company.others(noting("b"), failing("c"), noting("d"), failing("e"))
    company.door.open.set()

    first.result(SECONDS_MAX)
    for one, name in ((others[1], "c"), (others[3], "e")):
        with pytest.raises(KeyError, match=name):
            one.result(SECONDS_MAX)
    assert [others[0].result(SECONDS_MAX), others[2].result(SECONDS_MAX)] == ["b", "d"]
    assert company.kept() == list("abd")


def test_one_whose_first_step_fails_is_not_begun_and_the_others_are(company: Company) -> None:
    def missing() -> None:
        raise KeyError("the bytes are gone")

    first = company.first(noting("a"))
    others = company.others(noting("b"))
    unlucky = company._pool.submit(company.database.together, company.door.pass_through, missing, noting("c"))
    until(lambda: company._waiting() == 2)
    company.door.open.set()

    first.result(SECONDS_MAX)
    assert others[0].result(SECONDS_MAX) == "b"
    with pytest.raises(KeyError, match="gone"):
        unlucky.result(SECONDS_MAX)
    with pytest.raises(KeyError, match="gone"):
        company.database.together(nullcontext, missing, noting("d"))
    assert company.kept() == ["a", "b"]


@pytest.mark.parametrize("leads", ["who cannot begin", "who fails"])
def test_each_has_its_own_reason_however_few_are_left(company: Company, leads: str) -> None:
    def missing() -> None:
        raise FileNotFoundError("the bytes are gone")

    asked = {"who cannot begin": (missing, noting("b")), "who fails": (nothing, failing("c"))}
    first = company.first(noting("a"))
    came = {}
    for number, name in enumerate(sorted(asked, key=lambda name: name != leads), 1):
        step, work = asked[name]
        came[name] = company._pool.submit(company.database.together, company.door.pass_through, step, work)
        until(lambda number=number: company._waiting() == number)  # type: ignore[misc]
    company.door.open.set()

    first.result(SECONDS_MAX)
    with pytest.raises(FileNotFoundError, match="gone"):
        came["who cannot begin"].result(SECONDS_MAX)
    with pytest.raises(KeyError, match="c"):
        came["who fails"].result(SECONDS_MAX)
    assert company.kept() == ["a"]


def test_one_that_raises_alone_is_undone(database: Database) -> None:
    with pytest.raises(KeyError):
        database.together(nullcontext, nothing, failing("a"))

    assert database.together(nullcontext, nothing, noting("a")) == "a"


def test_a_transaction_that_ends_early_has_done_nothing_for_anybody(company: Company) -> None:
    def ended(tx: Transaction) -> None:
        driver: Any = tx.connection.driver_connection
        driver.execute("ROLLBACK")  # as SQLite does by itself when the disk is full
        raise OSError("the disk is full")

    first = company.first(noting("a"))
    others = company.others(noting("b"), ended, noting("c"))
    company.door.open.set()

    first.result(SECONDS_MAX)
    for one in others:
        with pytest.raises(StoreUnavailable):
            one.result(SECONDS_MAX)
    assert company.kept() == ["a"]
    assert company.database.together(company.door.pass_through, nothing, noting("b")) == "b"


def test_a_commit_that_fails_fails_for_all_each_with_an_exception_of_its_own(company: Company) -> None:
    with company.database.write() as tx:
        tx.execute(text("CREATE TABLE quotes (id TEXT REFERENCES notes DEFERRABLE INITIALLY DEFERRED)"))

    def dangling(tx: Transaction) -> None:
        tx.execute(text("INSERT INTO quotes VALUES ('none')"))  # refused when all of it is committed, and only then

    def missing() -> None:
        raise FileNotFoundError("the bytes are gone")

    first = company.first(noting("a"))
    others = company.others(noting("b"), dangling, noting("c"))
    apart = company._pool.submit(company.database.together, company.door.pass_through, missing, noting("d"))
    until(lambda: company._waiting() == len(others) + 1)
    company.door.open.set()

    first.result(SECONDS_MAX)
    errors = [one.exception(SECONDS_MAX) for one in others]
    assert all("FOREIGN KEY" in str(error) for error in errors)
    assert isinstance(apart.exception(SECONDS_MAX), FileNotFoundError)  # it had a reason of its own before
    assert len(set(map(id, errors))) == len(errors)
    assert company.kept() == ["a"]


class Interrupting:
    """A bell that is rung, and an interrupt that comes at the same moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self.release = self._lock.release

    def acquire(self) -> None:
        self._calls += 1
        self._lock.acquire()
        if self._calls > 1:
            raise KeyboardInterrupt


def test_one_that_is_interrupted_when_it_was_to_lead_leaves_that_to_the_next(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = company.first(noting("a"))
    made = together._Seat.__init__

    def interrupted(self: Any, *of: Any) -> None:
        made(self, *of)
        self.bell = Interrupting()
        self.bell.acquire()

    with monkeypatch.context() as patched:
        patched.setattr(together._Seat, "__init__", interrupted)
        heir = company._pool.submit(company.database.together, company.door.pass_through, nothing, noting("b"))
        until(lambda: company._waiting() == 1)
    last = company._pool.submit(company.database.together, company.door.pass_through, nothing, noting("c"))
    until(lambda: company._waiting() == 2)
    company.door.open.set()

    first.result(SECONDS_MAX)
    assert isinstance(heir.exception(SECONDS_MAX), KeyboardInterrupt)
    assert last.result(SECONDS_MAX) == "c"
    assert company.kept() == ["a", "c"]


def test_more_than_a_transaction_takes_go_into_the_next(company: Company, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "SHARED_MAX", 2)
    first = company.first(noting("a"))
    others = company.others(*map(noting, "bcdef"))
    company.door.open.set()

    assert [one.result(SECONDS_MAX) for one in (first, *others)] == list("abcdef")
    assert company.door.entered == 4
    assert company.kept() == list("abcdef")


def test_many_threads_each_get_their_own_answer(database: Database) -> None:
    """By chance what the others do on purpose; a tenth of the work raises."""

    def one(number: int) -> str:
        work = failing if number % 10 == 0 else noting
        try:
            return database.together(nullcontext, nothing, work(f"{number:03}"))
        except KeyError as error:
            return f"not {error.args[0]}"

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, range(200)))

    assert found == [f"not {number:03}" if number % 10 == 0 else f"{number:03}" for number in range(200)]
    with database.read() as tx:
        kept = sorted(tx.execute(text("SELECT id FROM notes")).scalars())
    assert kept == [f"{number:03}" for number in range(200) if number % 10]


def test_postgresql_has_many_writers_and_shares_nothing(servers: Servers) -> None:
    inside = threading.Barrier(2)

    @contextmanager
    def both() -> Iterator[None]:
        inside.wait(SECONDS_MAX)
        yield

    with closing(open_database(servers.postgres.create_database())) as database, ThreadPoolExecutor(2) as pool:
        with database.write() as tx:
            tx.execute(text("CREATE TABLE notes (id TEXT PRIMARY KEY)"))
        found = list(pool.map(lambda name: database.together(both, nothing, noting(name)), "ab"))

    assert found == ["a", "b"]


def test_a_commit_that_fails_is_not_tried_again(company: Company) -> None:
    with company.database.write() as tx:
        tx.execute(text("CREATE TABLE quotes (id TEXT REFERENCES notes DEFERRABLE INITIALLY DEFERRED)"))
    ran: list[str] = []

    def dangling(tx: Transaction) -> None:
        ran.append("dangling")
        tx.execute(text("INSERT INTO quotes VALUES ('nobody')"))

    def sound(tx: Transaction) -> None:
        ran.append("sound")
        noting("b")(tx)

    first = company.first(noting("a"))
    others = company.others(sound, dangling)
    company.door.open.set()

    first.result(SECONDS_MAX)
    for one in others:
        with pytest.raises(Exception, match=r"FOREIGN KEY|shared with others"):
            one.result(SECONDS_MAX)
    assert ran == ["sound", "dangling"]
    assert company.kept() == ["a"]
