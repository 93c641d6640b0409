"""Empty databases and blob stores for tests: SQLite or PostgreSQL, and a folder or S3.

Databases are created once and copied or emptied for each test: creating one costs more than most tests.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import text
from tests.backends import Servers
from tests.hub.tasks.attachment_store import AttachmentStore

from onceward.hub.blobs.open import open_blobs
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate

BOTH = ("sqlite-folder", "postgresql-s3")
ALL = (*BOTH, "postgresql-folder")

_EMPTY = "TRUNCATE tasks, blobs, attachments, attachment_labels, stored_bytes, events, tokens RESTART IDENTITY CASCADE"


def database_url(backend: str, servers: Servers, folder: Path) -> str:
    """Return the URL of an empty database of the hub, with its tables."""
    if backend.startswith("postgresql"):
        url = _postgres(servers)
        with closing(open_database(url, pool_size=1)) as database, database.write() as tx:
            # The triggers of the log refuse it to all others.
            tx.execute(text("SET LOCAL session_replication_role = replica"))
            tx.execute(text(_EMPTY))
            tx.execute(text("UPDATE event_log SET oldest_event_id = 1"))
        return url
    (folder / "hub.db").write_bytes(_sqlite())
    return f"sqlite:///{folder}/hub.db"


def blobs_url(backend: str, servers: Servers, folder: Path) -> str:
    """Return the URL of an empty blob store. S3 needs the server's credentials in the environment."""
    return servers.s3.fresh_url() if backend.endswith("s3") else (folder / "blobs").as_uri()


@contextmanager
def opened(backend: str, servers: Servers, folder: Path) -> Iterator[AttachmentStore]:
    url, where, temp_folder = (
        database_url(backend, servers, folder),
        blobs_url(backend, servers, folder),
        folder / "spool",
    )
    with closing(open_database(url)) as database:
        yield AttachmentStore(database, open_blobs(where, temp_folder=temp_folder), url, where, temp_folder)


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
