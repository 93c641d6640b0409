"""Migration of the database to the tables of this version; safe if several processes start at the same time.

Migrations only go forward. A database migrated by a newer version is refused. The check is cheap: Alembic is
imported only if a migration is needed.
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

from onceward.errors import SchemaTooNew
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.migrations import HEAD
from onceward.hub.db.tables import SCHEMAS, metadata_on
from onceward.store.postgres.roles import quoted, usage

if TYPE_CHECKING:
    from alembic.config import Config

# An arbitrary number, but the same in every version of Onceward.
_LOCK = 7_331_004
_STEPS = Path(__file__).parent / "migrations"


def migrate(database: Database) -> bool:
    """Migrate the tables, and return whether that was needed. Raise `SchemaTooNew` if a newer version migrated them."""
    with database.read() as tx:
        if _is_current(_version(tx)):
            return False
    # On SQLite, the write lock excludes other processes until the commit.
    with database.write() as tx:
        if not database.is_sqlite:
            # Wait for the migration of another process, however long it takes.
            tx.execute(text("SET LOCAL lock_timeout = 0"))
            tx.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        if _is_current(_version(tx)):
            return False
        _upgrade(tx)
    return True


def migration_of(database: Database) -> str:
    """Return the name of the last migration of the tables, without changing anything. Empty for an empty database."""
    with database.read() as tx:
        return _version(tx)


def _version(tx: Transaction) -> str:
    if not sqlalchemy.inspect(tx).has_table("alembic_version"):
        return ""
    return tx.execute(text("SELECT version_num FROM alembic_version")).scalar() or ""


def _is_current(version: str) -> bool:
    # Migrations are numbered, so their names sort in order.
    if version > HEAD:
        raise SchemaTooNew(
            f"the database is at migration {version}, but this version of Onceward only knows {HEAD}; upgrade Onceward"
        )
    return version == HEAD


def _upgrade(tx: Transaction, step: str = "head") -> None:
    from alembic import command  # noqa: PLC0415  # only needed for a migration

    config = _config()
    config.attributes["connection"] = tx
    command.upgrade(config, step)


def database_script() -> str:
    """Return the SQL that creates the tables in an empty PostgreSQL database, in one transaction."""
    from alembic import command  # noqa: PLC0415  # as above

    written = io.StringIO()
    command.upgrade(_config(written), "head", sql=True)
    return written.getvalue()


def database_grants(role: str) -> str:
    """Return the GRANT statements for a PostgreSQL role that uses the tables but cannot alter them."""
    name = quoted(role)
    tables = ", ".join(sorted(metadata_on(is_sqlite=False).tables))
    return f"""\
{usage(role)}
GRANT USAGE ON SCHEMA {", ".join(SCHEMAS)} TO {name};
GRANT SELECT ON alembic_version TO {name};
GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {name};
"""


def run_script(database: Database, script: str) -> None:
    """Run unchanged SQL statements on PostgreSQL, in one transaction."""
    with database.write() as tx:
        driver: Any = tx.connection.driver_connection
        # Bypass SQLAlchemy, which would read a percent sign as a parameter. Errors are the driver's own.
        driver.execute(script)


def _config(written: io.StringIO | None = None) -> Config:
    from alembic.config import Config  # noqa: PLC0415  # as above

    config = Config(output_buffer=written)
    config.set_main_option("script_location", str(_STEPS))
    config.set_main_option("path_separator", "os")
    return config
