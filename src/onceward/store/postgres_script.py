"""The SQL that makes the ledger's tables on PostgreSQL, as a text: what the store itself runs, written down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from onceward.store.postgres_wire import Connection, create_tables


def ledger_script() -> str:
    """For an empty database, in one transaction."""
    written = _Written()
    create_tables(cast("Connection", written))
    return "\n".join(written.statements)


class _Written:
    """Stands in for a connection to an empty database."""

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
