"""Two hubs on one PostgreSQL: turns whose hub is killed in the middle of an effect."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.hub.chat_hub import Fifo, events
from tests.hub.hub_process import RunningHub, started_hub
from tests.servers.postgres import PostgresServer
from tests.waiting import until

BRAIN = ("--brain", "tests.hub.scripted_brain:brain")


class Site:
    """A database, an outside world, and hubs that are started and stopped."""

    def __init__(self, database_url: str, folder: Path) -> None:
        self._url = database_url
        self.folder = folder
        folder.mkdir()

    @contextlib.contextmanager
    def hub(self, name: str) -> Iterator[RunningHub]:
        """A hub that the test may end in any way."""
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


def chat(hub: RunningHub, message: str, key: str, wait: int = 0, **fields: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key, **({"Prefer": f"wait={wait}"} if wait else {})}
    return httpx.post(f"{hub.url}/chat", json={"message": message, **fields}, headers=headers, timeout=40)


def turn(hub: RunningHub, turn_id: str) -> dict[str, Any]:
    body: dict[str, Any] = httpx.get(f"{hub.url}/turns/{turn_id}", timeout=20).json()
    return body


def test_a_refund_whose_worker_is_killed_is_paid_once_and_both_callers_get_the_same_response(site: Site) -> None:
    """The provider has paid and its response is lost. The next run sends the same key."""
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


def test_an_irreversible_effect_is_left_in_doubt_when_its_worker_is_killed(site: Site) -> None:
    """It is unknown whether it was paid: it is not paid again, the brain gets the error, and an operator sees it."""
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
        assert [call["status"] for call in turn(other, done["turn_id"])["tools"]] == ["unknown"]
        assert [one["key"].startswith("keep:order:12345:turn_group:") for one in claims] == [True]
    assert (site.lines("outside"), site.lines("begun")) == ([], ["12345"])


def test_a_turn_superseded_from_the_other_hub_refunds_once(site: Site) -> None:
    """Both runs, the superseded one and its replacement, reach the refund."""
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
        body = chat(one, f"say one\nhold {fifo}\nsay two", "k", session_key="s").json()
        until(lambda: turn(one, body["turn_id"])["status"] == "processing", "it does not run")
        other = stack.enter_context(site.hub("b"))
        path = f"{other.url}/turns/{body['turn_id']}/events"
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
