"""A server for the applications of `misbehaving_apps.py`, and a client that reads unfinished responses."""

from __future__ import annotations

import functools
import http.client
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from tests.hub.hub_process import RunningHub

from onceward.hub.config.config import Config, HubSettings
from onceward.hub.config.data_folder import opened

_REST = b"that is all"


def app_command(name: str) -> tuple[str, ...]:
    """The command that serves one of the misbehaving applications instead of the hub."""
    return (sys.executable, "-m", "tests.hub.server.misbehaving_apps", name)


def folder_with_database(folder: Path) -> Path:
    """A data folder with a migrated database, which saves a third of a start."""
    folder.mkdir(mode=0o700)
    (folder / "hub.db").write_bytes(_database())
    return folder


@functools.cache
def _database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with opened(Config(hub=HubSettings(data_dir=folder))):
            pass
        return Path(folder, "hub.db").read_bytes()


def connect(hub: RunningHub) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(hub.url).hostname or "", hub.port, timeout=20)


def get(hub: RunningHub, path: str) -> bytes:
    with closing(connect(hub)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read()


class UnfinishedResponse:
    """A response that is still being read. Its request ends only when `finish` is called."""

    def __init__(self, hub: RunningHub, path: str) -> None:
        self._connection = connect(hub)
        self._connection.putrequest("GET", path)
        self._connection.putheader("Content-Length", str(len(_REST)))
        self._connection.endheaders()
        self.response = self._connection.getresponse()
        assert self.response.readline() == b"begun\n"

    def finish(self) -> None:
        self._connection.send(_REST)

    def close(self) -> None:
        self.response.close()
        self._connection.close()
