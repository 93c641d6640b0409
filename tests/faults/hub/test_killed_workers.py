"""Workers killed (SIGKILL) at critical points: nothing is written twice, and no event is lost or repeated."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from tests.faults.hub.conftest import Killable
from tests.faults.hub.followers import Follower, SocketFollower, StreamFollower
from tests.faults.hub_database import entities, event_ids, written
from tests.hub.hub_process import RunningHub
from tests.hub.raw_client import Caller, HubResponse, owner, workers_of
from tests.waiting import SECONDS_MAX

from onceward.hub.db.engine import Database


def follow_both_workers(hub: RunningHub, stack: ExitStack) -> dict[int, list[Follower]]:
    """Followers, at least one of each kind at each worker."""
    found: dict[int, list[Follower]] = {worker: [] for worker in workers_of(hub)}
    for _ in range(50):
        if all({SocketFollower, StreamFollower} <= {type(one) for one in some} for some in found.values()):
            return found
        for kind in (SocketFollower, StreamFollower):
            follower = stack.enter_context(kind(hub.port))
            assert follower.socket is not None
            worker = owner(follower.socket, list(found))
            assert worker is not None
            found[worker].append(follower)
    raise AssertionError("all followers are at one worker")


def test_a_commit_of_a_killed_worker_is_there_once_for_everyone(killable: Killable) -> None:
    """A worker is killed before followers are notified, and between the record and the sending of a response."""
    hub, database = killable.hub, killable.database
    ask = Caller(hub.port)
    topic = ask.topic()
    path = f"/api/v1/topics/{topic}"
    thing = {"kind": "note", "value_json": {"a": 1}, "dedupe_key": "once"}
    with ExitStack() as stack:
        followers = follow_both_workers(hub, stack)
        for point in ("committed", "settled"):
            requests: list[tuple[str, object, str]] = [
                ("/api/v1/topics", {"title": f"{point} once"}, f"topic {point}".replace(" ", "-")),
                (f"{path}/messages", {"sender": "a", "content": f"{point} once"}, f"message-{point}"),
                (f"{path}/attachments", {**thing, "key": point}, f"attachment-{point}"),
            ]
            before = written(database)

            killed = killable.kill_at(point, requests)
            stranded = written(database)
            with ThreadPoolExecutor(3) as threads:
                asked = [threads.submit(ask.request_until_final, "POST", *one[:2], key=one[2]) for one in requests]
                answers = [one.result(SECONDS_MAX) for one in asked]

            _check_one_each(database, before, answers, topic)
            if point == "committed":
                assert stranded == written(database), "all had been committed, and the retries wrote nothing"
            last = written(database)["last event"]
            for follower in followers.get(killed, ()):
                follower.wait_for_session(2)
            for follower in (one for some in followers.values() for one in some):
                assert follower.wait_for(last) == event_ids(database)
            if point == "committed":
                assert all(one.sessions == 1 for worker, some in followers.items() if worker != killed for one in some)


def _check_one_each(database: Database, before: dict[str, int], answers: list[HubResponse], topic: str) -> None:
    """Check that each request has one row and one event, and that its response names both."""
    after = written(database)
    assert {name: after[name] - before[name] for name in ("topics", "messages", "topic_attachments", "events")} == {
        "topics": 1,
        "messages": 1,
        "topic_attachments": 1,
        "events": 3,
    }
    made, message, attachment = (answer.json for answer in answers)
    assert [answer.status for answer in answers] == [201, 201, 201]
    assert entities(database, "topic.created", made["topic"]["id"]) == [made["topic"]["id"]]
    assert entities(database, "topic.message_added", topic)[-1] == message["message"]["id"]
    assert entities(database, "topic.attachment_added", topic)[-1] == attachment["attachment"]["id"]
    # An id may be missing: it belonged to a run that was killed or restarted.
    events = {made["event_id"], message["event_id"], attachment["event_id"]}
    assert events == {number for number in event_ids(database) if number > before["last event"]}
