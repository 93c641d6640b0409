"""Two hubs on one PostgreSQL, and what becomes of turns when one of them is killed in the middle of an effect."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from tests.hub.process import RunningHub, started_hub
from tests.hub.test_chat import Fifo, events
from tests.servers.postgres import PostgresServer
from tests.waiting import until

BRAIN = ("--brain", "tests.hub.chat_brain:brain")
SESSIONS = int(os.environ.get("ONCEWARD_SESSIONS", "12"))
SECONDS = float(os.environ.get("ONCEWARD_SECONDS", "4"))
MESSAGES = 3


class Site:
    """A database, an outside world, and hubs that come and go."""

    def __init__(self, database_url: str, folder: Path) -> None:
        self._url = database_url
        self.folder = folder
        folder.mkdir()

    @contextlib.contextmanager
    def hub(self, name: str) -> Iterator[RunningHub]:
        """Ends as the test has ended it."""
        with started_hub(
            data_dir=self.folder / name,
            args=(*BRAIN, "--database", self._url),
            env={"OUTSIDE": str(self.folder / "outside"), "ONCEWARD_TURNS__SWEEP_SECONDS": "0.1"},
        ) as hub:
            hub.url = hub.wait_for_line(r"onceward: listening on (http://\S+)")[1]
            yield hub

    def fifo(self) -> Fifo:
        path = self.folder / f"fifo-{uuid.uuid4().hex}"
        os.mkfifo(path)
        return Fifo(path, os.open(path, os.O_RDWR))

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def site(postgres_server: PostgresServer, postgres_template: str, tmp_path: Path) -> Site:
    return Site(postgres_server.create_database(postgres_template), tmp_path / "site")


def chat(hub: RunningHub, message: str, key: str, wait: int = 0, **said: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key, **({"Prefer": f"wait={wait}"} if wait else {})}
    return httpx.post(f"{hub.url}/chat", json={"message": message, **said}, headers=headers, timeout=40)


def turn(hub: RunningHub, turn_id: str) -> dict[str, Any]:
    told: dict[str, Any] = httpx.get(f"{hub.url}/turns/{turn_id}", timeout=20).json()
    return told


def test_a_refund_whose_worker_is_killed_is_paid_once_and_both_callers_hear_the_same(site: Site) -> None:
    """The provider has paid and its answer is lost. Whoever takes over asks under the same key."""
    fifo = site.fifo()
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(site.hub("a"))
        message = f"provide 12345 {fifo}"
        first = chat(one, message, "k", session_key="s").json()
        until(lambda: site.lines("outside") == ["12345"], "nothing is paid")
        # Only now, so that it is certainly the first one that runs the turn.
        other = stack.enter_context(site.hub("b"))
        assert chat(other, message, "k", session_key="s").status_code == 409
        one.process.kill()
        one.process.wait()
        fifo.release()

        done = chat(other, message, "k", wait=30, session_key="s").json()
        again = chat(other, message, "k", session_key="s").json()

        assert (done["status"], done["turn_id"], done["response"]) == ("complete", first["turn_id"], "answered: done")
        assert again == done
        assert turn(other, done["turn_id"])["attempts"] == 2
    assert site.lines("outside") == ["12345"]


def test_an_effect_that_may_not_be_repeated_is_left_in_doubt_when_its_worker_is_killed(site: Site) -> None:
    """Nobody knows whether it was paid: it is not paid again, the brain is told so, and an operator sees it."""
    fifo = site.fifo()
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(site.hub("a"))
        message = f"keep 12345 {fifo}"
        chat(one, message, "k", session_key="s")
        until(lambda: site.lines("begun") == ["12345"], "the tool is not called")
        other = stack.enter_context(site.hub("b"))
        one.process.kill()
        one.process.wait()

        done = chat(other, message, "k", wait=30, session_key="s").json()
        claims = httpx.get(f"{other.url}/api/v1/claims", params={"status": "in_doubt"}).json()["claims"]

        assert (done["status"], done["response"]) == ("complete", "answered: unknown")
        assert [one["key"].startswith("keep:order:12345:turn_group:") for one in claims] == [True]
    assert (site.lines("outside"), site.lines("begun")) == ([], ["12345"])


def test_a_turn_superseded_from_the_other_hub_refunds_once(site: Site) -> None:
    """Both runs, the old one and the one that took its place, come to the refund."""
    fifo = site.fifo()
    with site.hub("a") as one, site.hub("b") as other:
        first = chat(one, f"hold {fifo}\nrefund 12345", "k1", session_key="s").json()
        until(lambda: turn(one, first["turn_id"])["status"] == "processing", "it does not run")
        second = chat(other, "and quickly", "k2", session_key="s").json()
        fifo.release()

        answers = [
            chat(one, "and quickly", "k2", wait=30, session_key="s").json(),
            chat(other, f"hold {fifo}\nrefund 12345", "k1", wait=30, session_key="s").json(),
        ]

        assert turn(one, first["turn_id"])["superseded_by"] == second["turn_id"]
        assert answers[0] == answers[1]
        assert (answers[0]["turn_id"], answers[0]["response"]) == (second["turn_id"], "answered: done, and quickly")
    assert site.lines("outside") == ["12345"]


def test_a_stream_is_joined_on_the_other_hub_and_interrupted_when_its_producer_dies(site: Site) -> None:
    fifo = site.fifo()
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(site.hub("a"))
        told = chat(one, f"say one\nhold {fifo}\nsay two", "k", session_key="s").json()
        until(lambda: turn(one, told["turn_id"])["status"] == "processing", "it does not run")
        other = stack.enter_context(site.hub("b"))
        path = f"{other.url}/turns/{told['turn_id']}/events"
        with httpx.stream("GET", path, timeout=40) as joined:
            lines = joined.iter_lines()
            heard = [next(lines) for _ in range(5)]
            one.process.kill()
            one.process.wait()
            rest = "\n".join([*heard, *lines])
        fifo.release()
        resumed = httpx.get(path, headers={"Last-Event-ID": "1.1"}, timeout=40).text

    assert [(number, name) for number, name, _ in events(rest)] == [("1.1", "delta"), ("1.2", "interrupted")]
    assert [name for _, name, _ in events(resumed)] == ["interrupted", "delta", "delta", "done"]
    assert {number.partition(".")[0] for number, _, _ in events(resumed)[1:]} == {"2"}


class Hubs:
    """Two of them, one of which is killed now and then and started anew."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stop = threading.Event()
        self._one_at_a_time = threading.Lock()
        self.up: dict[str, str] = {}
        self.kills = 0
        self._chance = random.Random(1)
        self._threads = [threading.Thread(target=self._live, args=(name,)) for name in ("a", "b")]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        until(lambda: len(self.up) == 2, "they do not start", seconds=60)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _live(self, name: str) -> None:
        while not self._stop.is_set():
            with self._site.hub(name) as hub:
                self.up[name] = hub.url
                self._stop.wait(SECONDS / 4 + self._chance.random())
                # One of them is always up, however slow the machine is at starting the other.
                with self._one_at_a_time:
                    while len(self.up) < 2 and not self._stop.wait(0.05):  # both of them
                        pass
                    del self.up[name]
                hub.process.kill()
                self.kills += 1

    def ask(self, act: Callable[[str], httpx.Response]) -> httpx.Response:
        """Ask any hub that is up until one has answered; what broke off is asked again in the same words."""
        deadline = time.monotonic() + 120
        while True:
            assert time.monotonic() < deadline
            for url in list(self.up.values()):
                with contextlib.suppress(httpx.TransportError):
                    answer = act(url)
                    if answer.status_code < 500:
                        return answer
            self._stop.wait(0.05)


