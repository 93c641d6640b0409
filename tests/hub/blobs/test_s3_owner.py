"""Of two databases that claim one bucket concurrently, at most one becomes its owner, whatever the server supports."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import obstore
import pytest
from tests.backends import Servers
from tests.servers.s3 import S3Server
from tests.servers.s3_relay import S3Relay
from tests.waiting import SECONDS_MAX

from onceward.errors import StoreUnavailable
from onceward.hub.blobs.s3 import S3Blobs, open_s3

# The requests of a candidate that is alone: read the owner, write its own claim, list the claims, read the owner, write
# the owner's mark, read the owner, delete its own claim.
STEPS = 7
_REFUSED = b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class OwnerCandidate:
    """Asks for the owner in its own thread, one request at a time."""

    def __init__(self, relay: S3Relay, blobs: S3Blobs, mark: str) -> None:
        self.mark = mark
        self.answer = self.refusal = ""
        self._steps: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._may_go = threading.Semaphore(0)
        relay.on_request = self._on_request
        threading.Thread(target=self._ask, args=[blobs], daemon=True).start()
        self._at = self._steps.get(timeout=SECONDS_MAX)

    def step(self) -> bool:
        """Let one request through, and wait for the next one or the end. Return False if it has ended before."""
        if self._at == "the end":
            return False
        self._may_go.release()
        self._at = self._steps.get(timeout=SECONDS_MAX)
        return True

    def finish(self) -> None:
        while self.step():
            pass

    def _on_request(self, _head: bytes) -> bytes:
        self._steps.put("a request")
        self._may_go.acquire()
        return b""

    def _ask(self, blobs: S3Blobs) -> None:
        try:
            self.answer = blobs.owner(self.mark)
        except StoreUnavailable as error:
            self.refusal = str(error)
        finally:
            self._steps.put("the end")


@pytest.fixture
def relays(s3_server: S3Server) -> Iterator[tuple[S3Relay, S3Relay]]:
    with S3Relay(s3_server.port) as one, S3Relay(s3_server.port) as two:
        yield one, two


@pytest.fixture
def opened(s3_server: S3Server, tmp_path: Path) -> Callable[..., list[S3Blobs]]:
    """Opens stores on the same new place, each through its own relay."""

    def opened(*relays: S3Relay) -> list[S3Blobs]:
        url = s3_server.fresh_url("ENDPOINT")
        return [open_s3(url.replace("ENDPOINT", relay.endpoint), tmp_path) for relay in relays]

    return opened


def test_a_single_process_becomes_the_owner_and_leaves_nothing_else(
    relays: tuple[S3Relay, S3Relay], opened: Callable[..., list[S3Blobs]]
) -> None:
    (blobs,) = opened(relays[0])
    candidate = OwnerCandidate(relays[0], blobs, "one")

    assert sum(iter(candidate.step, False)) == STEPS
    assert candidate.answer == "one"
    relays[0].on_request = lambda _: b""
    assert [found["path"] for page in obstore.list(blobs._store) for found in page] == ["owner"]


def test_two_processes_that_ask_concurrently_never_both_become_the_owner(
    relays: tuple[S3Relay, S3Relay], opened: Callable[..., list[S3Blobs]]
) -> None:
    """The server ignores the condition. One makes some of its requests, then the other, then both the rest."""
    for first_steps, second_steps in itertools.product(range(1, STEPS + 1), repeat=2):
        stores = opened(*relays)
        one, two = OwnerCandidate(relays[0], stores[0], "one"), OwnerCandidate(relays[1], stores[1], "two")
        for candidate, steps in ((one, first_steps), (two, second_steps)):
            for _ in range(steps):
                candidate.step()
        one.finish()
        two.finish()

        where = (first_steps, second_steps)
        for relay in relays:
            relay.on_request = lambda _: b""
        owner = stores[0].owner("a third")
        assert {one.answer, two.answer} <= {owner, ""}, where
        assert stores[1].owner("a fourth") == owner, where
        assert all("at the same time" in candidate.refusal for candidate in (one, two) if not candidate.answer), where


def test_a_process_that_gives_up_leaves_the_mark_of_a_sibling(
    relays: tuple[S3Relay, S3Relay], opened: Callable[..., list[S3Blobs]], servers: Servers
) -> None:
    """Two processes of one database, and one of another."""
    one, two, again = opened(*relays, servers.partial_s3)
    # It is about to write its mark, and has found no other claim.
    first = OwnerCandidate(relays[0], one, "one")
    for _ in range(4):
        first.step()
    # It has just announced its claim.
    other = OwnerCandidate(relays[1], two, "two")
    for _ in range(2):
        other.step()
    with pytest.raises(StoreUnavailable, match="at the same time"):
        again.owner("one")
    other.finish()

    with pytest.raises(StoreUnavailable, match="at the same time"):
        again.owner("two")
    first.finish()
    assert (first.answer, other.answer, again.owner("two")) == ("one", "", "one")


def test_a_process_killed_while_asking_blocks_only_other_databases(
    relays: tuple[S3Relay, S3Relay], opened: Callable[..., list[S3Blobs]]
) -> None:
    one, two = opened(*relays)
    killed = OwnerCandidate(relays[0], one, "one")
    for _ in range(3):
        killed.step()

    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="delete the objects under owner-asked/"):
            two.owner("two")
    assert two.owner("one") == "one"
    killed.finish()


def test_a_conditional_write_keeps_the_mark_of_a_process_that_does_not_ask(
    relays: tuple[S3Relay, S3Relay], opened: Callable[..., list[S3Blobs]]
) -> None:
    """An earlier version just writes its mark."""
    new, old = opened(*relays)

    def on_request(head: bytes) -> bytes:
        if b"\r\nif-none-match: *\r\n" not in head.lower():
            return b""
        obstore.put(old._store, "owner", b"old")
        return _REFUSED % b"412 Precondition Failed"

    relays[0].on_request = on_request

    assert new.owner("new") == "old"
    assert old.owner("later") == "old"


def test_a_server_without_conditional_writes_is_used_without_them(
    relays: tuple[S3Relay, S3Relay], opened: Callable[..., list[S3Blobs]]
) -> None:
    blobs, other = opened(*relays)
    relays[0].on_request = lambda head: (
        _REFUSED % b"501 Not Implemented" if b"\r\nif-none-match: *\r\n" in head.lower() else b""
    )

    assert blobs.owner("one") == "one"
    assert other.owner("two") == "one"


def test_a_server_that_refuses_the_mark_has_no_owner(
    relays: tuple[S3Relay, S3Relay], opened: Callable[..., list[S3Blobs]]
) -> None:
    blobs, other = opened(*relays)
    relays[0].on_request = lambda head: (
        _REFUSED % b"403 Forbidden" if b"\r\nif-none-match: *\r\n" in head.lower() else b""
    )

    with pytest.raises(StoreUnavailable, match="cannot return or record its owner"):
        blobs.owner("one")

    # It is unknown whether the write arrived, so the other does not become the owner.
    with pytest.raises(StoreUnavailable, match="at the same time"):
        other.owner("two")
    assert other.owner("one") == "one"
