"""A recorded stream is read back completely, and from after each event, with generated and custom ids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.http.response.sse_reader import ReceivedEvent, read

from onceward.core.claim import Claim
from onceward.http.keyed.rules import Rule
from onceward.http.response.recorded_stream import RecordedStream
from onceward.http.response.recorder import ResponseRecorder
from onceward.http.response.sse import EVENT_BYTES_MAX, EventSplitter
from onceward.http.stored.codec import ResponseCodec
from onceward.http.stored.encryption import Encryption
from onceward.http.stored.policy import keeps_status
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore

PLAIN, ENCRYPTED = ResponseCodec(frozenset()), ResponseCodec(frozenset(), Encryption([bytes(32)]))
RULE = Rule(store=True, max_response_bytes=64 * 2**20)
HEADERS = ((b"content-type", b"text/event-stream"),)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(MemoryStore()) as ledger:
        yield ledger


async def record(ledger: Ledger, codec: ResponseCodec, stream: bytes, *, end: bool = True) -> tuple[Claim, bytes]:
    """Record a stream. Return the claim, and what the first client was sent."""
    claim = await ledger.begin("s", "k", repeatable=True)
    assert isinstance(claim, Claim)
    recorder = ResponseRecorder(ledger, codec, claim, RULE, keeps_status)
    recorder.begin(200, HEADERS, events=True, live=True)
    events = EventSplitter()
    sent = b""
    for start in range(0, len(stream), 50_000):
        sent += b"".join([recorder.add_event(block) for block in events.feed(stream[start : start + 50_000])])
        await recorder.append()
    sent += b"".join([recorder.add_event(block) for block in filter(None, [events.finish()])])
    await (recorder.finish(None) if end else recorder.append())
    return claim, sent


async def replayed(ledger: Ledger, codec: ResponseCodec, last_event_id: str = "") -> bytes:
    entry = await ledger.read("s", "k")
    assert entry is not None
    recorded = RecordedStream(ledger, codec, entry)
    assert await recorded.head() == (200, HEADERS)
    if last_event_id:
        assert await recorded.resume(last_event_id)
    whole = b""
    while pieces := await recorded.page():
        whole += b"".join(pieces)
    assert not recorded.interrupted
    return whole


def events_of(sizes: list[int], ids: str, end: str) -> bytes:
    """Return events of these sizes, most of it in their first line. `ids` is `first`, `last` or empty."""
    text = ""
    for number, size in enumerate(sizes):
        own = f"id: own-{number}{end}"
        data = "data: " + "x" * size + end + f"data: {number}{end}"
        text += own * (ids == "first") + data + own * (ids == "last") + end
    return text.encode()


@pytest.mark.parametrize("codec", [PLAIN, ENCRYPTED], ids=["plain", "sealed"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("ids", ["", "first", "last"], ids=["ours", "own-first", "own-last"])
@pytest.mark.parametrize(
    "sizes",
    [[1, 2, 3], [70_000, 5, 200_000, 5], [5] * 100, [5, EVENT_BYTES_MAX + 100_000, 5]],
    ids=["small", "large", "many", "oversized"],
)
def test_a_client_gets_the_whole_stream_and_after_each_event_the_rest(
    ledger: Ledger, codec: ResponseCodec, end: str, ids: str, sizes: list[int]
) -> None:
    stream = events_of(sizes, ids, end)

    async def main() -> None:
        _, sent = await record(ledger, codec, stream)
        seen = read(sent)
        assert [event.data for event in seen] == [event.data for event in read(stream)]
        assert await replayed(ledger, codec) == sent
        for number, event in list(enumerate(seen))[:: max(1, len(seen) // 5)]:
            rest = seen[number + 1 :]
            if not ids and len(seen[number].data) > EVENT_BYTES_MAX:
                rest = seen[number:]  # too large to be numbered: it comes again
            assert read(await replayed(ledger, codec, event.last_id)) == resumed(rest, ids)

    asyncio.run(main())


def resumed(events: list[ReceivedEvent], ids: str) -> list[ReceivedEvent]:
    """Return the events as a client sees them that reconnects: a first part of a split event has no id."""
    if not ids and events and len(events[0].data) > EVENT_BYTES_MAX:
        return [ReceivedEvent(events[0].kind, events[0].data, ""), *events[1:]]
    return events


@given(st.lists(st.tuples(st.sampled_from(["a", "ä", "x.y", "1.2.3", "id: 5", "00"]), st.integers(0, 30)), max_size=5))
def test_custom_event_ids_in_any_spelling_resume_after_their_event(events: list[tuple[str, int]]) -> None:
    stream = "".join(f"id: {name}-{number}\ndata: {number}\n\n" for number, (name, _) in enumerate(events)).encode()

    async def main() -> None:
        with Ledger(MemoryStore()) as ledger:
            _, sent = await record(ledger, PLAIN, stream)
            seen = read(sent)
            for number, event in enumerate(seen):
                header = event.last_id.encode().decode("latin-1")  # as servers hand headers over
                assert read(await replayed(ledger, PLAIN, header)) == seen[number + 1 :]

    asyncio.run(main())


@pytest.mark.parametrize("codec", [PLAIN, ENCRYPTED], ids=["plain", "sealed"])
@pytest.mark.parametrize("version", [1, 5], ids=["this attempt", "another"])
@pytest.mark.parametrize("step", [0.5, 1, 2])
def test_custom_ids_that_look_like_generated_ones_resume_after_their_event(
    ledger: Ledger, codec: ResponseCodec, version: int, step: float
) -> None:
    stream = "".join(f"id: {version}.{int(n * step)}\ndata: {n}\n\n" for n in range(2, 41, 2)).encode()

    async def main() -> None:
        claim, sent = await record(ledger, codec, stream)
        assert claim.version == 1
        seen = read(sent)
        for number, event in enumerate(seen):
            assert read(await replayed(ledger, codec, event.last_id)) == seen[number + 1 :]

    asyncio.run(main())


def test_custom_ids_that_look_like_generated_ones_resume_in_a_running_stream(ledger: Ledger) -> None:
    stream = b"".join(b"id: 1.%d00\ndata: %d\n\n" % (number, number) for number in range(1, 4))

    async def main() -> None:
        claim, _ = await record(ledger, PLAIN, stream, end=False)
        recorded = RecordedStream(ledger, PLAIN, claim.entry)
        await recorded.head()

        assert await recorded.resume("1.200")
        assert b"".join(await recorded.page()) == b"id: 1.300\ndata: 3\n\n"

    asyncio.run(main())


def test_an_event_that_is_not_recorded_yet_is_not_sent_again_to_a_client_that_has_it(ledger: Ledger) -> None:
    """It is sent to its client before it is recorded in the ledger."""

    async def main() -> None:
        claim, _ = await record(ledger, PLAIN, events_of([1, 2], ids="", end="\n"), end=False)
        recorded = RecordedStream(ledger, PLAIN, claim.entry)
        await recorded.head()
        assert await recorded.resume("1.3")
        await ledger.append(claim, 4, [b"id: 1.3\ndata: 3\n\n", b"id: 1.4\ndata: 4\n\n"])

        assert await recorded.page() == [b"id: 1.4\ndata: 4\n\n"]

    asyncio.run(main())


@pytest.mark.parametrize("wanted", ["own-7", "1.0", "1.2", "1.99"])
def test_with_an_unknown_id_everything_is_sent(ledger: Ledger, wanted: str) -> None:
    async def main() -> None:
        _, sent = await record(ledger, PLAIN, events_of([1, 2], ids="last", end="\n"))

        assert await replayed(ledger, PLAIN, wanted) == sent

    asyncio.run(main())


def test_an_id_of_an_earlier_attempt_resumes_from_the_beginning(ledger: Ledger) -> None:
    async def main() -> None:
        claim, _ = await record(ledger, PLAIN, events_of([1], ids="", end="\n"))
        recorded = RecordedStream(ledger, PLAIN, claim.entry)

        assert await recorded.resume(f"{claim.version}.1")
        assert not await recorded.resume(f"{claim.version + 1}.1")

    asyncio.run(main())


def test_a_stream_whose_producer_gave_up_is_interrupted(ledger: Ledger) -> None:
    async def main() -> None:
        claim, sent = await record(ledger, PLAIN, events_of([1, 2], ids="", end="\n"), end=False)
        recorded = RecordedStream(ledger, PLAIN, claim.entry)
        await recorded.head()
        assert b"".join(await recorded.page()) == sent
        await ledger.lapse(claim)

        assert await recorded.page() == []
        assert recorded.interrupted

    asyncio.run(main())


def test_a_missing_recording_has_no_head(ledger: Ledger) -> None:
    async def main() -> None:
        claim = await ledger.begin("s", "k", repeatable=True)
        assert isinstance(claim, Claim)

        assert await RecordedStream(ledger, PLAIN, claim.entry).head() is None

    asyncio.run(main())
