"""Keys that outlive the process: an intent keeps its key, in a file, until it is done.

A client that dies between sending a request and using its answer does not know what happened. Started again, it asks for
the key of the same intent, gets the same key, and the server answers with the first outcome instead of a second effect.

Done is said by the application, after it has kept what the answer told it, never by the transport when the answer came:
a crash between the two would find the key gone, and the next one would be charged again.
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

from onceward.core.key import KEY_BYTES_MAX, check_text, shown
from onceward.core.moment import to_text
from onceward.errors import InDoubt, InvalidOption, StoreUnavailable
from onceward.store.durable import sync_fully
from onceward.terms import RETAIN_SECONDS_MAX, check_seconds

# How long the server remembers an outcome by default, counted from its settlement: later than the intent was begun.
RETAIN_SECONDS = 24 * 3600.0
# How long another process may hold the file: its transactions take milliseconds.
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
    """Something that was begun and is not done, as far as this client knows."""

    intent: str
    key: str
    created_at: datetime


class Intents:
    """Intents and their keys in a SQLite file, shared by all threads and processes that open it.

    `retain_seconds` is how long the server remembers a key. An unfinished intent that is older gets no key any more but
    `InDoubt`: the old key may have been forgotten, so that it would run again just as a new one would. Find out what
    happened, then tell `done`.

    Every call opens the file, and waits for the disk where it writes. Nothing has to be closed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retain_seconds: float = RETAIN_SECONDS,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        if os.fspath(path) in {"", ":memory:"}:
            raise InvalidOption("Intents need a file: what is kept in memory does not outlive the process")
        # Where it is now: every call opens it again, and the process may have gone elsewhere.
        self._path = Path(path).absolute()
        self._retain_seconds = check_seconds("retain_seconds", retain_seconds, RETAIN_SECONDS_MAX)
        self._clock = clock

    def key_for(self, intent: str) -> str:
        """The key of this intent: the one it has, or a new one that is on the disk before this returns.

        Whoever asks gets the same key, in any process, until `done` is told. Raises `InDoubt` for an intent that is
        older than the server's memory.
        """
        check_text("the intent", intent, KEY_BYTES_MAX)
        now = self._clock()
        with self._transaction() as db:
            new = (intent, str(uuid4()), to_text(now))
            db.execute("INSERT INTO client_intents VALUES (?, ?, ?) ON CONFLICT DO NOTHING", new)
            found = _read(db.execute("SELECT * FROM client_intents WHERE intent = ?", (intent,)).fetchone())
        if found.created_at < _moment(now) - timedelta(seconds=self._retain_seconds):
            raise InDoubt(
                f"{intent!r} was begun at {found.created_at.isoformat()} and never done; the server may have forgotten "
                f"the key {shown(found.key)!r}. Find out whether it happened, then call done({intent!r})"
            )
        return found.key

    def done(self, intent: str, key: str | None = None) -> None:
        """The intent is finished: whoever asks for it from now on means a new one. Told twice, it does nothing.

        With `key`, only if it still has that key: a late caller then does not end what another has begun anew.
        """
        check_text("the intent", intent, KEY_BYTES_MAX)
        with self._transaction() as db:
            db.execute("DELETE FROM client_intents WHERE intent = ? AND key = coalesce(?, key)", (intent, key))

    @contextmanager
    def until_done(self, intent: str) -> Iterator[str]:
        """The intent's key for a block of code. The intent is done when the block is left without an exception."""
        key = self.key_for(intent)
        yield key
        self.done(intent, key)

    def unfinished(self) -> list[Intent]:
        """All intents that are not done, oldest first: what a client that was started again has to look at."""
        with self._transaction() as db:
            return [_read(row) for row in db.execute("SELECT * FROM client_intents ORDER BY created_at, intent")]

    def purge(self, older_than_seconds: float) -> int:
        """Forget the unfinished intents that were begun longer ago, and say how many. They would get new keys."""
        check_seconds("older_than_seconds", older_than_seconds, RETAIN_SECONDS_MAX)
        before = to_text(self._clock() - round(older_than_seconds * 1_000_000))
        with self._transaction() as db:
            return db.execute("DELETE FROM client_intents WHERE created_at < ?", (before,)).rowcount

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction that holds the write lock from its start, so that no two callers both find nothing."""
        try:
            with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as db:
                # EXTRA also syncs the folder after a commit: with less, a power cut may take the last commit back.
                db.execute("PRAGMA synchronous=EXTRA")
                sync_fully(db)
                db.execute("BEGIN IMMEDIATE")
                db.execute(_TABLE)
                yield db
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the intents in {self._path} cannot be read or written: {error}") from error


def _read(row: tuple[str, str, str]) -> Intent:
    intent, key, created_at = row
    return Intent(intent, key, datetime.fromisoformat(created_at))


def _moment(microseconds: int) -> datetime:
    return datetime.fromisoformat(to_text(microseconds))
