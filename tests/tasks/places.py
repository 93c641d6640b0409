"""Where the tests keep rows and bytes: empty data on SQLite or PostgreSQL, and in a folder or in S3.

Databases are made once and copied or emptied for each test: making one costs more than most tests.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import text
from tests.backends import Servers
from tests.tasks.vault import Vault

from onceward.blobs.open import open_blobs
from onceward.db.engine import open_database
from onceward.db.migrate import migrate

BOTH = ("sqlite-folder", "postgresql-s3")
ALL = (*BOTH, "postgresql-folder")

_EMPTY = "TRUNCATE tasks, blobs, attachments, attachment_labels, events, tokens RESTART IDENTITY CASCADE"


def database_url(place: str, servers: Servers, folder: Path) -> str:
    """The URL of a database of the hub with its tables, and with nothing in them."""
    if place.startswith("postgresql"):
        url = _postgres(servers)
        with closing(open_database(url, pool_size=1)) as database, database.write() as tx:
            # The triggers of the log refuse it to everybody else.
            tx.execute(text("SET LOCAL session_replication_role = replica"))
            tx.execute(text(_EMPTY))
            tx.execute(text("UPDATE event_log SET oldest_event_id = 1"))
        return url
    (folder / "hub.db").write_bytes(_sqlite())
    return f"sqlite:///{folder}/hub.db"


def blobs_url(place: str, servers: Servers, folder: Path) -> str:
    """The URL of a place for bytes where there are none. S3 needs the server's credentials in the environment."""
    return servers.s3.fresh_url() if place.endswith("s3") else (folder / "blobs").as_uri()


@contextmanager
def opened(place: str, servers: Servers, folder: Path) -> Iterator[Vault]:
    url, where, spools = database_url(place, servers, folder), blobs_url(place, servers, folder), folder / "spool"
    with closing(open_database(url)) as database:
        yield Vault(database, open_blobs(where, spool_folder=spools), url, where, spools)


@functools.cache
def _postgres(servers: Servers) -> str:
    url = servers.postgres.create_database()
    with closing(open_database(url)) as database:
        migrate(database)
    return url


@functools.cache
def _sqlite() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "hub.db"
        with closing(open_database(f"sqlite:///{file}")) as database:
            migrate(database)
        return file.read_bytes()
