"""Stores that fail under a running hub and come back: it reports it, leaves no half writes, and recovers."""

from __future__ import annotations

import itertools
import resource
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from tests.faults.hub.conftest import Sites
from tests.faults.hub.followers import SocketFollower, StreamFollower
from tests.faults.hub_database import connected_to, event_ids, written
from tests.hub.hub_process import RunningHub, running_hub
from tests.hub.raw_client import Caller, HubResponse, connections_by_worker
from tests.hub.tasks_hub import form, left_over
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.waiting import SECONDS_MAX, until

from onceward.hub.db import append

TOPICS = "/api/v1/topics"
# Less than any database has already: nothing can be written to it.
FULL_BYTES = 4096
# While another process holds the write lock, reads get a response within this time, also on a busy machine.
READ_SECONDS_MAX = 1.0
WRITERS = 20
# As many of them as have connections to the database wait there; the others wait for those.
_WAITING = """
    SELECT count(*) FROM pg_locks
    WHERE locktype = 'advisory' AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
# More than the hub has threads.
CROWD = 60


def assert_unavailable(*answers: HubResponse) -> None:
    for answer in answers:
        assert (answer.status, answer.problem) == (503, "unavailable"), answer
        assert int(answer.headers["retry-after"]) == answer.json["retry_after"] >= 1


def limit_files(pid: int, most_bytes: int | None) -> None:
    """Limit the file size of the process, which acts like a full disk."""
    most = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most if most_bytes is None else most_bytes, most))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningHub, Path]]:
    """A hub on SQLite, and its folder."""
    data_dir = tmp_path_factory.mktemp("outages") / "data"
    with running_hub(data_dir=data_dir) as hub:
        yield hub, data_dir


def test_a_full_disk_is_reported_leaves_no_half_writes_and_is_forgotten_when_there_is_room(
    files: tuple[RunningHub, Path],
) -> None:
    hub, data_dir = files
    with ExitStack() as stack:
        database = stack.enter_context(connected_to(f"sqlite:///{data_dir}/hub.db"))
        ask = Caller(hub.port)
        topic = ask.topic()
        kept = ask.post(TOPICS, {"title": "kept"}, key="kept")
        followers = [stack.enter_context(kind(hub.port)) for kind in (SocketFollower, StreamFollower)]
        before = written(database)

        limit_files(hub.process.pid, FULL_BYTES)
        message = {"sender": "a", "content": "no room"}
        refused = [
            ask.post(TOPICS, {"title": "no room"}),
            ask.post(f"{TOPICS}/{topic}/messages", message),
            ask.post(f"{TOPICS}/{topic}/attachments", {"kind": "k", "value_json": {}}),
            ask.post(f"{TOPICS}/{topic}/messages", message, key="no-room"),
        ]
        read, replayed = ask.get(TOPICS), ask.post(TOPICS, {"title": "kept"}, key="kept")
        meanwhile = written(database)
        health = integrity(data_dir / "hub.db"), integrity(data_dir / "ledger.db")
        limit_files(hub.process.pid, None)
        late = ask.request_until_final("POST", f"{TOPICS}/{topic}/messages", message, key="no-room")
        again = ask.post(f"{TOPICS}/{topic}/messages", message, key="no-room")

        assert_unavailable(*refused)
        assert (meanwhile, health) == (before, ("ok", "ok"))
        assert (read.status, len(read.json["topics"])) == (200, before["topics"])
        assert (replayed.status, replayed.body) == (201, kept.body)
        assert (late.status, again.body) == (201, late.body)
        assert written(database)["messages"] == before["messages"] + 1
        for follower in followers:
            assert follower.wait_for(late.json["event_id"]) == event_ids(database)
            assert follower.sessions == 1, "it was never cut off"


def test_an_upload_on_a_full_disk_is_refused_leaves_nothing_and_works_when_there_is_room(
    files: tuple[RunningHub, Path],
) -> None:
    hub, data_dir = files
    ask = Caller(hub.port)
    task = ask.post("/v1/tasks", {"title": "upload"}).json["id"]
    path = f"/v1/tasks/{task}/attachments"
    body, kind = form([("kind", "artifact"), ("content", b"x" * 100_000, "a.bin")])
    headers = {"Content-Type": kind["content-type"]}

    limit_files(hub.process.pid, FULL_BYTES)
    refused = [ask.post(path, data=body, headers=headers), ask.post(path, data=body, headers=headers, key="upload")]
    meanwhile = ask.get(path).json["attachments"], left_over(data_dir), blobs_in(data_dir)
    limit_files(hub.process.pid, None)
    late, again = (ask.post(path, data=body, headers=headers, key="upload") for _ in range(2))

    assert_unavailable(*refused)
    # Not the database but where the bytes are: the detail fits both.
    assert "or is full" in refused[0].json["detail"]
    assert meanwhile == ([], [], [])
    assert (late.status, again.body) == (201, late.body)
    assert len(blobs_in(data_dir)) == 1


def blobs_in(data_dir: Path) -> list[Path]:
    return [file for file in (data_dir / "blobs" / "sha256").rglob("*") if file.is_file()]


def integrity(file: Path) -> str:
    with closing(sqlite3.connect(file)) as db:
        return str(db.execute("PRAGMA integrity_check").fetchone()[0])


def test_a_database_and_a_ledger_may_stop_and_come_back(tmp_path: Path) -> None:
    """First only the ledger fails, which only requests with a key need. Then the database fails, too."""
    with ExitStack() as stack:
        postgres, redis = stack.enter_context(PostgresServer()), stack.enter_context(RedisServer())
        url = postgres.create_database()
        args = ["--database", url, "--ledger", redis.url()]
        hub = stack.enter_context(running_hub(data_dir=tmp_path / "data", args=args))
        threads = stack.enter_context(ThreadPoolExecutor(8))
        ask = Caller(hub.port)
        topic = ask.topic()
        path = f"{TOPICS}/{topic}/messages"
        kept = ask.post(TOPICS, {"title": "kept"}, key="kept")
        followers = [stack.enter_context(kind(hub.port)) for kind in (SocketFollower, StreamFollower)]

        redis.stop()
        keyed = threads.submit(ask.post, path, {"sender": "a", "content": "keyed"}, key="keyed")
        replay = threads.submit(ask.post, TOPICS, {"title": "kept"}, key="kept")
        unkeyed = ask.post(path, {"sender": "a", "content": "unkeyed"})
        without_ledger = ask.get("/readyz")
        for follower in followers:
            follower.wait_for(unkeyed.json["event_id"])

        postgres.stop()
        down = [
            ask.post(path, {"sender": "a", "content": "down"}),
            ask.get(TOPICS),
            ask.get("/api/v1/events"),
            ask.get("/api/v1/events/stream"),
            ask.post(path, {"sender": "a", "content": "down"}, key="down"),
        ]
        without_both, alive = ask.get("/readyz"), ask.get("/healthz")
        refused = [keyed.result(SECONDS_MAX), replay.result(SECONDS_MAX)]
        postgres.start()
        redis.start()
        until(lambda: ask.get("/readyz").status == 200, "it never got ready again")
        answers = {
            key: ask.request_until_final("POST", path, {"sender": "a", "content": key}, key=key)
            for key in ("keyed", "down")
        }

        assert unkeyed.status == 201
        assert (without_ledger.status, without_ledger.json["checks"]["database"]) == (503, "ok")
        assert without_ledger.json["checks"]["ledger"] != "ok"
        assert (without_both.status, without_both.json["status"], alive.status) == (503, "unavailable", 200)
        assert [name for name, result in without_both.json["checks"].items() if result == "ok"] == ["blobs"]
        assert_unavailable(*refused, *down)
        assert [answer.status for answer in answers.values()] == [201, 201]
        assert ask.post(TOPICS, {"title": "kept"}, key="kept").body == kept.body
        with connected_to(url) as database:
            assert written(database)["messages"] == 3, "what was refused was not written"
            for follower in followers:
                assert follower.wait_for(answers["down"].json["event_id"]) == event_ids(database)
                assert follower.sessions == 1, "it was never cut off"
        assert "Traceback" not in "\n".join(hub.log_lines())


def in_progress(ledger: Path) -> int:
    """Return the number of keys in progress."""
    with closing(sqlite3.connect(ledger)) as db:
        counted = "SELECT count(*) FROM platform_idempotency_keys WHERE status = 'in_progress'"
        return int(db.execute(counted).fetchone()[0])


@contextmanager
def write_locked(file: Path) -> Iterator[None]:
    """Hold the write lock of the file until the end of the block."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_while_another_process_locks_the_file_writers_wait_and_readers_do_not(files: tuple[RunningHub, Path]) -> None:
    hub, data_dir = files
    with ExitStack() as stack:
        ask = Caller(hub.port)
        topic = ask.topic()
        follower = stack.enter_context(SocketFollower(hub.port))
        threads = stack.enter_context(ThreadPoolExecutor(CROWD))
        path = f"{TOPICS}/{topic}/messages"

        with write_locked(data_dir / "hub.db"):
            waiting = [
                threads.submit(ask.post, path, {"sender": "a", "content": str(number)}, key=f"crowd-{number}")
                for number in range(CROWD)
            ]
            until(lambda: in_progress(data_dir / "ledger.db") == CROWD, "not all of them have begun")
            began = time.monotonic()
            reads = [ask.get(path) for path in ("/healthz", TOPICS, "/api/v1/events")]
            took = time.monotonic() - began
            assert not any(one.done() for one in waiting)
        answers = [one.result(SECONDS_MAX) for one in waiting]

        assert [read.status for read in reads] == [200] * 3
        assert took < READ_SECONDS_MAX
        assert [answer.status for answer in answers] == [201] * CROWD
        ids = sorted(answer.json["event_id"] for answer in answers)
        assert follower.wait_for(ids[-1])[-CROWD:] == ids


