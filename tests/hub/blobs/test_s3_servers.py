"""A short tour of each further S3 server. `make test-backends` runs all tests of S3 on them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError
from tests.hub.blobs.blob_io import put_bytes, read_all, stored_sizes
from tests.servers.s3 import S3Server, start_s3

from onceward.errors import StoreMisconfigured
from onceward.hub.blobs import BlobMissing
from onceward.hub.blobs.s3 import PART_BYTES, S3Blobs, open_s3
from onceward.hub.blobs.s3_owner import _create


@pytest.fixture(scope="module", params=["seaweedfs", "moto"])
def other_s3_server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    with start_s3(request.param) as server:
        yield server


@pytest.fixture(autouse=True)
def credentials(other_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in other_s3_server.environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def blobs(other_s3_server: S3Server, tmp_path: Path) -> S3Blobs:
    return open_s3(other_s3_server.fresh_url(), tmp_path)


def test_a_blob_is_stored_read_listed_set_aside_and_deleted(blobs: S3Blobs) -> None:
    blobs.ping()
    key, other = put_bytes(blobs, b"0123456789", "one"), put_bytes(blobs, b"", "two")

    assert [read_all(blobs, key), read_all(blobs, key, 2, 5), read_all(blobs, key, 8, 99)] == [
        b"0123456789",
        b"234",
        b"89",
    ]
    assert stored_sizes(blobs) == {key: 10, other: 0}
    blobs.quarantine(key)
    blobs.discard(other)
    blobs.discard(other)
    assert stored_sizes(blobs) == {}
    assert blobs.size(key) is None
    with pytest.raises(BlobMissing):
        blobs.read(key)


def test_a_range_is_fetched_without_the_whole_object(blobs: S3Blobs) -> None:
    """Only for a server that answers a range with 200, each read fetches everything up to its end."""
    key = put_bytes(blobs, b"0123456789")

    assert read_all(blobs, key, 2, 5) == b"234"
    assert blobs._sends_parts


def test_a_large_upload_is_sent_in_parts(blobs: S3Blobs) -> None:
    content = os.urandom(1024) * (PART_BYTES // 1024 + 1)
    key = put_bytes(blobs, content)

    assert str(obstore.head(blobs._store, key)["e_tag"]).endswith('-2"')
    assert read_all(blobs, key) == content
    assert read_all(blobs, key, PART_BYTES - 5, PART_BYTES + 5) == content[PART_BYTES - 5 : PART_BYTES + 5]


@pytest.mark.parametrize("checksum", ["sha256", "crc64nvme", "none"])
def test_checksums_may_be_chosen(other_s3_server: S3Server, tmp_path: Path, checksum: str) -> None:
    blobs = open_s3(f"{other_s3_server.fresh_url()}&checksum={checksum}", tmp_path)

    assert read_all(blobs, put_bytes(blobs, b"summed")) == b"summed"


def test_a_conditional_write_keeps_the_first_owner(blobs: S3Blobs) -> None:
    assert blobs.owner("first") == "first"
    with pytest.raises(AlreadyExistsError):
        obstore.put(blobs._store, "owner", b"second", mode="create")
    _create(blobs._store, "second")
    assert blobs.owner("third") == "first"


def test_a_missing_bucket_and_a_wrong_key_are_misconfigurations(
    other_s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = open_s3(other_s3_server.fresh_url().replace("//blobs/", "//nowhere/"), tmp_path)
    with pytest.raises(StoreMisconfigured, match="NoSuchBucket"):
        nowhere.ping()
    with pytest.raises(StoreMisconfigured, match="NoSuchBucket"):
        put_bytes(nowhere, b"x")

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
    refused = open_s3(other_s3_server.fresh_url(), tmp_path)
    with pytest.raises(StoreMisconfigured, match="SignatureDoesNotMatch") as raised:
        put_bytes(refused, b"x")
    assert "a-wrong-secret" not in str(raised.value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(StoreMisconfigured, match=r"InvalidAccessKeyId|access denied"):
        open_s3(other_s3_server.fresh_url(), tmp_path).ping()
