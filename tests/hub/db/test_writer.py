"""The writer: one transaction for all queued work; refusals cost the others nothing, and failures are isolated."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import event, text
from tests.waiting import SECONDS_MAX, until

from onceward.errors import InvalidInput, NotFound, OncewardError, StoreClosed, StoreUnavailable
from onceward.hub.db import batch_thread
from onceward.hub.db import writer as writer_module
from onceward.hub.db.append import EventSteps, NewEvent
from onceward.hub.db.engine import Database, Transaction, open_database
from onceward.hub.db.writer import BatchWork

INSERT = text("INSERT INTO notes (id) VALUES (:id)")
OTHERS = 5


def note(name: str) -> Callable[[Transaction], str]:
    def work(tx: Transaction) -> str:
        tx.execute(INSERT, {"id": name})
        return name

    return work


def appended(name: str) -> Callable[[Transaction], EventSteps[int]]:
    def steps(tx: Transaction) -> EventSteps[int]:
        tx.execute(INSERT, {"id": name})
        (event_id,) = yield [NewEvent("noted", None, "note", name, "{}")]
        return event_id

    return steps


def refusing(_tx: Transaction) -> str:
    raise NotFound("there is nothing to change")


def refusing_late(tx: Transaction) -> str:
    tx.execute(INSERT, {"id": "half done"})
    raise InvalidInput("only now it is seen to be wrong")


def _add_all(tx: Transaction, names: Sequence[str]) -> EventSteps[Sequence[str | OncewardError]]:
    for name in names:
        if name != "refused":
            tx.execute(INSERT, {"id": name})
    added = [name for name in names if name != "refused"]
    ids = yield [NewEvent("noted", None, "note", name, "{}") for name in added]
    numbers = dict(zip(added, ids, strict=True))
    return [f"{name}:{numbers[name]}" if name in numbers else NotFound(name) for name in names]


ADD = BatchWork[str, str]("add", _add_all, lambda name: name)


class HeldWriter:
    """A writer that is busy with a first work until `release`, while others queue for the next batch."""

    def __init__(self, database: Database, pool: ThreadPoolExecutor) -> None:
        self.database = database
        self.commits = 0
        self._pool = pool
        self._inside, self._open = threading.Event(), threading.Event()
        event.listen(database.engine, "commit", self._count)

    def _count(self, _connection: sqlalchemy.Connection) -> None:
        self.commits += 1

    def hold(self) -> Future[Any]:
        def work(tx: Transaction) -> str:
            self._inside.set()
            assert self._open.wait(SECONDS_MAX)
            return note("first")(tx)

        began = self._pool.submit(self.database.writer.run_blocking, work)
        assert self._inside.wait(SECONDS_MAX)
        return began

    def queue(self, *works: Callable[[Transaction], Any]) -> list[Future[Any]]:
        began: list[Future[Any]] = []
        for work in works:
            began.append(self._pool.submit(self.database.writer.run_blocking, work))
            until(lambda: self.queued() == len(began), "it is not queued")
        return began

    def queued(self) -> int:
        return self.database.writer._thread._queue.qsize()

    def release(self) -> None:
        self._open.set()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with closing(open_database(database_url)) as database:
        with database.write() as tx:
            tx.execute(text("CREATE TABLE notes (id TEXT PRIMARY KEY)"))
        yield database
    # Without it, another test can have the database.
    with closing(open_database(database_url)) as database, database.write() as tx:
        tx.execute(text("DROP TABLE notes"))


@pytest.fixture
def held(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldWriter]:
    # A slow machine must not split a batch.
    monkeypatch.setattr(writer_module, "BATCH_SECONDS", SECONDS_MAX)
    with ThreadPoolExecutor(OTHERS + 2) as pool:
        held = HeldWriter(database, pool)
        yield held
        held.release()


def notes(database: Database) -> list[str]:
    with database.read() as tx:
        return sorted(tx.execute(text("SELECT id FROM notes")).scalars())


def logged(database: Database) -> list[tuple[int, str]]:
    with database.read() as tx:
        rows = tx.execute(text("SELECT event_id, entity_id FROM events ORDER BY event_id"))
        return [(row[0], row[1]) for row in rows]


def test_everything_that_was_queued_meanwhile_is_one_transaction(held: HeldWriter) -> None:
    first = held.hold()
    others = held.queue(*(note(f"note {number}") for number in range(OTHERS)))
    held.release()

    assert [one.result(SECONDS_MAX) for one in (first, *others)] == ["first", *(f"note {n}" for n in range(OTHERS))]
    assert held.commits == 2
    assert len(notes(held.database)) == OTHERS + 1


def test_a_refusal_is_the_result_of_its_work_and_costs_the_others_nothing(held: HeldWriter) -> None:
    held.hold()
    good, bad, better = held.queue(note("good"), refusing, note("better"))
    held.release()

    assert (good.result(SECONDS_MAX), better.result(SECONDS_MAX)) == ("good", "better")
    with pytest.raises(NotFound, match="nothing to change"):
        bad.result(SECONDS_MAX)
    assert held.commits == 2
    assert notes(held.database) == ["better", "first", "good"]


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (refusing_late, InvalidInput),
        (note("first"), sqlalchemy.exc.IntegrityError),
        (lambda tx: tx.execute(text("SELECT nothing FROM nowhere")), sqlalchemy.exc.SQLAlchemyError),
    ],
    ids=["refuses after writing", "breaks a rule of the database", "is a bug"],
)
def test_a_work_that_fails_in_the_middle_of_a_batch_fails_alone(
    held: HeldWriter, work: Callable[[Transaction], Any], error: type[Exception]
) -> None:
    held.hold()
    good, bad, better = held.queue(note("good"), work, note("better"))
    held.release()

    assert (good.result(SECONDS_MAX), better.result(SECONDS_MAX)) == ("good", "better")
    with pytest.raises((error, StoreUnavailable)):
        bad.result(SECONDS_MAX)
    assert notes(held.database) == ["better", "first", "good"]


def test_a_result_is_there_only_after_the_commit(held: HeldWriter) -> None:
    held.hold()
    (one,) = held.queue(note("one"))
    committing, go_on = threading.Event(), threading.Event()

    def slowly(_connection: sqlalchemy.Connection) -> None:
        if held.commits == 2:
            committing.set()
            assert go_on.wait(SECONDS_MAX)

    event.listen(held.database.engine, "commit", slowly)
    held.release()
    assert committing.wait(SECONDS_MAX)

    assert not one.done()
    go_on.set()
    assert one.result(SECONDS_MAX) == "one"


def test_a_commit_that_fails_is_not_run_again_and_all_its_callers_are_warned(
    held: HeldWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.hold()
    works = held.queue(note("a"), note("b"))

    def lost(connection: Any) -> None:
        connection.rollback()
        raise held.database.engine.dialect.dbapi.OperationalError("the connection was lost while committing")  # type: ignore[union-attr]

    failing = [None]
    do_commit = held.database.engine.dialect.do_commit

    def commit(connection: Any) -> None:
        if held.commits == 2 and failing:
            failing.clear()
            lost(connection)
        do_commit(connection)

    monkeypatch.setattr(held.database.engine.dialect, "do_commit", commit)
    held.release()

    for work in works:
        with pytest.raises(StoreUnavailable):
            work.result(SECONDS_MAX)
    assert notes(held.database) == ["first"]
    assert held.database.writer.run_blocking(note("later")) == "later"


def test_events_of_a_batch_are_appended_together_in_the_order_of_their_works(held: HeldWriter) -> None:
    held.hold()
    pool = [held._pool.submit(held.database.writer.append_blocking, appended(name)) for name in "abc"]
    until(lambda: held.queued() == len(pool), "they are not queued")
    held.release()
    ids = [one.result(SECONDS_MAX) for one in pool]

    assert held.commits == 2
    assert sorted(ids) == list(range(min(ids), min(ids) + 3))
    assert dict(logged(held.database)) == dict(zip(ids, "abc", strict=True))


def test_a_batch_work_gets_all_its_items_sorted_and_refuses_single_ones(held: HeldWriter) -> None:
    held.hold()

    async def add() -> list[object]:
        writer = held.database.writer
        adding = [asyncio.create_task(writer.add(ADD, name)) for name in ("c", "refused", "a", "b")]
        await asyncio.to_thread(until, lambda: held.queued() == len(adding), "they are not queued")
        held.release()
        return [*await asyncio.gather(*adding, return_exceptions=True)]

    c, refused, a, b = asyncio.run(add())

    assert held.commits == 2
    assert isinstance(refused, NotFound)
    assert [name for _, name in logged(held.database)] == ["a", "b", "c"]
    assert {f"{name}:{number}" for number, name in logged(held.database)} == {a, b, c}


def test_listeners_are_notified_once_for_each_commit_with_events(database: Database) -> None:
    notified: list[None] = []
    database.writer.appended = lambda: notified.append(None)

    async def add() -> None:
        await database.writer.run(note("without an event"))
        await asyncio.gather(*(database.writer.add(ADD, name) for name in "abc"))

    asyncio.run(add())

    assert 1 <= len(notified) <= 2  # the first item may be a batch of its own


def test_a_caller_that_is_cancelled_takes_its_queued_work_back(held: HeldWriter) -> None:
    held.hold()

    async def cancelled() -> None:
        task = asyncio.create_task(held.database.writer.run(note("withdrawn")))
        await asyncio.to_thread(until, lambda: held.queued() == 1, "it is not queued")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    held.release()
    held.database.writer.run_blocking(note("last"))

    assert notes(held.database) == ["first", "last"]


def test_a_caller_that_is_cancelled_while_its_work_runs_waits_for_the_end(database: Database) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def work(tx: Transaction) -> str:
        inside.set()
        assert go_on.wait(SECONDS_MAX)
        return note("ran")(tx)

    async def cancelled() -> list[str]:
        task = asyncio.create_task(database.writer.run(work))
        await asyncio.to_thread(inside.wait, SECONDS_MAX)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return notes(database)

    assert asyncio.run(cancelled()) == ["ran"]


def test_closing_commits_what_is_queued_and_refuses_the_rest(held: HeldWriter) -> None:
    held.hold()
    queued = held.queue(note("queued"))
    closing_ = held._pool.submit(held.database.writer.close)
    until(lambda: held.database.writer._thread._closed, "it is not closing")
    with pytest.raises(StoreClosed):
        held.database.writer.run_blocking(note("too late"))
    held.release()
    closing_.result(SECONDS_MAX)

    assert [one.result(SECONDS_MAX) for one in queued] == ["queued"]
    assert notes(held.database) == ["first", "queued"]


def test_a_slow_work_delays_the_works_before_it_and_no_others(
    held: HeldWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "BATCH_SECONDS", 0.0)
    held.hold()
    works = held.queue(note("a"), note("b"), note("c"))
    held.release()

    assert [one.result(SECONDS_MAX) for one in works] == ["a", "b", "c"]
    # Each batch ends with the work that used up its time.
    assert held.commits == 1 + len(works)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_connection_that_the_server_closed_meanwhile_is_replaced(database: Database) -> None:
    database.writer.run_blocking(note("a"))
    with database.engine.connect() as other:
        other.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND datname = current_database() AND application_name = 'onceward'"
            )
        )

    assert database.writer.run_blocking(note("b")) == "b"
    assert notes(database) == ["a", "b"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("state", ["40P01", "40001"])
def test_a_work_that_loses_against_another_transaction_is_tried_again(held: HeldWriter, state: str) -> None:
    """Deadlocks and serialization failures on PostgreSQL, which roll the whole transaction back."""
    attempts: list[None] = []

    def losing(tx: Transaction) -> str:
        attempts.append(None)
        if len(attempts) < 3:
            tx.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '{state}'; END $$"))
        return note("won")(tx)

    held.hold()
    good, lost = held.queue(note("good"), losing)
    held.release()

    assert (good.result(SECONDS_MAX), lost.result(SECONDS_MAX)) == ("good", "won")
    assert notes(held.database) == ["first", "good", "won"]


def test_a_forked_child_writes_through_its_own_thread_and_connection(database: Database) -> None:
    database.writer.run_blocking(note("parent"))
    parents = database.writer._connection._connection
    child = os.fork()
    if child == 0:
        database.writer.run_blocking(note("child"))
        os._exit(0 if database.writer._connection._connection is not parents else 1)
    _, status = os.waitpid(child, 0)

    assert status == 0
    assert database.writer.run_blocking(note("parent again")) == "parent again"
    assert database.writer._connection._connection is parents
    assert notes(database) == ["child", "parent", "parent again"]


def test_an_idle_thread_ends_and_the_next_work_starts_another(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_thread, "IDLE_SECONDS", 0.01)
    database.writer.run_blocking(note("a"))
    until(lambda: database.writer._thread._thread is None, "the thread does not end")

    assert not database.writer._connection.is_open
    assert database.writer.run_blocking(note("b")) == "b"
