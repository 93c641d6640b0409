"""A throw-away pgbouncer in transaction mode, on a free loopback port in front of a PostgreSQL of the tests.

The program comes from the system's packages (`system_packages.py`); no wheel has it.
"""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from typing import Any, Self

import psycopg
from psycopg.rows import dict_row
from tests.servers.postgres import PostgresServer
from tests.servers.server_process import ServerProcess
from tests.servers.system_packages import program

# More than any test opens; a test of the limit passes its own.
_CLIENTS_MAX = 500

_CONFIG = """
[databases]
* = host=127.0.0.1 port={server_port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
logfile = {folder}/pgbouncer.log
auth_type = trust
auth_file = {folder}/users
admin_users = admin
pool_mode = {pool_mode}
default_pool_size = {pool_size}
max_client_conn = {clients}
server_login_retry = 1
{user}
"""


class Pgbouncer:
    """One pooler. It keeps its port through `stop` and `start`; `close` throws it away.

    `pool_size` is the number of connections to the server for each pair of user and database.
    """

    def __init__(
        self,
        server: PostgresServer,
        *,
        pool_size: int = 10,
        clients: int = _CLIENTS_MAX,
        pool_mode: str = "transaction",
        roles: tuple[str, ...] = (),
    ) -> None:
        self._server_port = server.port
        self._options = {"pool_size": pool_size, "clients": clients, "pool_mode": pool_mode}
        self._program = program("pgbouncer")
        self._process = process = ServerProcess("pgbouncer", self._command, self._is_up, log="pgbouncer.log")
        names = ("postgres", "admin", *roles)
        (process.folder / "users").write_text("".join(f'"{name}" ""\n' for name in names))
        self._user = ""
        if os.geteuid() == 0:
            # It refuses to run as root.
            account = pwd.getpwnam("nobody")
            self._user = f"user = {account.pw_name}"
            for path in (process.folder, process.folder / "users"):
                os.chown(path, account.pw_uid, account.pw_gid)
        self.start, self.stop, self.close = process.start, process.stop, process.close
        self.freeze, self.thaw = process.freeze, process.thaw
        process.start_somewhere()

    @property
    def port(self) -> int:
        return self._process.port

    def url(self, url: str) -> str:
        """Return the URL of a database of the server, through the pooler."""
        return url.replace(f":{self._server_port}/", f":{self.port}/")

    def show(self, what: str) -> list[dict[str, Any]]:
        """Return what the admin console shows: `POOLS`, `CLIENTS`, `SERVERS`, …"""
        # The console takes simple queries only.
        with self._console() as console:
            return console.cursor(row_factory=dict_row).execute(f"SHOW {what}".encode()).fetchall()

    def _console(self) -> psycopg.Connection[Any]:
        address = f"postgresql://admin@127.0.0.1:{self.port}/pgbouncer"
        return psycopg.connect(address, autocommit=True, connect_timeout=2, cursor_factory=psycopg.ClientCursor)

    def _command(self) -> list[str]:
        folder = self._process.folder
        config = _CONFIG.format(
            server_port=self._server_port, port=self.port, folder=folder, user=self._user, **self._options
        )
        (folder / "pgbouncer.ini").write_text(config)
        return [str(self._program), "-q", str(folder / "pgbouncer.ini")]

    def _is_up(self) -> bool:
        with suppress(psycopg.OperationalError):
            self._console().close()
            return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
