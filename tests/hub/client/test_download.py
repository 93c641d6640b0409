"""Downloads with late, broken or wrong responses."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from pathlib import Path

import pytest
from tests.hub.client.conftest import RunWithHub
from tests.servers.scripted_http import Cut, ScriptedResponse, Step, head, scripted

from onceward import errors
from onceward.hub.client import BlockingHub, Downloaded, Hub

# More than the client buffers of a response.
CONTENT = os.urandom(2 * 1024 * 1024)
ETAG = f'"sha256-{hashlib.sha256(CONTENT).hexdigest()}"'
HALF = len(CONTENT) // 2


def whole_head(etag: str = ETAG, size: int = len(CONTENT)) -> bytes:
    return head("HTTP/1.1 200 OK", f"Content-Length: {size}", f"ETag: {etag}")


def part_head(start: int, etag: str = ETAG) -> bytes:
    size = len(CONTENT)
    lines = f"Content-Length: {size - start}", f"Content-Range: bytes {start}-{size - 1}/{size}", f"ETag: {etag}"
    return head("HTTP/1.1 206 Partial Content", *lines)


def download(run_with_hub: RunWithHub, *steps: Step, transfer_seconds: float = 60.0) -> tuple[bytes, list[str | None]]:
    """Return the received bytes, and the requested ranges."""
    file = io.BytesIO()

    async def use(hub: Hub) -> Downloaded:
        return await hub.download("at-1", file)

    with scripted(*steps) as server:
        done = run_with_hub(server.url, use, transfer_seconds=transfer_seconds)
        assert done == Downloaded(len(CONTENT), ETAG[8:-1])
        assert {seen.headers.get("if-range") for seen in server.seen[1:]} <= {ETAG}
        return file.getvalue(), [seen.headers.get("range") for seen in server.seen]


@pytest.mark.parametrize(
    "rest",
    [
        Cut(part_head(HALF) + CONTENT[HALF:]),
        Cut(part_head(HALF - 10) + CONTENT[HALF - 10 :]),
        Cut(whole_head() + CONTENT),
    ],
    ids=["from-there", "from-earlier", "from-the-beginning"],
)
def test_a_cut_download_continues_whatever_range_is_sent(rest: Cut, run_with_hub: RunWithHub) -> None:
    assert download(run_with_hub, Cut(whole_head() + CONTENT[:HALF]), rest) == (CONTENT, [None, f"bytes={HALF}-"])


def test_a_hub_that_is_down_during_a_download_is_waited_for(run_with_hub: RunWithHub) -> None:
    steps: list[Step] = [
        Cut(whole_head() + CONTENT[:HALF]),
        ScriptedResponse(503),
        Cut(),
        Cut(part_head(HALF) + CONTENT[HALF:]),
    ]

    assert download(run_with_hub, *steps)[0] == CONTENT


WRONG: dict[str, list[Step]] = {
    "other bytes": [Cut(whole_head() + bytes(len(CONTENT)))],
    "other content meanwhile": [
        Cut(whole_head() + CONTENT[:HALF]),
        Cut(part_head(HALF, '"sha256-0"') + CONTENT[HALF:]),
    ],
    "another size meanwhile": [Cut(whole_head() + CONTENT[:HALF]), Cut(whole_head(size=HALF) + CONTENT[:HALF])],
    "a part from behind": [Cut(whole_head() + CONTENT[:HALF]), Cut(part_head(HALF + 1) + CONTENT[HALF + 1 :])],
    "no tag": [Cut(head("HTTP/1.1 200 OK", f"Content-Length: {len(CONTENT)}") + CONTENT)],
    "a page": [ScriptedResponse(200, {"Content-Type": "text/html"}, b"<html>")],
}


@pytest.mark.parametrize("steps", WRONG.values(), ids=WRONG.keys())
def test_a_download_with_the_wrong_bytes_leaves_no_file(
    steps: list[Step], run_with_hub: RunWithHub, tmp_path: Path
) -> None:
    async def use(hub: Hub) -> Downloaded:
        return await hub.download("at-1", tmp_path / "got")

    with scripted(*steps) as server, pytest.raises(errors.UnexpectedAnswer):
        run_with_hub(server.url, use)

    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_keeps_breaking_is_given_up(run_with_hub: RunWithHub, tmp_path: Path) -> None:
    async def use(hub: Hub) -> Downloaded:
        return await hub.download("at-1", tmp_path / "got")

    with scripted(*[Cut(whole_head() + CONTENT[:HALF])] * 50) as server, pytest.raises(errors.HubUnavailable):
        run_with_hub(server.url, use, transfer_seconds=0.2)

    assert list(tmp_path.iterdir()) == []


def test_a_closed_client_ends_a_transfer(tmp_path: Path) -> None:
    raised: list[BaseException] = []
    begun = threading.Event()

    def fetch() -> None:
        try:
            hub.download("at-1", tmp_path / "got", progress=lambda _done, _total: begun.set())
        except errors.StoreClosed as error:
            raised.append(error)

    with scripted(Cut(whole_head() + CONTENT[:HALF]), *[ScriptedResponse(503)] * 50) as server:
        hub = BlockingHub(server.url)
        fetching = threading.Thread(target=fetch)
        fetching.start()
        assert begun.wait(20)
        hub.close()
        fetching.join(20)

    assert len(raised) == 1
    assert list(tmp_path.iterdir()) == []
