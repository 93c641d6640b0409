"""Uploads and downloads through a hub, in MB/s, and how much memory the hub needs for them.

    python -m bench.tasks.transfer [MiB]

A hub process on a folder, a client that sends from and reads into memory, piece by piece. Small uploads: 16 clients.
"""

from __future__ import annotations

import http.client
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.hub.process import RunningHub, running_hub

PIECE = os.urandom(1024 * 1024)
BOUNDARY = "a-boundary-that-does-not-occur"
HEAD = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="kind"\r\n\r\nartifact\r\n--{BOUNDARY}\r\n'
HEAD += 'Content-Disposition: form-data; name="content"; filename="x.bin"\r\n\r\n'
TAIL = f"\r\n--{BOUNDARY}--\r\n"
SMALL_BYTES, SMALL_COUNT, CLIENTS = 4096, 400, 16


def upload(port: int, pieces: int, piece: bytes = PIECE, mark: bytes = b"") -> str:
    """The id of a new attachment with these bytes."""
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
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    assert answer.status == 201, body
    found = re.search(r'"id":"(at-\w+)"', body)
    assert found is not None
    return found[1]


def download(port: int, attachment_id: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", f"/v1/attachments/{attachment_id}/content", headers=headers)
    answer = connection.getresponse()
    size = 0
    while piece := answer.read(1024 * 1024):
        size += len(piece)
    connection.close()
    return size


def peak_mib(hub: RunningHub) -> float:
    status = Path(f"/proc/{hub.process.pid}/status").read_text("utf-8")
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


def measure(mib: int) -> dict[str, str]:
    with (
        tempfile.TemporaryDirectory(dir=Path(__file__).parents[2] / "build") as folder,
        running_hub(
            data_dir=Path(folder) / "data", env={"ONCEWARD_ATTACHMENTS__MAX_UPLOAD_BYTES": str(4 * 1024**3)}
        ) as hub,
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
        rates = [_small(hub.port, clients) for clients in (1, CLIENTS)]
        return {
            f"upload of {mib} MiB": f"{mib / sent:,.0f} MiB/s",
            "download, whole": f"{mib / whole:,.0f} MiB/s",
            "download, second half by Range": f"{half / 1024**2 / part:,.0f} MiB/s",
            f"uploads of {SMALL_BYTES} bytes, one client": f"{rates[0]:,.0f}/s",
            f"uploads of {SMALL_BYTES} bytes, {CLIENTS} clients": f"{rates[1]:,.0f}/s",
            f"growth of the hub's memory, {mib} MiB uploaded": f"{grown:.1f} MiB",
        }


def _small(port: int, clients: int) -> float:
    content = os.urandom(SMALL_BYTES - 16)
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        done = list(threads.map(lambda _: upload(port, 1, content, os.urandom(16)), range(SMALL_COUNT)))
    assert len(set(done)) == SMALL_COUNT
    return SMALL_COUNT / (time.perf_counter() - began)


def main() -> None:
    for name, figure in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 2048).items():
        print(f"{name:50}{figure:>16}")


if __name__ == "__main__":
    main()
