"""Specifics of S3: servers that refuse, vanish or stall, large uploads in parts, and options of the URL."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hub.blobs.blob_io import put_bytes, read_all, stored_sizes
from tests.servers.s3 import S3Server
from tests.servers.s3_relay import S3Relay

from onceward.errors import InvalidInput, InvalidStoreUrl, StoreMisconfigured, StoreUnavailable
from onceward.hub.blobs.open import open_blobs
from onceward.hub.blobs.s3 import PART_BYTES, S3Blobs, open_s3, parse


@pytest.fixture
def open_here(s3_server: S3Server, tmp_path: Path) -> Callable[..., S3Blobs]:
    """Opens a store on the server, with more options in the URL."""
    url = s3_server.fresh_url()

    def opened(options: str = "") -> S3Blobs:
        return open_s3(url + options, tmp_path / "spool")

    return opened


def test_a_large_upload_is_sent_in_parts_and_read_back_completely(open_here: Callable[..., S3Blobs]) -> None:
    content = os.urandom(1024) * (2 * PART_BYTES // 1024 + 3)
    blobs = open_here()
    key = put_bytes(blobs, content)

    assert read_all(blobs, key) == content
    assert read_all(blobs, key, PART_BYTES - 5, PART_BYTES + 5) == content[PART_BYTES - 5 : PART_BYTES + 5]


@pytest.mark.parametrize("checksum", ["sha256", "crc64nvme", "none"])
def test_checksums_may_be_chosen(open_here: Callable[..., S3Blobs], checksum: str) -> None:
    blobs = open_here(f"&checksum={checksum}")

    assert read_all(blobs, put_bytes(blobs, b"summed")) == b"summed"


@pytest.mark.parametrize("copy_bytes_max", [0, 5 * 1024**3], ids=["through here", "by the server"])
def test_a_quarantined_blob_is_kept_aside(open_here: Callable[..., S3Blobs], copy_bytes_max: int) -> None:
    opened = open_here()
    blobs = S3Blobs(opened._store, opened._temp_files, "here", copy_bytes_max)
    key = put_bytes(blobs, b"suspicious")
    blobs.quarantine(key)

    import obstore  # noqa: PLC0415

    aside = [found["path"] for page in obstore.list(blobs._store, "quarantine") for found in page]
    assert len(aside) == 1
    assert bytes(obstore.get(blobs._store, aside[0]).bytes()) == b"suspicious"
    assert stored_sizes(blobs) == {}


def test_every_put_has_its_own_object(open_here: Callable[..., S3Blobs]) -> None:
    blobs = open_here()
    first, second = put_bytes(blobs, b"same", "bl-0000000a"), put_bytes(blobs, b"same", "bl-0000000b")
    blobs.discard(first)

    assert first != second
    assert read_all(blobs, second) == b"same"
    with pytest.raises(InvalidInput):
        put_bytes(blobs, b"same", "../x")


def every_call(blobs: S3Blobs) -> list[Callable[[], object]]:
    key = f"sha256/ab/ab/{'ab' * 32}/bl-00000001"
    return [
        lambda: put_bytes(blobs, b"x"),
        lambda: put_bytes(blobs, b"x" * (PART_BYTES + 1)),
        lambda: blobs.size(key),
        lambda: blobs.read(key),
        lambda: blobs.discard(key),
        lambda: blobs.quarantine(key),
        lambda: list(blobs.keys()),
    ]


def test_wrong_credentials_are_reported_without_showing_them(
    s3_server: S3Server, open_here: Callable[..., S3Blobs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")

    for call in every_call(open_here()):
        with pytest.raises(StoreUnavailable, match=r"SignatureDoesNotMatch|access denied") as raised:
            call()
        assert "a-wrong-secret" not in str(raised.value)
        assert s3_server.access_key_id not in str(raised.value)
        assert "Debug source" not in str(raised.value)
        assert raised.value.__cause__ is None


def test_a_missing_bucket_is_reported(s3_server: S3Server, tmp_path: Path) -> None:
    blobs = open_s3(s3_server.fresh_url().replace("//blobs/", "//nowhere/"), tmp_path)

    with pytest.raises(StoreUnavailable, match="NoSuchBucket") as raised:
        put_bytes(blobs, b"x")
    assert "Debug source" not in str(raised.value)
    with pytest.raises(StoreUnavailable, match="NoSuchBucket"):
        list(blobs.keys())
    with pytest.raises(StoreUnavailable, match="NoSuchBucket"):
        blobs.ping()


def test_a_wrong_clock_is_reported_with_what_to_do(s3_server: S3Server, tmp_path: Path) -> None:
    body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>too large</Message></Error>"
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
    with S3Relay(s3_server.port, lambda _: refusal) as relay:
        blobs = open_s3(s3_server.fresh_url(relay.endpoint), tmp_path)

        with pytest.raises(StoreMisconfigured, match="RequestTimeTooSkewed; set the clock of this machine"):
            blobs.ping()


def test_an_unreachable_server_is_reported_soon(s3_server: S3Server, tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        blobs = open_s3(s3_server.fresh_url(f"http://127.0.0.1:{nobody.getsockname()[1]}"), tmp_path)

        with pytest.raises(StoreUnavailable, match="no connection"):
            put_bytes(blobs, b"x")
    assert blobs.sweep_temporary(0).removed_count == 0


def test_a_server_that_stalls_is_given_up(s3_server: S3Server, tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        url = s3_server.fresh_url(f"http://127.0.0.1:{silent.getsockname()[1]}")
        blobs = open_s3(url, tmp_path, request_seconds_max=0.1)

        with pytest.raises(StoreUnavailable, match="timed out"):
            blobs.size(f"sha256/ab/ab/{'ab' * 32}/bl-00000001")


def test_missing_credentials_are_refused_at_once(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")

    with pytest.raises(InvalidStoreUrl, match="AWS_ACCESS_KEY_ID"):
        open_blobs(s3_server.fresh_url())


@pytest.mark.parametrize(
    "url",
    [
        "s3:",
        "s3:///prefix",
        "s3://key:secret-word@bucket/",
        "s3://bucket?secret_access_key=secret-word",
        "s3://bucket?endpoint=ftp://host",
        "s3://bucket?endpoint=http://user:secret-word@host",
        "s3://bucket?checksum=md5",
        "s3://bucket?credentials=secret-word",
        "s3://bucket?virtual_host=perhaps",
        "bucket",
        "gs://bucket",
        "file://host/path",
        "file:relative",
        "file:///path?option=1",
    ],
)
def test_an_invalid_url_is_refused_without_repeating_its_secrets(s3_server: S3Server, url: str) -> None:
    assert s3_server
    with pytest.raises(InvalidStoreUrl) as raised:
        open_blobs(url)
    assert "secret-word" not in str(raised.value)


def test_a_url_has_bucket_prefix_and_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://of.the.environment")
    location = parse("s3://bucket/some/prefix/?endpoint=http://127.0.0.1:9000&region=us-east-1")

    assert (location.bucket, location.prefix, location.endpoint) == ("bucket", "some/prefix", "http://127.0.0.1:9000")
    assert parse("s3://bucket").endpoint == "http://of.the.environment"


def test_the_upload_folder_must_belong_to_the_user(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    blobs = open_blobs(s3_server.fresh_url())
    with blobs.temp_file() as temp_file:
        assert temp_file.path.parent == tmp_path / f"onceward-spool-{os.geteuid()}"
    temp_file.path.parent.chmod(0o777)

    with pytest.raises(StoreUnavailable, match="must be a folder that belongs to this user"):
        open_blobs(s3_server.fresh_url())
