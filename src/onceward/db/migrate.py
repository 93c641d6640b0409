"""Brings a database up to the tables of this version, once, however many processes start at the same moment.

Forward only. A database that a newer version has migrated is refused. Looking is cheap, and Alembic is imported only
when there is something to do.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy
from sqlalchemy import text

from onceward.db.engine import Database, Transaction
from onceward.db.migrations import HEAD
from onceward.errors import SchemaTooNew

# Any number, as long as every version of Onceward takes the same.
_LOCK = 7_331_004
_STEPS = Path(__file__).parent / "migrations"


def migrate(database: Database) -> bool:
    """Bring the schema up to date; says whether there was anything to do. `SchemaTooNew` when it is ahead of us."""
    with database.read() as tx:
        if _is_current(_version(tx)):
            return False
    # On SQLite the write lock itself keeps the others out until this is committed.
    with database.write() as tx:
        if not database.is_sqlite:
            # However long another process takes for it.
            tx.execute(text("SET LOCAL lock_timeout = 0"))
            tx.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        if _is_current(_version(tx)):
            return False
        _upgrade(tx)
    return True


def _version(tx: Transaction) -> str:
    if not sqlalchemy.inspect(tx).has_table("alembic_version"):
        return ""
    return tx.execute(text("SELECT version_num FROM alembic_version")).scalar() or ""


def _is_current(version: str) -> bool:
    # Steps are numbered, so their names sort as they follow each other.
    if version > HEAD:
        raise SchemaTooNew(
            f"the database is at step {version} and this version of Onceward knows only {HEAD}; upgrade Onceward"
        )
    return version == HEAD


def _upgrade(tx: Transaction, step: str = "head") -> None:
    from alembic import command  # noqa: PLC0415  # only when the schema is behind
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_STEPS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = tx
    command.upgrade(config, step)
