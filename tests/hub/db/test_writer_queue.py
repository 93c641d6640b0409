"""The queue of writers: no process that writes to a SQLite file starves, and a frozen one holds up nobody for long."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import time
from contextlib import closing
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from tests.waiting import SECONDS_MAX

from onceward.hub.db import writer_queue
from onceward.hub.db.writer_queue import WriterQueue

# A batch of a busy hub.
BATCH_SECONDS = 0.002


def _write_all_the_time(path: str, started: Event, stop: Event) -> None:
    queue = WriterQueue(path)
    while not stop.is_set():
        with queue.turn():
            started.set()
            time.sleep(BATCH_SECONDS)


def test_a_busy_process_lets_another_one_write_after_each_of_its_batches(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    started, stop = context.Event(), context.Event()
    path = str(tmp_path / "hub.db")
    busy = context.Process(target=_write_all_the_time, args=(path, started, stop))
    busy.start()
    waits: list[float] = []
    try:
        assert started.wait(SECONDS_MAX)
        with closing(WriterQueue(path)) as queue:
            for _ in range(30):
                asked = time.monotonic()
                with queue.turn():
                    waits.append(time.monotonic() - asked)
    finally:
        stop.set()
        busy.join(SECONDS_MAX)

    # Without the gate, the busy process takes the lock again before this one has seen it free.
    assert max(waits) < writer_queue.QUEUE_SECONDS


def test_a_writer_that_does_not_get_through_in_time_goes_on_without_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_queue, "QUEUE_SECONDS", 0.01)
    frozen = os.open(tmp_path / "hub.db-queue", os.O_RDWR | os.O_CREAT)
    fcntl.flock(frozen, fcntl.LOCK_EX)
    try:
        with closing(WriterQueue(str(tmp_path / "hub.db"))) as queue, queue.turn():
            pass
    finally:
        os.close(frozen)


def test_the_lock_is_free_after_a_turn_even_if_it_raised(tmp_path: Path) -> None:
    with closing(WriterQueue(str(tmp_path / "hub.db"))) as queue:
        with pytest.raises(ZeroDivisionError), queue.turn():
            raise ZeroDivisionError
        other = os.open(tmp_path / "hub.db-queue", os.O_RDWR)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(other)


def test_a_folder_that_cannot_be_written_to_needs_no_queue(tmp_path: Path) -> None:
    with closing(WriterQueue(str(tmp_path / "missing" / "hub.db"))) as queue, queue.turn():
        pass


def test_the_files_of_the_queue_are_for_this_user_alone(tmp_path: Path) -> None:
    with closing(WriterQueue(str(tmp_path / "hub.db"))) as queue, queue.turn():
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}

    assert modes == {"hub.db-gate": 0o600, "hub.db-queue": 0o600}
