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

from onceward.errors import StoreUnavailable
from onceward.hub.db import group_commit
from onceward.hub.db.engine import Database, Transaction, open_database

INSERT = text("INSERT INTO notes (id) VALUES (:id)")
OTHERS = 5


class Door:
    """A context manager around each transaction: the first one stays in it until it is opened."""

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


class BlockedGroup:
    """A group whose leader is held up in the door, while others queue for the next one."""

    def __init__(self, database: Database, pool: ThreadPoolExecutor) -> None:
        self.database = database
        self.door = Door()
        self._pool = pool

    def first(self, work: Callable[[Transaction], object]) -> Future[object]:
        began = self._pool.submit(self.database.group_commit, self.door.pass_through, nothing, work)
        assert self.door.inside.wait(SECONDS_MAX)
        return began

    def others(self, *works: Callable[[Transaction], object]) -> list[Future[object]]:
        began = []
        for work in works:
            began.append(self._pool.submit(self.database.group_commit, self.door.pass_through, nothing, work))
            until(lambda: self._waiting() == len(began), "it does not wait")
        return began

    def _waiting(self) -> int:
        return sum(len(one._waiting) for one in self.database._group_commits.values())

    def committed(self) -> list[str]:
        with self.database.read() as tx:
            return sorted(tx.execute(text("SELECT id FROM notes")).scalars())


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{tmp_path}/notes.db")) as database:
        with database.write() as tx:
            tx.execute(text("CREATE TABLE notes (id TEXT PRIMARY KEY)"))
        yield database


@pytest.fixture
def group(database: Database) -> Iterator[BlockedGroup]:
    with ThreadPoolExecutor(OTHERS + 1) as pool:
        group = BlockedGroup(database, pool)
        try:
            yield group
        finally:
            group.door.open.set()


def nothing() -> None:
    """An empty first step."""


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


def test_waiting_writers_share_one_transaction(group: BlockedGroup) -> None:
    first = group.first(noting("a"))
    others = group.others(*map(noting, "bcdef"))
    group.door.open.set()

    assert [one.result(SECONDS_MAX) for one in (first, *others)] == list("abcdef")
    assert group.committed() == list("abcdef")
    assert group.door.entered == 2


def test_a_member_that_raises_is_undone_and_the_others_are_not(group: BlockedGroup) -> None:
    first = group.first(noting("a"))
    others = group.others(noting("b"), failing("c"), noting("d"), failing("e"))
    group.door.open.set()

    first.result(SECONDS_MAX)
    for one, name in ((others[1], "c"), (others[3], "e")):
        with pytest.raises(KeyError, match=name):
            one.result(SECONDS_MAX)
    assert [others[0].result(SECONDS_MAX), others[2].result(SECONDS_MAX)] == ["b", "d"]
    assert group.committed() == list("abd")


def test_a_member_whose_first_step_fails_is_skipped_and_the_others_are_not(group: BlockedGroup) -> None:
    def missing() -> None:
        raise KeyError("the bytes are gone")

    first = group.first(noting("a"))
    others = group.others(noting("b"))
    unlucky = group._pool.submit(group.database.group_commit, group.door.pass_through, missing, noting("c"))
    until(lambda: group._waiting() == 2)
    group.door.open.set()

    first.result(SECONDS_MAX)
    assert others[0].result(SECONDS_MAX) == "b"
    with pytest.raises(KeyError, match="gone"):
        unlucky.result(SECONDS_MAX)
    with pytest.raises(KeyError, match="gone"):
        group.database.group_commit(nullcontext, missing, noting("d"))
    assert group.committed() == ["a", "b"]


@pytest.mark.parametrize("leads", ["who cannot begin", "who fails"])
def test_each_member_gets_its_own_exception(group: BlockedGroup, leads: str) -> None:
    def missing() -> None:
        raise FileNotFoundError("the bytes are gone")

    asked = {"who cannot begin": (missing, noting("b")), "who fails": (nothing, failing("c"))}
    first = group.first(noting("a"))
    came = {}
    for number, name in enumerate(sorted(asked, key=lambda name: name != leads), 1):
        step, work = asked[name]
        came[name] = group._pool.submit(group.database.group_commit, group.door.pass_through, step, work)
        until(lambda number=number: group._waiting() == number)  # type: ignore[misc]
    group.door.open.set()

    first.result(SECONDS_MAX)
    with pytest.raises(FileNotFoundError, match="gone"):
        came["who cannot begin"].result(SECONDS_MAX)
    with pytest.raises(KeyError, match="c"):
        came["who fails"].result(SECONDS_MAX)
    assert group.committed() == ["a"]


def test_a_single_member_that_raises_is_undone(database: Database) -> None:
    with pytest.raises(KeyError):
        database.group_commit(nullcontext, nothing, failing("a"))

    assert database.group_commit(nullcontext, nothing, noting("a")) == "a"


def test_a_transaction_that_ends_early_fails_for_every_member(group: BlockedGroup) -> None:
    def ended(tx: Transaction) -> None:
        driver: Any = tx.connection.driver_connection
        driver.execute("ROLLBACK")  # as SQLite does by itself when the disk is full
        raise OSError("the disk is full")

    first = group.first(noting("a"))
    others = group.others(noting("b"), ended, noting("c"))
    group.door.open.set()

    first.result(SECONDS_MAX)
    for one in others:
        with pytest.raises(StoreUnavailable):
            one.result(SECONDS_MAX)
    assert group.committed() == ["a"]
    assert group.database.group_commit(group.door.pass_through, nothing, noting("b")) == "b"


