"""The same thing posted concurrently by many clients, across processes, is one row and one event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Barrier
from typing import Any

import pytest
from tests.faults.hub.conftest import Site
from tests.faults.hub_database import entities, written
from tests.hub.raw_client import Caller, HubResponse, connections_by_worker

POSTS = 50
LINK = {"kind": "link", "value_json": {"url": "https://example.com/a", "title": "A"}}

Key = Callable[[int], str | None]


def all_at_once(site: Site, topic: str, contents: list[Any], key: Key) -> list[HubResponse]:
    """Send one post on each of these connections at the same moment, half of them to each worker."""
    path = f"/api/v1/topics/{topic}/attachments"
    together = Barrier(len(contents))
    with ExitStack() as stack:
        by_worker = connections_by_worker(site.hub, len(contents) // 2)
        assert len(by_worker) == 2
        connections = [stack.enter_context(closing(one)) for some in by_worker.values() for one in some]

        def post(number: int) -> HubResponse:
            caller = Caller(site.port, site.token, connections[number])
            together.wait()
            headers = {"Prefer": "wait=20"}
            return caller.post(path, contents[number], key=key(number), headers=headers)

        with ThreadPoolExecutor(len(contents)) as threads:
            return list(threads.map(post, range(len(contents))))


@pytest.mark.parametrize(
    ("key", "statuses"),
    [
        pytest.param(lambda _: None, {201: 1, 200: POSTS - 1}, id="without-keys"),
        pytest.param(lambda number: f"key-{number}", {201: 1, 200: POSTS - 1}, id="a-key-for-each"),
        pytest.param(lambda _: "one-key", {201: POSTS}, id="one-key-for-all"),
    ],
)
def test_fifty_identical_concurrent_posts_are_one_row_and_one_event(
    site: Site, key: Key, statuses: dict[int, int], request: pytest.FixtureRequest
) -> None:
    topic = site.ada.topic(request.node.name)
    before = written(site.database)

    answers = all_at_once(
        site, topic, [LINK] * POSTS, lambda number: (number_key := key(number)) and f"{topic}-{number_key}"
    )

    assert Counter(answer.status for answer in answers) == statuses
    (there,) = {answer.json["attachment"]["id"] for answer in answers}
    assert entities(site.database, "topic.attachment_added", topic) == [there]
    after = written(site.database)
    assert {name: count - before[name] for name, count in after.items() if count != before[name]} == {
        "topic_attachments": 1,
        "events": 1,
        "last event": 1,
    }
    events = [answer.json["event_id"] for answer in answers if answer.status == 201]
    assert set(events) == {after["last event"]}
    assert all(answer.json["event_id"] is None for answer in answers if answer.status == 200)
    if len(events) > 1:
        assert len({answer.body for answer in answers}) == 1
        assert sum(not answer.replayed for answer in answers) == 1


def test_equivalent_concurrent_posts_are_one_row(site: Site) -> None:
    """The posts differ in a missing or empty key, in the order of fields, and in the spelling of numbers."""
    topic = site.ada.topic()
    spellings = [
        {"kind": "note", "value_json": {"a": 1, "b": [2, {"c": 3, "d": 4}]}},
        {"kind": "note", "key": None, "value_json": {"b": [2, {"d": 4, "c": 3}], "a": 1}},
        {"kind": "note", "key": "", "value_json": {"b": [2.0, {"d": 4.0, "c": 3e0}], "a": 1.0}, "dedupe_key": None},
    ]

    answers = all_at_once(site, topic, [spellings[number % 3] for number in range(24)], lambda _: None)

    assert Counter(answer.status for answer in answers) == {201: 1, 200: 23}
    (there,) = {answer.json["attachment"]["id"] for answer in answers}
    assert not any("value_differs" in answer.json for answer in answers)
    assert entities(site.database, "topic.attachment_added", topic) == [there]
    listed = site.ada.get(f"/api/v1/topics/{topic}/attachments").json["attachments"]
    assert [one["id"] for one in listed] == [there]


def test_different_attachments_are_not_taken_for_duplicates(site: Site) -> None:
    topic = site.ada.topic()
    other = site.ada.topic()
    path, elsewhere = (f"/api/v1/topics/{one}/attachments" for one in (topic, other))
    base = {"kind": "note", "value_json": {"a": 1}}
    changed = [
        {**base, **more} for more in ({"kind": "Note"}, {"key": "k"}, {"value_json": {"a": "1"}}, {"dedupe_key": "d"})
    ]

    answers = [site.ada.post(path, one) for one in (base, *changed)]
    answers.append(site.ada.post(elsewhere, base))
    answers.append(site.ada.post(path, {**base, "value_json": {"a": True}}))

    assert [answer.status for answer in answers] == [201] * 7
    assert len({answer.json["attachment"]["id"] for answer in answers}) == 7
    again = site.ada.post(path, {**base, "dedupe_key": "d", "value_json": {"a": 2}})
    assert (again.status, again.json["value_differs"], again.json["event_id"]) == (200, True, None)
