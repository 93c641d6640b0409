"""Every statement that a database gets, through SQLAlchemy or not."""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import event

from onceward.hub.db.engine import Database

_NOT_COUNTED = ("BEGIN", "PRAGMA")


class StatementTrace:
    """Records the statements of all connections that the database opens from now on, and its commits."""

    def __init__(self, database: Database) -> None:
        self.statements: list[str] = []
        self.commits = 0
        self._last = ""
        engine = database.engine
        if database.is_sqlite:
            engine.dispose()
            event.listen(engine, "connect", self._connected, insert=True)
        else:
            event.listen(engine, "before_cursor_execute", self._executed)
            event.listen(engine, "commit", lambda _: self._note("COMMIT"))

    def clear(self) -> None:
        self.statements, self.commits = [], 0

    def _connected(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.set_trace_callback(self._note)

    def _executed(self, _connection: object, _cursor: object, statement: str, *_rest: Any) -> None:
        self._note(statement)

    def _note(self, text: str) -> None:
        if text == "COMMIT":
            self.commits += 1
        elif not text.startswith(_NOT_COUNTED) and self._last != text:
            self.statements.append(" ".join(text.split()))
        # SQLite reports a statement again when it begins to run a trigger.
        self._last = text
