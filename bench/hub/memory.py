"""Memory of a hub before and after many requests: new attachments and duplicates in turn."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from bench.connections import Connections
from bench.hub.contest import Server
from bench.hub.rows import DUPLICATE, NEW, get_health
from bench.process_tree import resident_bytes

_RUN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory after the warm-up, and after `requests` more requests."""

    requests: int
    before: int
    after: int


def measure(server: Server, warm_up: int, requests: int, connections: int) -> Memory:
    """Measure the memory of a hub. The warm-up fills its pools and caches."""
    _send(server, warm_up, connections)
    before = resident_bytes(server.pid)
    sent = _send(server, requests, connections)
    return Memory(sent, before, resident_bytes(server.pid))


def _send(server: Server, count: int, connections: int) -> int:
    """Send at least this many requests, and return their number."""
    sent = 0
    with closing(Connections(server.port, connections, get_health(server.port))) as opened:
        while sent < count:
            for row in (NEW, DUPLICATE):
                requests = server.rows[row]
                sent += opened.drive(requests.request, min(_RUN_SECONDS, count / 1e5), requests.check).requests
    return sent
