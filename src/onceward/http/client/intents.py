"""Keys that survive the client process: an intent stores its key in a file until it is done.

A client that dies between sending a request and using its response does not know what happened. After a restart it asks
for the key of the same intent and gets the same key. The server then replays the first outcome, without a second
effect.

The application calls `done` after it has stored the result. The transport must not do that when the response arrives:
after a crash between the two the key would be gone, and the next request would charge again.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import uuid4

from onceward.core.key import KEY_BYTES_MAX, check_text, short_key
from onceward.core.timestamp import to_text
from onceward.errors import InDoubt, InvalidOption, StoreUnavailable
from onceward.ledger.terms import RETAIN_SECONDS_MAX, check_seconds
from onceward.store.durable import sync_fully

# The server's default retention. The server counts it from the settlement, which is later than the beginning of the
# intent, so it still remembers the key of an intent that is younger than this.
RETAIN_SECONDS = 24 * 3600.0
# How long to wait for another process that has locked the file. Its transactions take milliseconds.
BUSY_SECONDS = 10.0

_TABLE = """
CREATE TABLE IF NOT EXISTS client_intents (
    intent TEXT PRIMARY KEY,
    key TEXT NOT NULL,
    created_at TEXT NOT NULL
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Intent:
    """An intent that was begun and is not done.

    Attributes:
        intent: The application's name for it.
        key: Its idempotency key.
        created_at: When it was begun.
    """

    intent: str
    key: str
    created_at: datetime


class Intents:
    """Intents and their keys in a SQLite file, shared by all threads and processes that open it.

    Every call opens the file, and a call that writes waits for the disk. Nothing has to be closed.

    Args:
        path: The file. It is created if it does not exist.
        retain_seconds: How long the server remembers a key. For an older unfinished intent, `key_for` raises
            `InDoubt`: the server may have forgotten the key, and then a request with it would run again. Find out
            what happened, then call `done`.
        clock: Returns the time in microseconds since 1970.

    Raises:
        InvalidOption: `path` is not a file, or `retain_seconds` is not a valid number of seconds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retain_seconds: float = RETAIN_SECONDS,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        if os.fspath(path) in {"", ":memory:"}:
            raise InvalidOption(f"Intents need a file, got {os.fspath(path)!r}: memory does not survive the process")
        # Make it absolute: every call opens the file, and the process may change its working directory.
        self._path = Path(path).absolute()
        self._retain_seconds = check_seconds("retain_seconds", retain_seconds, RETAIN_SECONDS_MAX)
        self._clock = clock

    def key_for(self, intent: str) -> str:
        """Return the key of an intent. A new key is on disk before this returns.

        All callers in all processes get the same key until `done` is called.

        Args:
            intent: The application's name for what it is about to do, such as `"charge order 42"`.

        Returns:
            The key to send as `Idempotency-Key`.

        Raises:
            InDoubt: The intent is older than `retain_seconds`, so the server may have forgotten its key.
            InvalidKey: `intent` is not a valid text.
            StoreUnavailable: The file cannot be read or written.
        """
        check_text("the intent", intent, KEY_BYTES_MAX)
        now = self._clock()
        with self._transaction() as db:
            new = (intent, str(uuid4()), to_text(now))
            db.execute("INSERT INTO client_intents VALUES (?, ?, ?) ON CONFLICT DO NOTHING", new)
            found = _read(db.execute("SELECT * FROM client_intents WHERE intent = ?", (intent,)).fetchone())
        if found.created_at < _datetime(now) - timedelta(seconds=self._retain_seconds):
            raise InDoubt(
                f"{intent!r} was begun at {found.created_at.isoformat()} and is not done; the server may have forgotten"
                f" the key {short_key(found.key)!r}. Find out whether it happened, then call done({intent!r})"
            )
        return found.key

    def done(self, intent: str, key: str | None = None) -> None:
        """Finish an intent: from now on the same name is a new intent. A second call does nothing.

        Args:
            intent: The name of the intent.
            key: Finish it only if it still has this key, so that a late caller does not end a newer intent.

        Raises:
            InvalidKey: `intent` is not a valid text.
            StoreUnavailable: The file cannot be read or written.
        """
        check_text("the intent", intent, KEY_BYTES_MAX)
        with self._transaction() as db:
            db.execute("DELETE FROM client_intents WHERE intent = ? AND key = coalesce(?, key)", (intent, key))

    @contextmanager
    def until_done(self, intent: str) -> Iterator[str]:
        """Provide the key of an intent to a block. The intent is done if the block ends without an exception.

        Args:
            intent: The name of the intent.

        Returns:
            A context manager that yields the key.

        Raises:
            InDoubt: The intent is older than `retain_seconds`, so the server may have forgotten its key.
            InvalidKey: `intent` is not a valid text.
            StoreUnavailable: The file cannot be read or written.
        """
        key = self.key_for(intent)
        yield key
        self.done(intent, key)

    def unfinished(self) -> list[Intent]:
        """List all intents that are not done, for a client that was restarted.

        Returns:
            The intents, the oldest first.

        Raises:
            StoreUnavailable: The file cannot be read or written.
        """
        with self._transaction() as db:
            return [_read(row) for row in db.execute("SELECT * FROM client_intents ORDER BY created_at, intent")]

    def purge(self, older_than_seconds: float) -> int:
        """Delete old unfinished intents. The same names then get new keys.

        Args:
            older_than_seconds: Delete intents that were begun longer ago than this.

        Returns:
            The number of deleted intents.

        Raises:
            InvalidOption: `older_than_seconds` is not a valid number of seconds.
            StoreUnavailable: The file cannot be read or written.
        """
        check_seconds("older_than_seconds", older_than_seconds, RETAIN_SECONDS_MAX)
        before = to_text(self._clock() - round(older_than_seconds * 1_000_000))
        with self._transaction() as db:
            return db.execute("DELETE FROM client_intents WHERE created_at < ?", (before,)).rowcount

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that holds the write lock from its start, so that two callers cannot both insert a key."""
        try:
            with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as db:
                # EXTRA also syncs the folder after a commit. Otherwise a power failure may undo the last commit.
                db.execute("PRAGMA synchronous=EXTRA")
                sync_fully(db)
                db.execute("BEGIN IMMEDIATE")
                db.execute(_TABLE)
                yield db
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreUnavailable(f"cannot read or write the intents in {self._path}: {error}") from error


def _read(row: tuple[str, str, str]) -> Intent:
    intent, key, created_at = row
    return Intent(intent, key, datetime.fromisoformat(created_at))


def _datetime(microseconds: int) -> datetime:
    return datetime.fromisoformat(to_text(microseconds))
