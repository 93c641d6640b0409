"""The newest events in memory: what the ring contains, what it has dropped, and that it never claims more."""

from __future__ import annotations

import random

import pytest

from onceward.hub.events.framing import BLOCKS, FRAMES, EncodedEvent, texts
from onceward.hub.events.log import Event, Filter
from onceward.hub.events.ring import WRITE_BYTES_MAX, Ring

ALL = Filter()


def encoded(event_id: int, *, size: int = 10, topic: str = "t1") -> EncodedEvent:
    return EncodedEvent(
        Event(event_id, "n", topic, "e", "i", '{"x":"' + "x" * size + '"}', "2026-01-01T00:00:00.000000Z")
    )


def ids(data: bytes) -> list[int]:
    return [int(text.split('"event_id":')[1].split(",")[0]) for text in texts(data)]


def read(ring: Ring, cursor: int, wanted: Filter = ALL) -> tuple[list[int], int] | None:
    """Return everything after a cursor, write by write, as a session reads it."""
    found: list[int] = []
    while (span := ring.after(cursor, FRAMES, wanted)) is not None:
        assert len(span.data) <= WRITE_BYTES_MAX or len(ids(span.data)) == 1
        found += ids(span.data)
        if span.end == cursor:
            return found, cursor
        cursor = span.end
    return None


def test_it_has_nothing_before_it_begins_and_then_every_later_event() -> None:
    ring = Ring()
    assert ring.after(0, FRAMES, ALL) is None
    ring.begin(7)
    assert read(ring, 7) == ([], 7)
    assert ring.after(6, FRAMES, ALL) is None
    ring.extend([encoded(8), encoded(9)])

    assert read(ring, 7) == ([8, 9], 9)
    assert read(ring, 8) == ([9], 9)
    assert read(ring, 9) == ([], 9)
    assert read(ring, 12) == ([], 12), "a session that has read further in the log waits"
    assert read(ring, 6) is None


def test_a_cursor_between_two_ids_is_a_cursor_like_any_other() -> None:
    ring = Ring()
    ring.begin(0)
    ring.extend([encoded(3), encoded(8)])

    assert read(ring, 0) == ([3, 8], 8)
    assert read(ring, 5) == ([8], 8)


@pytest.mark.parametrize("size", [10, 3_000])
def test_it_drops_the_oldest_events_and_refuses_older_cursors(size: int) -> None:
    ring = Ring(events_max=100, bytes_max=50_000)
    ring.begin(0)
    for event_id in range(1, 300):
        ring.extend([encoded(event_id, size=size)])
        kept = [cursor for cursor in range(event_id + 1) if ring.after(cursor, FRAMES, ALL) is not None]

        # The ring has everything up to the end; an older cursor is refused.
        assert kept == list(range(kept[0], event_id + 1))
        assert read(ring, kept[0]) == (list(range(kept[0] + 1, event_id + 1)), event_id)
        assert event_id - kept[0] <= 100
        assert sum(len(encoded(1, size=size).frame) for _ in range(event_id - kept[0])) <= 55_000


def test_an_event_larger_than_the_ring_is_still_given() -> None:
    ring = Ring(bytes_max=1_000)
    ring.begin(0)
    ring.extend([encoded(1), encoded(2, size=100_000)])

    assert read(ring, 1) == ([2], 2)
    assert read(ring, 0) is None


def test_a_page_larger_than_the_ring_leaves_its_last_events() -> None:
    ring = Ring(events_max=100)
    ring.begin(0)
    ring.extend([encoded(event_id) for event_id in range(1, 501)])

    assert read(ring, 425) == (list(range(426, 501)), 500)
    assert read(ring, 424) is None


def test_beginning_again_drops_everything() -> None:
    ring = Ring()
    ring.begin(0)
    ring.extend([encoded(1)])
    assert read(ring, 0) == ([1], 1)
    ring.begin(5)

    assert read(ring, 0) is None
    assert read(ring, 1) is None
    assert read(ring, 5) == ([], 5)


def test_the_bytes_for_clients_at_one_position_are_joined_once() -> None:
    ring = Ring()
    ring.begin(0)
    ring.extend([encoded(1), encoded(2)])
    one, other = ring.after(0, FRAMES, ALL), ring.after(0, FRAMES, ALL)
    stream = ring.after(0, BLOCKS, ALL)

    assert one is not None
    assert one is other
    assert stream is not None
    assert stream.data.startswith(b"id: 1\ndata: {")


def test_joined_bytes_do_not_hide_later_events() -> None:
    ring = Ring()
    ring.begin(0)
    ring.extend([encoded(1)])
    assert read(ring, 0) == ([1], 1)
    ring.extend([encoded(2)])

    assert read(ring, 0) == ([1, 2], 2)


def test_a_filter_skips_other_events_up_to_the_end() -> None:
    ring = Ring()
    ring.begin(0)
    ring.extend([encoded(event_id, topic=f"t{event_id % 3}") for event_id in range(1, 11)])

    assert read(ring, 0, Filter(topics=frozenset({"t1"}))) == ([1, 4, 7, 10], 10)
    assert read(ring, 0, Filter(topics=frozenset({"t2"}))) == ([2, 5, 8], 10)
    assert read(ring, 0, Filter(topics=frozenset({"t9"}))) == ([], 10)
    assert read(ring, 4, Filter(topics=frozenset({"t1"}), names=frozenset({"n"}))) == ([7, 10], 10)
    assert read(ring, 4, Filter(names=frozenset({"m"}))) == ([], 10)


def test_random_readers_of_a_random_ring_miss_nothing() -> None:
    seeded = random.Random(7)
    ring = Ring(events_max=64, bytes_max=200_000)
    ring.begin(0)
    written: list[int] = []
    cursors = dict.fromkeys(range(10), 0)
    seen: dict[int, list[int]] = {reader: [] for reader in cursors}
    for _ in range(600):
        first = (written[-1] if written else 0) + seeded.randint(1, 3)
        page = list(range(first, first + seeded.randint(1, 20)))
        written += page
        ring.extend([encoded(event_id, size=seeded.choice([5, 5, 5, 40_000])) for event_id in page])
        reader = seeded.randrange(10)
        span = ring.after(cursors[reader], FRAMES, ALL)
        if span is None:
            # From the log, as a session does.
            page = [one for one in written if one > cursors[reader]][:50]
            seen[reader] += page
            cursors[reader] = page[-1]
        else:
            seen[reader] += ids(span.data)
            cursors[reader] = span.end

    for reader, cursor in cursors.items():
        assert seen[reader] == [one for one in written if one <= cursor]