def test_a_failed_commit_fails_for_all_members_with_separate_exceptions(group: BlockedGroup) -> None:
    with group.database.write() as tx:
        tx.execute(text("CREATE TABLE quotes (id TEXT REFERENCES notes DEFERRABLE INITIALLY DEFERRED)"))

    def dangling(tx: Transaction) -> None:
        tx.execute(text("INSERT INTO quotes VALUES ('none')"))  # refused when all of it is committed, and only then

    def missing() -> None:
        raise FileNotFoundError("the bytes are gone")

    first = group.first(noting("a"))
    others = group.others(noting("b"), dangling, noting("c"))
    apart = group._pool.submit(group.database.group_commit, group.door.pass_through, missing, noting("d"))
    until(lambda: group._waiting() == len(others) + 1)
    group.door.open.set()

    first.result(SECONDS_MAX)
    errors = [one.exception(SECONDS_MAX) for one in others]
    assert all("FOREIGN KEY" in str(error) for error in errors)
    assert isinstance(apart.exception(SECONDS_MAX), FileNotFoundError)  # it had a reason of its own before
    assert len(set(map(id, errors))) == len(errors)
    assert group.committed() == ["a"]


class InterruptedLock:
    """A lock whose second `acquire` returns and is interrupted at the same moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self.release = self._lock.release

    def acquire(self) -> None:
        self._calls += 1
        self._lock.acquire()
        if self._calls > 1:
            raise KeyboardInterrupt


def test_an_interrupted_leader_is_replaced_by_the_next_member(
    group: BlockedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = group.first(noting("a"))
    made = group_commit._Member.__init__

    def interrupted(self: Any, *of: Any) -> None:
        made(self, *of)
        self.wakeup = InterruptedLock()
        self.wakeup.acquire()

    with monkeypatch.context() as patched:
        patched.setattr(group_commit._Member, "__init__", interrupted)
        next_leader = group._pool.submit(group.database.group_commit, group.door.pass_through, nothing, noting("b"))
        until(lambda: group._waiting() == 1)
    last = group._pool.submit(group.database.group_commit, group.door.pass_through, nothing, noting("c"))
    until(lambda: group._waiting() == 2)
    group.door.open.set()

    first.result(SECONDS_MAX)
    assert isinstance(next_leader.exception(SECONDS_MAX), KeyboardInterrupt)
    assert last.result(SECONDS_MAX) == "c"
    assert group.committed() == ["a", "c"]


def test_members_beyond_the_limit_go_into_the_next_transaction(
    group: BlockedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "SHARED_MAX", 2)
    first = group.first(noting("a"))
    others = group.others(*map(noting, "bcdef"))
    group.door.open.set()

    assert [one.result(SECONDS_MAX) for one in (first, *others)] == list("abcdef")
    assert group.door.entered == 4
    assert group.committed() == list("abcdef")


def test_every_thread_gets_its_own_result(database: Database) -> None:
    """By chance what the others do on purpose; a tenth of the work raises."""

    def one(number: int) -> str:
        work = failing if number % 10 == 0 else noting
        try:
            return database.group_commit(nullcontext, nothing, work(f"{number:03}"))
        except KeyError as error:
            return f"not {error.args[0]}"

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, range(200)))

    assert found == [f"not {number:03}" if number % 10 == 0 else f"{number:03}" for number in range(200)]
    with database.read() as tx:
        committed = sorted(tx.execute(text("SELECT id FROM notes")).scalars())
    assert committed == [f"{number:03}" for number in range(200) if number % 10]


def test_postgresql_writers_do_not_share_transactions(servers: Servers) -> None:
    inside = threading.Barrier(2)

    @contextmanager
    def both() -> Iterator[None]:
        inside.wait(SECONDS_MAX)
        yield

    with closing(open_database(servers.postgres.create_database())) as database, ThreadPoolExecutor(2) as pool:
        with database.write() as tx:
            tx.execute(text("CREATE TABLE notes (id TEXT PRIMARY KEY)"))
        found = list(pool.map(lambda name: database.group_commit(both, nothing, noting(name)), "ab"))

    assert found == ["a", "b"]


def test_a_failed_commit_is_not_retried(group: BlockedGroup) -> None:
    with group.database.write() as tx:
        tx.execute(text("CREATE TABLE quotes (id TEXT REFERENCES notes DEFERRABLE INITIALLY DEFERRED)"))
    ran: list[str] = []

    def dangling(tx: Transaction) -> None:
        ran.append("dangling")
        tx.execute(text("INSERT INTO quotes VALUES ('nobody')"))

    def sound(tx: Transaction) -> None:
        ran.append("sound")
        noting("b")(tx)

    first = group.first(noting("a"))
    others = group.others(sound, dangling)
    group.door.open.set()

    first.result(SECONDS_MAX)
    for one in others:
        with pytest.raises(Exception, match=r"FOREIGN KEY|the group commit failed"):
            one.result(SECONDS_MAX)
    assert ran == ["sound", "dangling"]
    assert group.committed() == ["a"]
