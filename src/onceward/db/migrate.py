"""Brings a database up to the tables of this version, once, however many processes start at the same moment.

Forward only. A database that a newer version has migrated is refused. Looking is cheap, and Alembic is imported only
when there is something to do.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceward.errors import missing_extra

try:
    import sqlalchemy
    from sqlalchemy import text
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "hub") from error

from onceward.db.engine import Database, Transaction
from onceward.db.migrations import HEAD
from onceward.db.tables import SCHEMAS, metadata_on
from onceward.errors import SchemaTooNew
from onceward.store.postgres_roles import quoted, usage

if TYPE_CHECKING:
    from alembic.config import Config

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

    config = _config()
    config.attributes["connection"] = tx
    command.upgrade(config, step)


def database_script() -> str:
    """The SQL that makes the tables in an empty PostgreSQL database, in one transaction."""
    from alembic import command  # noqa: PLC0415  # as above

    written = io.StringIO()
    command.upgrade(_config(written), "head", sql=True)
    return written.getvalue()


def database_grants(role: str) -> str:
    """The statements that let this role use the tables on PostgreSQL and not change them."""
    name = quoted(role)
    tables = ", ".join(sorted(metadata_on(is_sqlite=False).tables))
    return f"""\
{usage(role)}
GRANT USAGE ON SCHEMA {", ".join(SCHEMAS)} TO {name};
GRANT SELECT ON alembic_version TO {name};
GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {name};
"""


def run_script(database: Database, script: str) -> None:
    """Run statements as they are on PostgreSQL, in one transaction."""
    with database.write() as tx:
        driver: Any = tx.connection.driver_connection
        # Past SQLAlchemy, which would take a percent sign for a parameter; its errors are those of the driver.
        driver.execute(script)


def _config(written: io.StringIO | None = None) -> Config:
    from alembic.config import Config  # noqa: PLC0415  # as above

    config = Config(output_buffer=written)
    config.set_main_option("script_location", str(_STEPS))
    config.set_main_option("path_separator", "os")
    return config
