"""The lock of a blob folder: one holder at a time, and no starvation."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest
from tests.waiting import SECONDS_MAX, until

from onceward.errors import StoreUnavailable
from onceward.hub.blobs import lock
from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.blobs.lock import FolderLock


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    return tmp_path


def is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def test_a_waiting_process_comes_before_one_that_locks_again(folder: Path) -> None:
    busy, other = FolderLock(folder), FolderLock(folder)
    order: list[str] = []

    def enter(who: FolderLock, name: str) -> None:
        with who.hold():
            order.append(name)

    with busy.hold():
        waiting = threading.Thread(target=enter, args=(other, "who waited"))
        waiting.start()
        until(lambda: is_locked(folder / "tmp"), "it does not wait behind the gate")
        again = threading.Thread(target=enter, args=(busy, "who had it"))
        again.start()
    for thread in (waiting, again):
        thread.join(SECONDS_MAX)

    assert order == ["who waited", "who had it"]
    assert not is_locked(folder / "tmp")
    assert not is_locked(folder / "lock")


def test_the_lock_holds_even_if_the_folder_cannot_be_locked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def without_folders(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", without_folders)
    with FolderLock(folder).hold():
        assert is_locked(folder / "lock")
    assert not is_locked(folder / "lock")


def test_a_folder_that_cannot_be_locked_at_all_is_unavailable(folder: Path) -> None:
    (folder / "lock").mkdir()

    with pytest.raises(StoreUnavailable, match="cannot lock the blob folder"), FolderLock(folder).hold():
        pass


def test_an_exception_inside_the_lock_is_not_taken_for_a_failed_lock(folder: Path) -> None:
    with pytest.raises(ConnectionResetError), FolderLock(folder).hold():
        raise ConnectionResetError


@pytest.mark.parametrize("who", ["another thread", "another process"])
def test_waiting_for_the_folder_ends_with_a_timeout(folder: Path, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """Another process has its own `FolderLock`, like the other object here."""
    monkeypatch.setattr(lock, "LOCK_SECONDS", 0.05)
    one = FolderLock(folder)
    other = one if who == "another thread" else FolderLock(folder)
    refused: list[StoreUnavailable] = []

    def wait() -> None:
        try:
            with other.hold():
                pass
        except StoreUnavailable as error:
            refused.append(error)

    with one.hold():
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(SECONDS_MAX)
    with other.hold():
        pass

    assert len(refused) == 1


def test_a_child_forked_while_another_thread_holds_the_lock_can_take_it_later(folder: Path) -> None:
    """The child has neither the thread nor its lock. With the parent's lock, it would wait forever."""
    one = FolderLock(folder)
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with one.hold():
            entered.set()
            leave.wait(SECONDS_MAX)

    thread = threading.Thread(target=stay)
    thread.start()
    assert entered.wait(SECONDS_MAX)
    child = os.fork()
    if child == 0:
        try:
            with one.hold():
                os._exit(7)
        finally:
            os._exit(1)
    leave.set()
    thread.join(SECONDS_MAX)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_bytes_that_were_put_are_found_without_another_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    asked: list[int] = []
    fsync = os.fsync
    with blobs.temp_file() as temp_file:
        temp_file.write(b"bytes")
        temp_file.finish()
        key = blobs.put(temp_file, "bl-1")

        def counted(descriptor: int) -> None:
            asked.append(descriptor)
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", counted)
        blobs.ensure(temp_file, key)
        assert not asked

        # The same bytes of another process, which may not have synced them.
        (tmp_path / "blobs" / key).unlink()
        (tmp_path / "blobs" / key).write_bytes(b"bytes")
        blobs.ensure(temp_file, key)
        assert len(asked) == 1

        # Deleted: they are stored again.
        (tmp_path / "blobs" / key).unlink()
        blobs.ensure(temp_file, key)
        assert len(asked) == 2
    assert b"".join(blobs.read(key)) == b"bytes"


def test_a_name_that_was_not_synced_is_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name exists and leads to these bytes, but it is not durable."""
    blobs = FolderBlobs(tmp_path / "blobs")
    fsync, asked = os.fsync, 0

    def failing_once(descriptor: int) -> None:
        nonlocal asked
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        if len(place.name) == 2 and place.parent.parent.name == "sha256":
            asked += 1
            if asked == 1:
                raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    with blobs.temp_file() as temp_file:
        temp_file.write(b"bytes")
        temp_file.finish()
        monkeypatch.setattr(os, "fsync", failing_once)
        with pytest.raises(StoreUnavailable):
            blobs.put(temp_file, "bl-1")
        blobs.ensure(temp_file, f"sha256/{temp_file.sha256[:2]}/{temp_file.sha256[2:4]}/{temp_file.sha256}")
    assert asked == 2
