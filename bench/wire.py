"""Counters of round trips: a relay between a client and its server, and a store that counts its calls."""

from __future__ import annotations

import socket
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from bench.contest import Trips
from onceward.core.claim import Entry, Ref, Status, Write, WriteResult
from onceward.store import Page, Reading, Store

# Enough that one disturbed call does not change the median.
CALLS = 7


class Relay:
    """TCP relay that counts round trips: each time the client sends after the server has responded."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.trips = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        """Return the URL with the port of this relay."""
        return url.replace(f":{urlsplit(url).port}", f":{self.port}", 1)

    def close(self) -> None:
        # Closing alone does not wake a thread that waits in accept or recv.
        for end in (self._listener, *self._sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._sockets += [client, server]
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                responded = threading.Event()
                responded.set()
                threading.Thread(target=self._forward_requests, args=(client, server, responded), daemon=True).start()
                threading.Thread(target=self._forward_responses, args=(server, client, responded), daemon=True).start()

    def _forward_requests(self, client: socket.socket, server: socket.socket, responded: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65_536):
                if responded.is_set():
                    responded.clear()
                    self.trips += 1
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    @staticmethod
    def _forward_responses(server: socket.socket, client: socket.socket, responded: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65_536):
                responded.set()
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)


@contextmanager
def relay(port: int) -> Iterator[Relay]:
    made = Relay(port)
    try:
        yield made
    finally:
        made.close()


class Counting:
    """Store that counts its calls. An embedded store has no network connection, so each call counts as a round trip."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.trips = 0

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        self.trips += 1
        return self._store.commit(writes)

    def read(self, refs: Sequence[Ref]) -> Reading:
        self.trips += 1
        return self._store.read(refs)

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        self.trips += 1
        return self._store.scan(scope, status, after, limit)

    def purge(self, limit: int) -> int:
        self.trips += 1
        return self._store.purge(limit)

    def lapsed(self, limit: int) -> Sequence[Entry]:
        self.trips += 1
        return self._store.lapsed(limit)

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        self.trips += 1
        return self._store.chunks(ref, version, after, limit)

    def abandon(self) -> None:
        self._store.abandon()

    def close(self) -> None:
        self._store.close()


def count_trips(call: Callable[[str], object], trips: Callable[[], int]) -> Trips:
    """Return the round trips of a fresh and of a replayed call, each as the median of several calls."""

    def cost(key: str) -> int:
        before = trips()
        call(key)
        return trips() - before

    for number in range(CALLS):  # The first calls open connections and prepare statements.
        call(f"trip-{number}")
        call(f"trip-{number}")
    fresh = [cost(f"counted-{number}") for number in range(CALLS)]
    replay = [cost(f"counted-{number}") for number in range(CALLS)]
    return statistics.median(fresh), statistics.median(replay)
