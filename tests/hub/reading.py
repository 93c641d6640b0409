"""Asking the odd applications of `odd_apps.py`, and reading answers that are not over yet."""

from __future__ import annotations

import http.client
import sys
from contextlib import closing
from urllib.parse import urlsplit

from tests.hub.process import RunningHub


def odd(name: str) -> tuple[str, ...]:
    """The command that serves one of the odd applications instead of the hub."""
    return (sys.executable, "-m", "tests.hub.odd_apps", name)


def connect(hub: RunningHub) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(hub.url).hostname or "", hub.port, timeout=20)


def get(hub: RunningHub, path: str) -> bytes:
    with closing(connect(hub)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read()


class Reading:
    """A response that has begun and is still being read."""

    def __init__(self, hub: RunningHub, path: str) -> None:
        self._connection = connect(hub)
        self._connection.request("GET", path)
        self.response = self._connection.getresponse()
        assert self.response.readline() == b"begun\n"

    def close(self) -> None:
        self.response.close()
        self._connection.close()
