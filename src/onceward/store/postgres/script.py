"""The SQL script that creates the ledger's tables on PostgreSQL: the statements that the store itself runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from onceward.store.postgres.driver import TimeoutConnection
from onceward.store.postgres.upgrade import create_tables


def ledger_script() -> str:
    """Return the script for an empty database, as one transaction."""
    written = _RecordedStatements()
    create_tables(cast("TimeoutConnection", written))
    return "\n".join(written.statements)


class _RecordedStatements:
    """A replacement for a connection that records the statements instead of running them."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.statements.append("BEGIN;")
        yield
        self.statements.append("COMMIT;")

    def execute(self, statement: str | bytes, values: Sequence[int] = ()) -> None:
        text = statement.decode() if isinstance(statement, bytes) else statement
        for value in values:
            text = text.replace("%s", str(int(value)), 1)
        self.statements.append(text.strip().rstrip(";") + ";")