def _post(body: dict[str, str], url: str) -> httpx.Response:
    return httpx.post(f"{url}/chat", json=body, timeout=20)


def test_random_kills_lose_no_message_and_repeat_no_effect(site: Site) -> None:
    turns: dict[str, list[str]] = {}

    def talk(session: str, hubs: Hubs) -> None:
        for number in range(MESSAGES):
            order = f"{session}-{number}"
            body = {"message": f"provide {order} -", "session_key": session, "message_id": order}
            answer = hubs.ask(functools.partial(_post, body))
            turns.setdefault(session, []).append(answer.json()["turn_id"])

    with Hubs(site) as hubs:
        talkers = [threading.Thread(target=talk, args=(f"s{number}", hubs)) for number in range(SESSIONS)]
        for talker in talkers:
            talker.start()
        for talker in talkers:
            talker.join()

        def settled(turn_id: str) -> dict[str, Any]:
            told: dict[str, Any] = {}

            def look() -> bool:
                nonlocal told
                told = hubs.ask(lambda url: httpx.get(f"{url}/turns/{turn_id}", timeout=20)).json()
                return told["status"] not in {"accumulating", "processing", "committing"}

            until(look, f"{turn_id} is never over", seconds=90)
            return told

        finished = {session: [settled(turn_id) for turn_id in ids] for session, ids in turns.items()}
        until(lambda: hubs.kills >= 2, "nobody was killed", seconds=60)

    for session, told in finished.items():
        carried: list[str] = []
        for one in told:
            if one["status"] == "superseded":
                continue
            assert one["status"] == "complete", one
            ids = [message["message_id"] for message in one["messages"]]
            assert one["response"] == f"answered: {', '.join(['done'] * len(ids))}" or "replayed" in one["response"], (
                one
            )
            carried += [message for message in ids if message not in carried]
        assert carried == [f"{session}-{number}" for number in range(MESSAGES)]
    paid = site.lines("outside")
    assert sorted(paid) == sorted(f"s{number}-{order}" for number in range(SESSIONS) for order in range(MESSAGES))
