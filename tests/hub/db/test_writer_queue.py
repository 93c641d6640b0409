"""The queue of writers: no process that writes to a SQLite file starves, and a frozen one blocks others briefly."""

from __future__ import annotations

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


def _hold(path: str, held: Event, stop: Event) -> None:
    with closing(WriterQueue(path)) as queue, queue.turn():
        held.set()
        stop.wait(SECONDS_MAX)


def test_a_writer_that_does_not_get_through_in_time_goes_on_without_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_queue, "QUEUE_SECONDS", 0.01)
    path = str(tmp_path / "hub.db")
    context = multiprocessing.get_context("spawn")
    held, stop = context.Event(), context.Event()
    frozen = context.Process(target=_hold, args=(path, held, stop))
    frozen.start()
    try:
        assert held.wait(SECONDS_MAX)
        with closing(WriterQueue(path)) as queue:
            descriptor = queue._opened()
            assert descriptor is not None
            with queue.turn():
                pass
            with pytest.raises(BlockingIOError):
                writer_queue._lock(descriptor, writer_queue._LOCK)
            # The gate is free again for others.
            writer_queue._lock(descriptor, writer_queue._GATE)
    finally:
        stop.set()
        frozen.join(SECONDS_MAX)


def _take(path: str) -> None:
    descriptor = os.open(f"{path}-queue", os.O_RDWR)
    for byte in (writer_queue._GATE, writer_queue._LOCK):
        writer_queue._lock(descriptor, byte)


def test_the_locks_are_free_after_a_turn_even_if_it_raised(tmp_path: Path) -> None:
    path = str(tmp_path / "hub.db")
    with closing(WriterQueue(path)) as queue:
        with pytest.raises(ZeroDivisionError), queue.turn():
            raise ZeroDivisionError
        other = multiprocessing.get_context("spawn").Process(target=_take, args=(path,))
        other.start()
        other.join(SECONDS_MAX)

    assert other.exitcode == 0


def test_a_folder_that_cannot_be_written_to_needs_no_queue(tmp_path: Path) -> None:
    with closing(WriterQueue(str(tmp_path / "missing" / "hub.db"))) as queue, queue.turn():
        pass


def test_the_file_of_the_queue_is_for_this_user_alone(tmp_path: Path) -> None:
    with closing(WriterQueue(str(tmp_path / "hub.db"))) as queue, queue.turn():
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}

    assert modes == {"hub.db-queue": 0o600}