def test_while_another_process_locks_the_event_log_writers_wait_and_readers_do_not(sites: Sites) -> None:
    """A process that stalls in the middle of a commit delays all writers, and no reader."""
    site = sites["postgresql"]
    path = f"{TOPICS}/{site.ada.topic()}/messages"
    with ExitStack() as stack:
        other = stack.enter_context(psycopg.connect(site.database_url))
        threads = stack.enter_context(ThreadPoolExecutor(WRITERS))
        by_worker = connections_by_worker(site.hub, WRITERS + 1)
        for connection in itertools.chain.from_iterable(by_worker.values()):
            stack.enter_context(closing(connection))
        # All of them at one worker, whose writer waits for the lock with the first of them.
        reader, *writers = (Caller(site.port, site.token, one) for one in next(iter(by_worker.values())))

        other.execute("SELECT pg_advisory_xact_lock(%s)", [append._LOCK])
        waiting = [threads.submit(one.post, path, {"sender": "a", "content": "held up"}) for one in writers]
        until(lambda: other.execute(_WAITING).fetchall() == [(1,)], "the writer does not wait")
        began = time.monotonic()
        reads = [reader.get(path) for path in ("/healthz", TOPICS, "/api/v1/events")]
        took = time.monotonic() - began
        assert not any(one.done() for one in waiting)
        other.rollback()
        answers = [one.result(SECONDS_MAX) for one in waiting]

    assert [read.status for read in reads] == [200] * 3
    assert took < READ_SECONDS_MAX
    assert [answer.status for answer in answers] == [201] * WRITERS


def test_no_worker_maps_files_of_the_data_folder_that_a_full_disk_could_crash_it_with(sites: Sites) -> None:
    """A full disk kills a process that writes to a mapped file (SIGBUS). SQLite reserves the room for its own mapped
    files before it writes to them.
    """
    site = sites["sqlite"]
    folder = str(Path(site.database_url.removeprefix("sqlite:///")).parent)
    workers = connections_by_worker(site.hub, 1)
    for connection in itertools.chain.from_iterable(workers.values()):
        connection.close()

    mapped = {
        line.split(maxsplit=5)[5]
        for worker in workers
        for line in Path(f"/proc/{worker}/maps").read_text("utf-8").splitlines()
        if folder in line
    }

    assert len(workers) == 2
    assert {Path(name).name for name in mapped} <= {"hub.db-shm", "ledger.db-shm"}
