"""Peers of the load benchmark: PocketBase over HTTP, and a DBOS workflow with one step in its own process."""

from __future__ import annotations

import http.client
import json
import random
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import names
from bench.contest import Unable
from bench.hub.contest import Contestant, Round, Server
from bench.hub.process import START_SECONDS_MAX
from bench.hub.rows import (
    CHAT,
    DUPLICATE,
    DUPLICATES,
    JSON_HEADER,
    NEW,
    Row,
    attachment_json,
    http_request,
    new_token,
    post_json,
)
from bench.hub.servers import Ground
from bench.load import Mode, Scenario
from bench.peers.process import PeerProcess
from bench.process_tree import cpu_seconds

POCKETBASE = "PocketBase"
DBOS = "DBOS workflow, one step"
DBOS_WAL = "DBOS workflow, one step, file set to WAL"

_RECORDS = "/api/collections/attachments/records"
# The same fields and the same identity as a topic attachment of the hub, within one topic.
_COLLECTION = {
    "name": "attachments",
    "type": "base",
    "createRule": "",
    "fields": [
        {"name": "kind", "type": "text", "required": True},
        {"name": "value_json", "type": "json"},
        {"name": "dedupe_key", "type": "text", "required": True},
    ],
    "indexes": ["CREATE UNIQUE INDEX idx_attachments_dedupe ON attachments (kind, dedupe_key)"],
}


@dataclass(frozen=True, slots=True)
class Workflow:
    """DBOS: each call is a workflow with a new id. Threads in its own process call it, so it has no HTTP to pay for."""

    name: str
    process: PeerProcess
    is_peer: bool = True

    def has(self, row: str) -> bool:
        return row == CHAT

    def measure(self, row: str, seconds: float, connections: int) -> Round:
        assert self.has(row)
        before = cpu_seconds(self.process.pid)
        rate = self.process.rate(Scenario(Mode.FRESH, connections), seconds)
        # The calls that were running at the end took a little longer than `seconds`.
        return Round(rate, cpu=(cpu_seconds(self.process.pid) - before) / (rate * seconds))


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that did not start."""

    name: str
    rows: tuple[str, ...]
    reason: str
    is_peer: bool = True

    def has(self, row: str) -> bool:
        return row in self.rows

    def measure(self, row: str, seconds: float, connections: int) -> Round:
        raise Unable(f"{self.reason} ({row}, {seconds:g} s, {connections} connections)")


@contextmanager
def peers(on: Ground, python: Path) -> Iterator[tuple[list[Contestant], dict[str, str]]]:
    """Start the peers that can use this database. Also yields their versions."""
    found: list[Contestant] = []
    versions: dict[str, str] = {}
    modes = {DBOS: ("run_dbos",), **({} if on.postgres else {DBOS_WAL: ("run_dbos", "wal")})}
    with ExitStack() as stack:
        if on.postgres is None:
            try:
                server, versions[POCKETBASE] = stack.enter_context(_pocketbase(python, on.folder))
                found.append(server)
            except Unable as reason:
                found.append(Absent(POCKETBASE, (NEW, DUPLICATE), str(reason)))
        for number, (name, (module, *options)) in enumerate(modes.items()):
            url = on.database() or f"sqlite:///{on.folder / f'dbos-{number}.db'}"
            process = PeerProcess(python, name, module, url, *options)
            stack.callback(process.close)
            try:
                process.warm()
                versions[names.DBOS] = process.version
                found.append(Workflow(name, process))
            except Unable as reason:
                found.append(Absent(name, (CHAT,), str(reason)))
        yield found, versions


@contextmanager
def _pocketbase(python: Path, folder: Path) -> Iterator[tuple[Server, str]]:
    """Run PocketBase on a loopback port, with an open collection that has a unique index. Also yields its version."""
    program, port = str(python.parent / "pocketbase"), _free_port()
    data = ("--dir", str(folder / "pocketbase"), "--automigrate=false")
    # An account of this run alone, to create the collection.
    account, password = "bench@example.com", secrets.token_hex()
    version = _output(folder, program, "--version").split()[-1]
    _output(folder, program, "superuser", "upsert", account, password, *data)
    with subprocess.Popen(
        [program, "serve", "--http", f"127.0.0.1:{port}", *data],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    ) as process:
        try:
            _wait_for(port, process)
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                sign_in = json.dumps({"identity": account, "password": password}).encode()
                token = post_json(connection, "/api/collections/_superusers/auth-with-password", sign_in)["token"]
                post_json(connection, "/api/collections", json.dumps(_COLLECTION).encode(), Authorization=token)
                duplicates = [new_token() for _ in range(DUPLICATES)]
                for one in duplicates:
                    post_json(connection, _RECORDS, attachment_json(one))
            yield Server(POCKETBASE, port, process.pid, _rows(port, duplicates), is_peer=True), version
        finally:
            process.terminate()


def _output(folder: Path, *command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unable(f"PocketBase did not run: {error}.") from error


def _rows(port: int, duplicates: list[bytes]) -> dict[str, Row]:
    def create(token: bytes) -> bytes:
        return http_request(port, "POST", _RECORDS, JSON_HEADER, attachment_json(token))

    def new(_connection: int) -> tuple[bytes, bytes]:
        token = new_token()
        return create(token), token

    # The refusal does not repeat the key, so the response has no token.
    refused = b'"validation_not_unique"'
    return {
        NEW: Row(NEW, new, b"HTTP/1.1 200 ", b'"collectionName":"attachments"'),
        DUPLICATE: Row(DUPLICATE, lambda _: (create(random.choice(duplicates)), b""), b"HTTP/1.1 400 ", refused),
    }


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise Unable(f"PocketBase did not start within {START_SECONDS_MAX:g} s.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
