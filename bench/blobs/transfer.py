"""Uploads and downloads through a hub, and the memory that the hub needs for them.

The hub process stores blobs in a folder. The client sends and reads one piece at a time and uses no disk. Each small
upload has a separate connection.
"""

from __future__ import annotations

import http.client
import os
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.hub.hub_process import SERVE, RunningHub, running_hub

from bench.blobs.put import MANY, SMALL_BYTES

PIECE = os.urandom(1024 * 1024)
BOUNDARY = "a-boundary-that-does-not-occur"
HEAD = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="kind"\r\n\r\nartifact\r\n--{BOUNDARY}\r\n'
HEAD += 'Content-Disposition: form-data; name="content"; filename="x.bin"\r\n\r\n'
TAIL = f"\r\n--{BOUNDARY}--\r\n"


@dataclass(frozen=True, slots=True)
class Transferred:
    """MiB/s of one large file, small uploads per second by number of clients, and the growth of the hub's memory."""

    mib: int
    upload: float
    download: float
    second_half: float
    small: dict[int, float]
    grown_mib: float


def upload(port: int, pieces: int, piece: bytes = PIECE, mark: bytes = b"") -> str:
    """Upload these bytes and return the id of the new attachment."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    size = len(HEAD) + len(mark) + pieces * len(piece) + len(TAIL)
    connection.putrequest("POST", "/v1/tasks/t1/attachments")
    connection.putheader("Content-Type", f"multipart/form-data; boundary={BOUNDARY}")
    connection.putheader("Content-Length", str(size))
    connection.endheaders()
    connection.send(HEAD.encode() + mark)
    for _ in range(pieces):
        connection.send(piece)
    connection.send(TAIL.encode())
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    assert response.status == 201, body
    found = re.search(r'"id":"(at-\w+)"', body)
    assert found is not None
    return found[1]


def download(port: int, attachment_id: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", f"/v1/attachments/{attachment_id}/content", headers=headers)
    response = connection.getresponse()
    size = 0
    while piece := response.read(1024 * 1024):
        size += len(piece)
    connection.close()
    return size


def peak_mib(hub: RunningHub) -> float:
    status = Path(f"/proc/{hub.process.pid}/status").read_text("utf-8")
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


def measure(scratch: Path, mib: int, small_count: int) -> Transferred:
    limit = {"ONCEWARD_ATTACHMENTS__MAX_UPLOAD_BYTES": str(4 * 1024**3)}
    with (
        tempfile.TemporaryDirectory(dir=scratch) as folder,
        running_hub(data_dir=Path(folder) / "data", env=limit, command=SERVE) as hub,
    ):
        connection = http.client.HTTPConnection("127.0.0.1", hub.port)
        connection.request("POST", "/v1/tasks", '{"id":"t1","title":"T"}', {"Content-Type": "application/json"})
        assert connection.getresponse().status == 201
        connection.close()
        upload(hub.port, 1)
        before, began = peak_mib(hub), time.perf_counter()
        attachment_id = upload(hub.port, mib)
        sent = time.perf_counter() - began
        grown = peak_mib(hub) - before
        began = time.perf_counter()
        assert download(hub.port, attachment_id, {}) == mib * 1024**2
        whole = time.perf_counter() - began
        began = time.perf_counter()
        half = download(hub.port, attachment_id, {"Range": f"bytes={mib * 512 * 1024}-"})
        part = time.perf_counter() - began
        small = {clients: _small(hub.port, clients, small_count) for clients in (1, MANY)}
    return Transferred(mib, mib / sent, mib / whole, half / 1024**2 / part, small, grown)


def _small(port: int, clients: int, count: int) -> float:
    content = os.urandom(SMALL_BYTES - 16)
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        done = list(threads.map(lambda _: upload(port, 1, content, os.urandom(16)), range(count)))
    assert len(set(done)) == count
    return count / (time.perf_counter() - began)
