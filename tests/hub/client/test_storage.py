"""`hub.storage`: usage, and the progress of long operations, also over a connection that breaks."""

from __future__ import annotations

import io
import json

import pytest
from tests.hub.client.conftest import RunWithHub
from tests.servers.scripted_http import Cut, ScriptedResponse, head, scripted

from onceward.errors import TooLarge, UnexpectedAnswer
from onceward.hub.client import Hub, StorageCheck, StorageUsage

RESULT: dict[str, list[str]] = {"damaged": [], "wrong_counters": []}


def test_usage_and_checks_of_a_hub(url: str, run_with_hub: RunWithHub) -> None:
    seen: list[tuple[int, int]] = []

    async def use(hub: Hub) -> tuple[list[StorageUsage], int, StorageCheck]:
        task = await hub.create_task("storage")
        await hub.attach_file(task.id, io.BytesIO(b"12345"), "artifact")
        checked = await hub.storage.check(progress=lambda done, total: seen.append((done, total)))
        collected = await hub.storage.gc(progress=lambda done, total: seen.append((done, total)))
        assert collected.dry_run
        return await hub.storage.usage(), await hub.storage.quota(), checked

    usage, quota, checked = run_with_hub(url, use)

    assert [one.principal for one in usage] == ["local"]
    assert usage[0].stored_bytes >= 5
    assert quota == 0
    assert checked == StorageCheck((), ())
    assert seen
    assert all(0 <= done <= total for done, total in seen)


def lines(*objects: object) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)


PROGRESS = {"progress": {"done": 1, "total": 2, "unit": "bytes"}}
KIND = {"Content-Type": "application/x-ndjson"}
# A response that breaks off after its first line.
BROKEN = Cut(
    head("HTTP/1.1 200 OK", "Content-Type: application/x-ndjson", "Transfer-Encoding: chunked")
    + b"%x\r\n%s\r\n" % (len(lines(PROGRESS)), lines(PROGRESS))
)
PROBLEM = {"type": "t", "title": "t", "status": 413, "detail": "too much", "code": "payloadTooLarge"}


def test_a_broken_response_is_requested_again_with_the_same_key(run_with_hub: RunWithHub) -> None:
    seen: list[tuple[int, int]] = []
    finished = ScriptedResponse(200, KIND, lines(PROGRESS, {"result": RESULT}), with_length=False)

    async def use(hub: Hub) -> StorageCheck:
        return await hub.storage.check(progress=lambda done, total: seen.append((done, total)))

    with scripted(BROKEN, finished) as server:
        checked = run_with_hub(server.url, use)

    assert checked == StorageCheck((), ())
    assert seen == [(1, 2), (1, 2)]
    assert len(server.keys) == 2
    assert len(set(server.keys)) == 1


@pytest.mark.parametrize(
    ("body", "error"),
    [(lines(PROGRESS, {"problem": PROBLEM}), TooLarge), (b"not JSON\n", UnexpectedAnswer), (b"", UnexpectedAnswer)],
    ids=["problem", "broken", "empty"],
)
def test_a_failure_at_the_end_of_the_lines_is_raised(
    run_with_hub: RunWithHub, body: bytes, error: type[Exception]
) -> None:
    async def use(hub: Hub) -> None:
        await hub.storage.gc(progress=lambda _done, _total: None)

    with scripted(ScriptedResponse(200, KIND, body, with_length=False)) as server, pytest.raises(error):
        run_with_hub(server.url, use)
