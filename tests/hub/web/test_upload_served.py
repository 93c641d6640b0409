"""Uploads and downloads over real connections to a separate hub process: memory, and clients that disconnect."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse
from pathlib import Path

import httpx
import pytest
from tests.hub.hub_process import RunningHub, running_hub
from tests.hub.tasks_hub import UPLOADS, form
from tests.waiting import until

MEGABYTE = 1024 * 1024
LIMIT = 60 * MEGABYTE
LARGE = 50 * MEGABYTE
GROWTH_BYTES_MAX = 32 * MEGABYTE
SECONDS_MAX = 20.0
BOUNDARY = "a-boundary"
HEAD = form([("kind", "artifact"), ("content", b"", "large.bin")], BOUNDARY)[0].removesuffix(
    f"\r\n--{BOUNDARY}--\r\n".encode()
)
TAIL = f"\r\n--{BOUNDARY}--\r\n".encode()
KIND = f"multipart/form-data; boundary={BOUNDARY}"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uploads") / "data"


@pytest.fixture(scope="module")
def hub(data_dir: Path) -> Iterator[RunningHub]:
    # Keyed uploads are spooled where the system has its temporary files.
    env = {"ONCEWARD_ATTACHMENTS__MAX_UPLOAD_BYTES": str(LIMIT), "TMPDIR": str(data_dir.parent)}
    with running_hub(data_dir=data_dir, env=env) as hub:
        httpx.post(f"{hub.url}/v1/tasks", json={"id": "t1", "title": "A task"}).raise_for_status()
        # The first one imports and opens what every other one uses.
        body, headers = form([("kind", "artifact"), ("content", b"x" * MEGABYTE, "a.bin")])
        for key in ({}, {"Idempotency-Key": "first"}):
            httpx.post(f"{hub.url}{UPLOADS}", content=body, headers={**headers, **key}).raise_for_status()
        yield hub


def pieces(count: int) -> Iterator[bytes]:
    yield HEAD
    for number in range(count):
        yield bytes([number % 251]) * MEGABYTE
    yield TAIL


def peak_memory(hub: RunningHub) -> int:
    """Return the peak memory of the process, in bytes."""
    status = Path(f"/proc/{hub.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


def connected(hub: RunningHub) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", hub.port), SECONDS_MAX)
    connection.settimeout(SECONDS_MAX)
    return connection


def send_request(*headers: str) -> bytes:
    lines = [f"POST {UPLOADS} HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {KIND}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def temp_files(data_dir: Path) -> list[Path]:
    return list((data_dir / "blobs" / "tmp").iterdir())


def count(hub: RunningHub) -> int:
    return len(httpx.get(f"{hub.url}{UPLOADS}").json()["attachments"])


@pytest.mark.parametrize("key", [None, "large"], ids=["without-key", "with-key"])
def test_a_large_upload_and_its_download_need_constant_memory(hub: RunningHub, data_dir: Path, key: str | None) -> None:
    before = peak_memory(hub)
    headers = {"content-type": KIND, **({} if key is None else {"Idempotency-Key": key})}
    answer = httpx.post(f"{hub.url}{UPLOADS}", content=pieces(LARGE // MEGABYTE), headers=headers, timeout=60)

    assert answer.status_code == 201, answer.text
    assert answer.json()["size_bytes"] == LARGE
    with httpx.stream("GET", f"{hub.url}/v1/attachments/{answer.json()['id']}/content") as download:
        received = sum(len(piece) for piece in download.iter_raw())
    assert received == LARGE
    assert peak_memory(hub) - before < GROWTH_BYTES_MAX
    assert temp_files(data_dir) == []


@pytest.mark.parametrize("key", ["", "Idempotency-Key: gone\r\n"], ids=["without-key", "with-key"])
def test_a_client_that_disconnects_leaves_nothing(hub: RunningHub, data_dir: Path, key: str) -> None:
    attached = count(hub)
    with connected(hub) as connection:
        connection.sendall(send_request(f"{key}Content-Length: {LARGE}") + HEAD)
        for _ in range(3):
            connection.sendall(b"x" * MEGABYTE)
        if not key:
            until(lambda: any(file.stat().st_size for file in temp_files(data_dir)), "nothing of it was kept")
    until(lambda: temp_files(data_dir) == [], "its bytes are still there")

    assert count(hub) == attached
    assert list((data_dir / "blobs" / "trash").iterdir()) == []


def test_an_upload_over_the_limit_is_refused_early_and_the_connection_ends_cleanly(
    hub: RunningHub, data_dir: Path
) -> None:
    attached = count(hub)
    with connected(hub) as connection:
        # Announced: nothing needs to be sent at all.
        connection.sendall(send_request(f"Content-Length: {2 * LIMIT}") + HEAD)
        assert _read_status(connection) == 413
    with connected(hub) as connection:
        # The size is not declared: the refusal comes when the limit is reached, although the client continues to send.
        connection.sendall(send_request("Transfer-Encoding: chunked"))
        for data in (HEAD, *[b"x" * MEGABYTE] * (LIMIT // MEGABYTE + 10)):
            connection.sendall(b"%x\r\n%b\r\n" % (len(data), data))
        assert _read_status(connection) == 413
        # Which may then ask for something else.
        connection.sendall(b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert _read_status(connection) == 200
    until(lambda: temp_files(data_dir) == [], "its bytes are still there")
    assert count(hub) == attached


def test_a_bad_upload_is_refused_before_its_end_and_the_next_request_works(hub: RunningHub) -> None:
    with httpx.Client(base_url=hub.url) as client:
        wrong = client.post(UPLOADS, content=b"x" * 300_000, headers={"content-type": KIND})
        fine = client.get("/v1/tasks/t1")

    assert (wrong.status_code, fine.status_code) == (400, 200)


def test_an_aborted_download_leaves_nothing_open(hub: RunningHub) -> None:
    made = httpx.post(f"{hub.url}{UPLOADS}", content=pieces(8), headers={"content-type": KIND}, timeout=60).json()

    def opened() -> int:
        found = 0
        for one in Path(f"/proc/{hub.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found += made["sha256"] in str(one.readlink())
        return found

    for _ in range(3):
        with connected(hub) as connection:
            connection.sendall(f"GET /v1/attachments/{made['id']}/content HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
    until(lambda: opened() == 0, "its file is still open")


def _read_status(connection: socket.socket) -> int:
    """Return the status. The whole response is read, so that the next one on the connection can be read."""
    with HTTPResponse(connection) as response:
        response.begin()
        response.read()
        return response.status
