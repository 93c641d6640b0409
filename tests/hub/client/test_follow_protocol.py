"""The stream protocol, against a scripted server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.hub.client.conftest import RunWithHub
from tests.servers.scripted_http import Cut, Hold, ScriptedResponse, ScriptedServer, Step, head, scripted

from onceward import errors
from onceward.hub.client import Following, Hub

START = head("HTTP/1.1 200 OK", "Content-Type: text/event-stream; charset=utf-8", "Connection: close")


def event(event_id: int) -> bytes:
    event_fields = {
        "event_id": event_id,
        "name": "test",
        "topic_id": None,
        "entity_type": "test",
        "entity_id": "x",
        "data": {"text": "ü\n\n"},
        "created_at": "2026-02-17T09:30:00.000000Z",
        "later": "more",
    }
    return f"id: {event_id}\ndata: {json.dumps(event_fields, ensure_ascii=False)}\n\n".encode()


def mark(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\nid: 99\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def handshake(epoch: str = "one", last: int = 9) -> bytes:
    return b"retry: 1000\n\n" + mark("hello_ok", replay_until=last, oldest_event_id=1, log_epoch=epoch)


def cut(*blocks: bytes) -> Cut:
    return Cut(START + b"".join(blocks))


def hold(*blocks: bytes) -> Hold:
    return Hold(START + b"".join(blocks))


def cursors(server: ScriptedServer) -> list[str | None]:
    return [seen.headers.get("last-event-id") for seen in server.seen]


def follow(
    run_with_hub: RunWithHub, steps: list[Step], count: int, **options: object
) -> tuple[list[int], list[str | None]]:
    """Return the ids of the first events, and the cursors of the requests."""

    async def use(hub: Hub) -> list[int]:
        async with hub.follow(**{"after": 0, **options}) as following:  # type: ignore[arg-type]
            return [(await anext(following)).event_id for _ in range(count)]

    with scripted(*steps) as server:
        return run_with_hub(server.url, use, deadline_seconds=20), cursors(server)


def test_half_an_event_is_ignored_and_sent_again(run_with_hub: RunWithHub) -> None:
    steps: list[Step] = [
        cut(handshake(), event(1), event(2)[:-1]),
        cut(handshake(), event(2)[:20]),
        hold(handshake(), event(2), event(3)),
    ]

    assert follow(run_with_hub, steps, 3) == ([1, 2, 3], ["0", "1", "1"])


def test_an_event_sent_twice_is_given_once(run_with_hub: RunWithHub) -> None:
    assert follow(run_with_hub, [hold(handshake(), event(1), event(1), event(2), event(1), event(3))], 3) == (
        [1, 2, 3],
        ["0"],
    )


def test_an_event_arrives_whole_in_any_pieces(run_with_hub: RunWithHub) -> None:
    stream = (handshake() + event(1) + b": ping 1\n\n" + event(2)).replace(b"\n", b"\r\n")
    chunked = START.replace(b"Connection: close", b"Transfer-Encoding: chunked")
    pieces = b"".join(b"1\r\n%b\r\n" % stream[at : at + 1] for at in range(len(stream)))

    assert follow(run_with_hub, [Hold(chunked + pieces)], 2) == ([1, 2], ["0"])


def test_silence_is_a_broken_connection(run_with_hub: RunWithHub) -> None:
    steps: list[Step] = [hold(handshake(), event(1)), hold(), hold(handshake(), event(2))]

    # On a busy machine, a shorter silence would end a connection whose first event is on its way.
    assert follow(run_with_hub, steps, 2, silence_seconds=1) == ([1, 2], ["0", "1", "1"])


def test_only_events_and_progress_move_the_cursor(run_with_hub: RunWithHub) -> None:
    progress = mark("progress", after_event_id=7)
    news = mark("something-new", after_event_id=8)
    steps: list[Step] = [
        cut(handshake(), event(1), progress, news),
        hold(handshake(), mark("caught_up", after_event_id=8), event(9)),
    ]

    assert follow(run_with_hub, steps, 2, topic_id="top_x") == ([1, 9], ["0", "7"])


def test_now_is_the_time_of_the_first_response(run_with_hub: RunWithHub) -> None:
    steps: list[Step] = [cut(handshake(last=5)), hold(handshake(last=7), event(6), event(7))]

    assert follow(run_with_hub, steps, 2, after=None) == ([6, 7], [None, "5"])


@pytest.mark.parametrize("code", ["stopping", "stalled"])
def test_a_stream_ended_by_the_hub_is_opened_again(code: str, run_with_hub: RunWithHub) -> None:
    steps: list[Step] = [
        cut(handshake(), event(1), mark("error", code=code, after_event_id=1)),
        hold(handshake(), event(2)),
    ]

    assert follow(run_with_hub, steps, 2) == ([1, 2], ["0", "1"])


def test_a_hub_that_is_temporarily_unavailable_is_retried(run_with_hub: RunWithHub) -> None:
    steps: list[Step] = [
        cut(handshake(), event(1)),
        ScriptedResponse(503),
        ScriptedResponse(502),
        Cut(),
        hold(handshake(), event(2)),
    ]

    assert follow(run_with_hub, steps, 2) == ([1, 2], ["0", "1", "1", "1", "1"])


def test_a_hub_that_is_down_for_longer_than_a_call_may_take_is_waited_for(run_with_hub: RunWithHub) -> None:
    async def use(hub: Hub) -> list[int]:
        return [(await anext(following)).event_id for following in [hub.follow(0)] for _ in range(2)]

    # A second is long enough for the first response, also on a busy machine. The second request gets none.
    with scripted(cut(handshake(), event(1)), Hold(), ScriptedResponse(503), hold(handshake(), event(2))) as server:
        assert run_with_hub(server.url, use, deadline_seconds=1) == [1, 2]
        assert cursors(server) == ["0", "1", "1", "1"]


REFUSED: dict[str, tuple[list[Step], type[errors.OncewardError]]] = {
    "another log": ([cut(handshake(), event(1)), hold(handshake("two"), event(2))], errors.OtherLog),
    "a gap": ([hold(handshake(), mark("gap", after_event_id=1, oldest_event_id=5), event(5))], errors.EventsLost),
    "a page": ([ScriptedResponse(200, {"Content-Type": "text/html"}, b"<html>")], errors.UnexpectedAnswer),
    "not JSON": ([hold(handshake(), b"data: {\n\n")], errors.UnexpectedAnswer),
    "not an event": ([hold(handshake(), b"data: {}\n\n")], errors.UnexpectedAnswer),
    "not an object": ([hold(handshake(), b"event: gap\ndata: 1\n\n")], errors.UnexpectedAnswer),
    "no hello": ([hold(event(1))], errors.UnexpectedAnswer),
    "revoked": ([cut(handshake(), event(1)), ScriptedResponse(401)], errors.Unauthorized),
}


@pytest.mark.parametrize(("steps", "kind"), REFUSED.values(), ids=REFUSED.keys())
def test_an_error_that_cannot_be_resumed_is_raised(
    steps: list[Step], kind: type[errors.OncewardError], run_with_hub: RunWithHub
) -> None:
    with pytest.raises(kind):
        follow(run_with_hub, steps, 2, after=None)


def test_a_raised_gap_is_raised_again_until_it_is_handled(run_with_hub: RunWithHub) -> None:
    """Events after a gap are not returned as if nothing were missing."""
    gap = hold(handshake(), event(1), mark("gap", after_event_id=1, oldest_event_id=5), event(5))

    async def use(hub: Hub) -> list[int | None]:
        following = hub.follow(0)
        await anext(following)
        found = []
        for _ in range(2):
            with pytest.raises(errors.EventsLost):
                await anext(following)
            found.append(following.cursor)
        return found

    with scripted(gap, hold(handshake(), mark("gap", after_event_id=1, oldest_event_id=5), event(5))) as server:
        assert run_with_hub(server.url, use) == [1, 1]


def test_a_gap_can_be_skipped_once_and_is_logged(run_with_hub: RunWithHub, caplog: pytest.LogCaptureFixture) -> None:
    gap = mark("gap", after_event_id=1, oldest_event_id=5)
    steps: list[Step] = [cut(handshake(), event(1), gap), hold(handshake(), event(5))]

    assert follow(run_with_hub, steps, 2, on_gap="continue") == ([1, 5], ["0", "4"])
    (lost,) = (record for record in caplog.records if record.msg == "events_lost")
    assert (vars(lost)["first_event_id"], vars(lost)["last_event_id"]) == (2, 4)


def test_the_cursor_only_grows(run_with_hub: RunWithHub) -> None:
    marks = [mark("progress", after_event_id=at) for at in (5, 3)]

    assert follow(run_with_hub, [cut(handshake(), event(1), *marks), hold(handshake(), event(6))], 2) == (
        [1, 6],
        ["0", "5"],
    )


def test_pauses_grow_while_streams_break_at_once_and_reset_after_an_event() -> None:
    stream = [*[handshake()] * 7, handshake() + event(1), handshake(), handshake() + event(2)]
    pauses: list[float] = []

    async def connect(_after: int | None) -> httpx.Response:
        return httpx.Response(200, content=_pieces(stream.pop(0)))

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def follow() -> list[int]:
        following = Following(connect, 0, sleep=sleep, draw=lambda: 1.0)
        return [(await anext(following)).event_id for _ in range(2)]

    assert asyncio.run(follow()) == [1, 2]
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 0.2, 0.4]


async def _pieces(stream: bytes) -> AsyncIterator[bytes]:
    yield stream
