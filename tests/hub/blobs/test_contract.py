"""The contract of every blob store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from tests.hub.blobs.blob_io import open_files, put_bytes, read_all, stored_sizes

from onceward.errors import InvalidInput
from onceward.hub.blobs import CHUNK_BYTES, BlobMissing, BlobStore

# S3 lists 1000 objects in one response: `make test-backends` asks for two.
LISTED = int(os.environ.get("ONCEWARD_LISTED", "20"))
LARGE = os.urandom(3 * CHUNK_BYTES + 17)


@pytest.mark.parametrize("content", [b"", b"x", LARGE], ids=["nothing", "one byte", "several pieces"])
def test_a_stored_blob_is_read_back_byte_for_byte(blobs: BlobStore, content: bytes) -> None:
    key = put_bytes(blobs, content)

    assert read_all(blobs, key) == content
    assert blobs.size(key) == len(content)


def test_a_ping_succeeds_on_a_working_store(blobs: BlobStore) -> None:
    blobs.ping()
    put_bytes(blobs, b"x")
    blobs.ping()


def test_a_key_is_derived_from_the_bytes(blobs: BlobStore) -> None:
    sha256 = hashlib.sha256(b"hello").hexdigest()

    key = put_bytes(blobs, b"hello", blob_id="bl-0000000a")

    assert key.startswith(f"sha256/{sha256[:2]}/{sha256[2:4]}/{sha256}")


def test_a_temp_file_counts_and_hashes_its_bytes_in_any_pieces(blobs: BlobStore) -> None:
    with blobs.temp_file() as temp_file:
        for start in range(0, len(LARGE), 100_003):
            temp_file.write(memoryview(LARGE)[start : start + 100_003])
        temp_file.write(b"")
        temp_file.finish()

        assert temp_file.size == len(LARGE)
        assert temp_file.sha256 == hashlib.sha256(LARGE).hexdigest()
        assert temp_file.path.read_bytes() == LARGE
    assert not temp_file.path.exists()


def test_an_unfinished_temp_file_cannot_be_put(blobs: BlobStore) -> None:
    with blobs.temp_file() as temp_file:
        temp_file.write(b"half")

        with pytest.raises(ValueError, match="finish"):
            blobs.put(temp_file, "bl-00000001")

    assert list(blobs.keys()) == []


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 1), (5, 5), (CHUNK_BYTES - 1, CHUNK_BYTES + 1), (7, None), (len(LARGE) - 1, len(LARGE) + 50), (len(LARGE), None)],
    ids=["first", "empty", "across pieces", "to the end", "past the end", "behind the end"],
)  # fmt: skip
def test_a_range_is_read_up_to_the_end_of_the_blob(blobs: BlobStore, start: int, end: int | None) -> None:
    key = put_bytes(blobs, LARGE)

    assert read_all(blobs, key, start, end) == LARGE[start:end]


def test_no_piece_is_larger_than_the_limit(blobs: BlobStore) -> None:
    key = put_bytes(blobs, LARGE)

    assert max(len(piece) for piece in blobs.read(key)) <= CHUNK_BYTES


def test_a_reader_that_stops_early_leaves_nothing_open(blobs: BlobStore) -> None:
    key = put_bytes(blobs, LARGE)
    before = open_files()

    for _ in range(20):
        blobs.read(key).close()
        reading = blobs.read(key)
        next(reading)
        reading.close()

    # A driver keeps a few connections open; a leak of forty readers would be more.
    assert open_files() <= before + 8


def test_missing_bytes_are_reported_at_once(blobs: BlobStore) -> None:
    key = put_bytes(blobs, b"there")
    missing = key.replace(hashlib.sha256(b"there").hexdigest(), "ab" * 32).replace(key[7:12], "ab/ab")

    assert blobs.size(missing) is None
    with pytest.raises(BlobMissing):
        blobs.read(missing)
    with pytest.raises(BlobMissing):
        blobs.read(missing, 5, 5)
    blobs.discard(missing)
    blobs.quarantine(missing)


STRANGE_KEYS = [
    "",
    "/etc/passwd",
    "sha256/../../lock",
    "sha256/ab/cd/../../../lock",
    "sha256/AB/AB/" + "AB" * 32,
    "trash/x",
    "sha256/ab/cd/" + "ef" * 32,
    "sha256/ab/ab/" + "ab" * 32 + "\n",
    "sha256/ab/ab/" + "ab" * 32 + "/../x",
]


@pytest.mark.parametrize("method", ["size", "read", "discard", "quarantine"])
def test_an_invalid_key_reaches_no_file(blobs: BlobStore, method: str) -> None:
    for key in STRANGE_KEYS:
        with pytest.raises(InvalidInput):
            getattr(blobs, method)(key)


def test_a_put_may_be_repeated(blobs: BlobStore) -> None:
    with blobs.temp_file() as temp_file:
        temp_file.write(b"again")
        temp_file.finish()
        first = blobs.put(temp_file, "bl-00000001")
        second = blobs.put(temp_file, "bl-00000001")

    assert first == second
    assert stored_sizes(blobs) == {first: 5}


def test_a_discarded_blob_is_gone_and_can_be_put_again(blobs: BlobStore) -> None:
    key = put_bytes(blobs, b"fleeting")
    blobs.discard(key)
    blobs.discard(key)

    assert blobs.size(key) is None
    assert stored_sizes(blobs) == {}
    assert put_bytes(blobs, b"fleeting") == key
    assert read_all(blobs, key) == b"fleeting"


def test_a_quarantined_blob_is_not_served_and_a_new_upload_repairs_it(blobs: BlobStore) -> None:
    key = put_bytes(blobs, b"damaged, says the check")
    blobs.quarantine(key)

    assert blobs.size(key) is None
    assert stored_sizes(blobs) == {}
    assert put_bytes(blobs, b"damaged, says the check") == key
    assert blobs.size(key) == 23


def test_ensure_restores_a_blob_that_gc_deleted_after_the_put(blobs: BlobStore) -> None:
    with blobs.temp_file() as temp_file:
        temp_file.write(b"raced")
        temp_file.finish()
        key = blobs.put(temp_file, "bl-00000001")
        blobs.discard(key)
        with blobs.lock():
            blobs.ensure(temp_file, key)

    assert read_all(blobs, key) == b"raced"


@pytest.mark.parametrize(
    ("damage", "verify"),
    [(b"short", False), (b"", False), (b"short", True), (b"changed but as long!", True)],
    ids=["cut", "emptied", "cut, verified", "same size, verified"],
)
def test_ensure_repairs_a_damaged_blob(
    blobs: BlobStore, overwrite: Callable[[str, bytes], None], damage: bytes, verify: bool
) -> None:
    content = b"twenty bytes of text"
    key = put_bytes(blobs, content)
    overwrite(key, damage)
    with blobs.temp_file() as temp_file:
        temp_file.write(content)
        temp_file.finish()
        with blobs.lock():
            blobs.ensure(temp_file, key, verify=verify)

        assert read_all(blobs, key) == content
    assert stored_sizes(blobs) == {key: len(content)}


def test_ensure_refuses_other_bytes_under_a_key(blobs: BlobStore) -> None:
    key = put_bytes(blobs, b"one thing")
    with blobs.temp_file() as temp_file:
        temp_file.write(b"another")
        temp_file.finish()

        with blobs.lock(), pytest.raises(InvalidInput):
            blobs.ensure(temp_file, key)


def test_every_blob_is_listed_with_its_size_and_time(blobs: BlobStore) -> None:
    sizes = {put_bytes(blobs, b"n" * size, blob_id=f"bl-{size:08}"): size for size in range(LISTED)}

    found = list(blobs.keys())

    assert {blob.key: blob.size for blob in found} == sizes
    now = datetime.now(UTC)
    assert all(abs(now - blob.modified) < timedelta(minutes=5) for blob in found)


def test_an_open_temp_file_is_not_swept_and_a_put_leaves_none(blobs: BlobStore) -> None:
    put_bytes(blobs, b"done")
    with blobs.temp_file() as temp_file:
        temp_file.write(b"slow")

        assert blobs.sweep_temporary(0).removed_count == 0
        assert temp_file.path.exists()
    assert blobs.sweep_temporary(0).removed_count == 0


def test_threads_put_equal_and_different_bytes_concurrently(blobs: BlobStore) -> None:
    contents = [b"same"] * 12 + [b"%d" % number for number in range(12)]

    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda content: put_bytes(blobs, content), contents))

    assert [read_all(blobs, key) for key in keys] == contents
    assert stored_sizes(blobs).keys() == set(keys)
    assert len(stored_sizes(blobs)) == 13
