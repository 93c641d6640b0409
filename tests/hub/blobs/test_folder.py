"""Guarantees that only a folder gives: the order of its disk writes, its lock, and that it follows no planted link."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import resource
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.hub.blobs.blob_io import failing, open_files, path_of, put_bytes, read_all, stored_sizes

from onceward.errors import OncewardError, StoreUnavailable
from onceward.hub.blobs import BlobStore, Emptied
from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.blobs.temp_file import TempFile


def test_a_blob_is_readable_only_by_its_owner_and_read_only(in_folder: FolderBlobs, folder: Path) -> None:
    put_bytes(in_folder, b"mine")
    path = path_of(folder, b"mine")

    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert path.stat().st_nlink == 1
    assert {stat.S_IMODE(parent.stat().st_mode) for parent in (*path.parents[:4], folder / "tmp")} == {0o700}
    with in_folder.temp_file() as temp_file:
        assert stat.S_IMODE(temp_file.path.stat().st_mode) == 0o600


class DiskWriteRecorder:
    """Records the writes to the disk, with the name of the file or folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.seen: list[str] = []
        fsync, link = os.fsync, os.link

        def noted_fsync(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            named = "temporary" if path.suffix == ".part" else str(path.relative_to(folder.parent))
            self.seen.append(f"fsync {named}")
            fsync(descriptor)

        def noted_link(source: str, target: str, **options: int) -> None:
            link(source, target, src_dir_fd=options["src_dir_fd"], dst_dir_fd=options["dst_dir_fd"])
            self.seen.append("link")

        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(os, "link", noted_link)


def test_bytes_are_synced_before_their_name_and_their_name_before_the_result(
    in_folder: FolderBlobs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = DiskWriteRecorder(monkeypatch, folder)
    put_bytes(in_folder, b"ordered")
    first = witness.seen.copy()
    witness.seen.clear()
    put_bytes(in_folder, b"ordered")

    sha256 = hashlib.sha256(b"ordered").hexdigest()
    one, two = sha256[:2], sha256[2:4]
    inner = f"fsync blobs/sha256/{one}/{two}"
    parents = ["fsync blobs/sha256", f"fsync blobs/sha256/{one}"]
    assert first == ["fsync temporary", *parents, "link", inner]
    # Another writer's name may not be on the disk yet; one that is found is brought there as well.
    assert witness.seen == ["fsync temporary", inner]


def test_folders_created_by_another_writer_are_synced_too(
    in_folder: FolderBlobs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path_of(folder, b"late").parent.mkdir(parents=True)
    witness = DiskWriteRecorder(monkeypatch, folder)
    put_bytes(in_folder, b"late")

    assert len([line for line in witness.seen if line.startswith("fsync blobs/sha256")]) == 3


def test_a_new_blob_folder_is_synced_with_all_its_parents(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = DiskWriteRecorder(monkeypatch, folder)
    FolderBlobs(tmp_path / "one" / "two" / "blobs")

    assert witness.seen == ["fsync .", "fsync one", "fsync one/two", *["fsync one/two/blobs"] * 4]


def test_a_failed_fsync_is_an_error_and_a_repeated_one_is_not_trusted(
    in_folder: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_folder.temp_file() as temp_file:
        temp_file.write(b"lost")
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", failing(errno.EIO))
            with pytest.raises(StoreUnavailable, match="Input/output error"):
                temp_file.finish()
        with pytest.raises(StoreUnavailable):
            temp_file.finish()
        with pytest.raises(StoreUnavailable):
            in_folder.put(temp_file, "bl-00000001")

    assert stored_sizes(in_folder) == {}
    assert in_folder.sweep_temporary(0).removed_count == 0


def test_a_folder_whose_fsync_fails_acknowledges_nothing(
    in_folder: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_folder.temp_file() as temp_file:
        temp_file.write(b"unsure")
        temp_file.finish()
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", failing(errno.EIO))
            with pytest.raises(StoreUnavailable):
                in_folder.put(temp_file, "bl-00000001")

        assert in_folder.put(temp_file, "bl-00000001")


def test_a_temp_file_swept_before_it_was_locked_is_created_again(
    in_folder: FolderBlobs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[str] = []
    lock = fcntl.flock

    def sweep_first(descriptor: int, how: int) -> None:
        if not swept:
            swept.extend(path.name for path in (folder / "tmp").iterdir())
            (folder / "tmp" / swept[0]).unlink()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    key = put_bytes(in_folder, b"unlucky")

    assert len(swept) == 1
    assert read_all(in_folder, key) == b"unlucky"


@contextmanager
def limited_disk(count: int) -> Iterator[None]:
    """Limit the files of this process to `count` bytes, which acts like a full disk."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_pieces(temp_file: TempFile, piece: int) -> None:
    for _ in range(400_000 // piece):
        temp_file.write(b"x" * piece)


@pytest.mark.parametrize("piece", [1_000, 400_000], ids=["small pieces", "large pieces"])
def test_a_full_disk_leaves_nothing(in_folder: FolderBlobs, piece: int) -> None:
    before = open_files()
    with (
        in_folder.temp_file() as temp_file,
        limited_disk(300_000),
        pytest.raises(StoreUnavailable, match="cannot write the temporary file"),
    ):
        write_pieces(temp_file, piece)

    assert not temp_file.path.exists()
    assert stored_sizes(in_folder) == {}
    assert in_folder.sweep_temporary(0).removed_count == 0
    assert open_files() == before


def test_a_full_disk_leaves_the_blobs_without_an_owner(in_folder: FolderBlobs) -> None:
    before = open_files()
    with limited_disk(0), pytest.raises(StoreUnavailable):
        in_folder.owner("no room")

    assert in_folder.sweep_temporary(0).removed_count == 0
    assert open_files() == before
    assert in_folder.owner("later") == "later"
    assert in_folder.owner("too late") == "later"


def test_an_empty_owner_file_has_no_owner(in_folder: FolderBlobs, folder: Path) -> None:
    """Earlier versions left one if they were killed between creating and writing it, or if the disk was full."""
    (folder / "owner").touch()

    assert in_folder.owner("one") == "one"
    assert in_folder.owner("two") == "one"


def test_a_planted_pipe_does_not_block(in_folder: FolderBlobs, folder: Path) -> None:
    os.mkfifo(folder / "owner")
    ended: list[str] = []

    asking = threading.Thread(target=lambda: ended.append(in_folder.owner("one")), daemon=True)
    asking.start()
    asking.join(10)

    assert ended == ["one"]


@pytest.mark.parametrize("emptied", [False, True], ids=["no file", "an empty file"])
def test_of_concurrent_callers_one_becomes_the_owner_and_all_learn_of_it(tmp_path: Path, emptied: bool) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        asking = [FolderBlobs(folder) for _ in range(8)]
        if emptied:
            (folder / "owner").touch()
        ready = threading.Barrier(len(asking))

        def ask(index: int, asking: list[FolderBlobs] = asking, ready: threading.Barrier = ready) -> str:
            ready.wait()
            return asking[index].owner(f"mark {index}")

        with ThreadPoolExecutor(len(asking)) as threads:
            owners = set(threads.map(ask, range(len(asking))))

        assert len(owners) == 1
        assert owners <= {f"mark {index}" for index in range(len(asking))}
        assert owners == {asking[0].owner("too late")}
        assert list((folder / "tmp").iterdir()) == []


def test_the_owner_file_is_synced_before_the_result(
    in_folder: FolderBlobs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = DiskWriteRecorder(monkeypatch, folder)
    in_folder.owner("one")
    first = witness.seen.copy()
    witness.seen.clear()
    in_folder.owner("two")

    assert (first[0], first[-1]) == ("fsync temporary", "fsync blobs")
    # Its writer may have been killed before that.
    assert witness.seen == ["fsync blobs"]


@pytest.mark.parametrize("level", ["sha256", "first", "second", "blob", "tmp", "lock"])
def test_a_planted_link_is_refused(folder: Path, tmp_path: Path, level: str) -> None:
    blobs = FolderBlobs(folder)
    content = b"victim"
    blob = path_of(folder, content)
    target = {"sha256": folder / "sha256", "first": blob.parents[1], "second": blob.parent, "blob": blob,
              "tmp": folder / "tmp", "lock": folder / "lock"}[level]  # fmt: skip
    elsewhere = tmp_path / "elsewhere"
    if level in {"blob", "lock"}:
        target.parent.mkdir(parents=True, exist_ok=True)
        elsewhere.write_bytes(content)
    else:
        elsewhere.mkdir()
        (elsewhere / "keep.part").write_bytes(b"not ours")
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rmdir()
    target.symlink_to(elsewhere)

    def attack() -> None:
        if level == "lock":
            with blobs.lock():
                pass
        put_bytes(blobs, content)

    with pytest.raises(StoreUnavailable):
        attack()
    if level == "blob":
        with pytest.raises(StoreUnavailable):
            blobs.read(f"sha256/{blob.parent.parent.name}/{blob.parent.name}/{blob.name}")
    if level == "tmp":
        with pytest.raises(StoreUnavailable):
            blobs.sweep_temporary(0)
    assert elsewhere.is_file() or [path.name for path in elsewhere.iterdir()] == ["keep.part"]


def test_a_pipe_in_place_of_a_blob_does_not_block(in_folder: FolderBlobs, folder: Path) -> None:
    key = put_bytes(in_folder, b"piped")
    path_of(folder, b"piped").unlink()
    os.mkfifo(path_of(folder, b"piped"))

    with pytest.raises(StoreUnavailable, match="regular file"):
        in_folder.size(key)
    assert stored_sizes(in_folder) == {}


def test_a_name_deleted_during_the_check_is_linked_again(
    in_folder: FolderBlobs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_bytes(in_folder, b"again")
    path = path_of(folder, b"again")
    stat = os.stat

    def collected_after_stat(name: str, **options: object) -> os.stat_result:
        found = stat(name, **options)  # type: ignore[arg-type]
        if name == path.name:
            monkeypatch.setattr(os, "stat", stat)
            path.unlink()
        return found

    monkeypatch.setattr(os, "stat", collected_after_stat)
    put_bytes(in_folder, b"again")

    assert path.read_bytes() == b"again"


def test_strange_names_in_the_folder_are_neither_listed_nor_touched(in_folder: FolderBlobs, folder: Path) -> None:
    key = put_bytes(in_folder, b"known")
    strange = path_of(folder, b"known").parent / "note.txt"
    for path in (strange, folder / "trash" / "note.txt", folder / "sha256" / "README"):
        path.write_text("left by somebody")

    assert stored_sizes(in_folder) == {key: 5}
    assert in_folder.empty_trash(0) == Emptied()
    assert strange.exists()


def test_without_hard_links_a_copy_is_renamed(
    in_folder: FolderBlobs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    with in_folder.temp_file() as temp_file:
        temp_file.write(b"on a memory stick")
        temp_file.finish()
        key = in_folder.put(temp_file, "bl-00000001")
        inode = path_of(folder, b"on a memory stick").stat().st_ino
        assert in_folder.put(temp_file, "bl-00000001") == key
        assert path_of(folder, b"on a memory stick").stat().st_ino == inode
        in_folder.discard(key)
        in_folder.ensure(temp_file, key)

    assert read_all(in_folder, key) == b"on a memory stick"
    assert in_folder.sweep_temporary(0).removed_count == 0


def test_a_copy_in_progress_is_not_swept(in_folder: FolderBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hard links the copy is a separate temporary file, and needs its own lock."""
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    rename, swept = os.rename, []

    def swept_before(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        swept.append(in_folder.sweep_temporary(0))
        rename(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "rename", swept_before)
    key = put_bytes(in_folder, b"on a memory stick")

    assert [one.removed_count for one in swept] == [0]
    assert read_all(in_folder, key) == b"on a memory stick"


def test_keys_are_listed_in_order(in_folder: FolderBlobs) -> None:
    for number in range(30):
        put_bytes(in_folder, b"%d" % number)
    keys = [blob.key for blob in in_folder.keys()]  # noqa: SIM118  # a method of ours, not a mapping's

    assert keys == sorted(keys)
    assert len(keys) == 30


def test_the_lock_excludes_other_threads_and_is_not_reentrant(in_folder: FolderBlobs) -> None:
    inside, most, lock = 0, 0, threading.Lock()

    def enter() -> None:
        nonlocal inside, most
        for _ in range(20):
            with in_folder.lock():
                with lock:
                    inside += 1
                    most = max(most, inside)
                in_folder.size("sha256/ab/ab/" + "ab" * 32)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == 1
    with in_folder.lock(), pytest.raises(RuntimeError, match="already"), in_folder.lock():
        pass
    with in_folder.lock():
        pass


def test_a_path_that_cannot_be_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(OncewardError) as raised:
        FolderBlobs(tmp_path / "file")
    assert raised.value.code == "store-unavailable"


def test_a_put_needs_constant_memory(blobs: BlobStore) -> None:
    """Memory does not grow with the blob: it is bounded by the largest piece."""
    with blobs.temp_file() as temp_file:
        for _ in range(2_000):
            temp_file.write(b"z" * 999)
            assert len(temp_file._gathered) < 128 * 1024
        temp_file.finish()
        assert temp_file.size == 1_998_000
