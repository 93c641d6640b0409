"""Checks of the hub's database: schema, privileges, clock, durability, tokens and test mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from sqlalchemy import text

from onceward.hub.config.config import Config
from onceward.hub.config.setting import without_password
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migration_of
from onceward.hub.db.migrations import HEAD
from onceward.hub.db.tables import metadata_on
from onceward.hub.doctor.check_result import CheckResult, errors_as_problems, ok, problem, warning
from onceward.hub.doctor.server import START, clock_check, file_durability, file_of, owner_url, postgres_durability
from onceward.hub.doctor.usage import usage_checks
from onceward.hub.ingest.entries.schema import test_mode
from onceward.hub.security.hosts import is_loopback
from onceward.hub.security.tokens import is_required

# The first missing privileges show what kind of role it is.
_SHOWN_MAX = 3


def database_checks(config: Config, clock: Callable[[], float]) -> Iterator[CheckResult]:
    """Check the database of a hub, without migrating it."""
    url = config.database_url
    if (file := file_of(url)) is not None and not file.exists():
        yield problem(
            "database", f"{str(file)!r} does not exist", "give the hub's folder with --data-dir, or start the hub"
        )
        return
    with contextlib.closing(open_database(url, pool_size=1)) as database:
        found = migration_of(database)
        yield ok("database", f"{without_password(url)} is reachable")
        yield _migration(found)
        if not database.is_sqlite:
            yield from _privileges(database, config)
            yield from errors_as_problems("connections", START, lambda: _connections(database, config))
            with database.read() as tx:
                yield clock_check(
                    "database-clock",
                    float(tx.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one()),
                    clock,
                )
        durability = (
            file_durability("durability", file) if file is not None else postgres_durability("durability", database)
        )
        yield from errors_as_problems("durability", START, lambda: durability)
        if found == HEAD:
            yield from errors_as_problems("tokens", START, lambda: _tokens(config, database))
            yield from errors_as_problems("test-mode", START, lambda: _test_mode(database))
            most = config.attachments.max_bytes_per_principal
            yield from errors_as_problems("stored-bytes", START, lambda: usage_checks(database, most))


def _migration(found: str) -> CheckResult:
    if found == HEAD:
        return ok("schema", f"the tables are at {HEAD}")
    if found > HEAD:
        return problem("schema", f"the tables are at {found}, and this version knows {HEAD}", "upgrade Onceward")
    return warning(
        "schema",
        f"the tables are at {found or 'nothing'}, and this version needs {HEAD}",
        "back up the data; the next start of the hub, or onceward schema create, upgrades them",
    )


# By oid, because a role may not even be allowed to look up a name in a schema.
_MISSING = text("""
    SELECT current_user, string_agg(
        CASE WHEN NOT has_schema_privilege(c.relnamespace, 'USAGE') THEN 'USAGE ON SCHEMA ' || c.relnamespace::regnamespace
             ELSE p || ' ON ' || c.relname END, ', ')
        FILTER (WHERE NOT has_schema_privilege(c.relnamespace, 'USAGE') OR NOT has_table_privilege(c.oid, p))
    FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
    WHERE c.relkind = 'r' AND (c.relnamespace = to_regnamespace(current_schema()) AND c.relname = ANY (:names)
        OR c.relnamespace::regnamespace::text || '.' || c.relname = ANY (:names))
""")


def _privileges(database: Database, config: Config) -> Iterator[CheckResult]:
    names = sorted(metadata_on(is_sqlite=False).tables)
    with database.read() as tx:
        role, missing = tx.execute(_MISSING, {"names": names}).one()
    if missing is None:
        yield ok("privileges", f"the role {role} may use all tables")
        return
    lacking = list(dict.fromkeys(missing.split(", ")))
    yield problem(
        "privileges",
        f"the role {role} lacks {', '.join(lacking[:_SHOWN_MAX])}" + (", …" if len(lacking) > _SHOWN_MAX else ""),
        f"as the owner of the tables, run: onceward schema create --database {owner_url(config.database_url)} --role {role}",
    )


# The server's limit without the connections that it reserves, and the limits of this role and this database (-1: none).
_LIMITS = text("""
    SELECT current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
               - coalesce(current_setting('reserved_connections', true)::integer, 0),
           (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
           (SELECT datconnlimit FROM pg_database WHERE datname = current_database())
""")


def _connections(database: Database, config: Config) -> Iterator[CheckResult]:
    """Compare the connections of all workers with what the server allows."""
    from onceward.hub.db.postgres.connection import database_connection  # noqa: PLC0415  # needs the driver

    workers, each = config.hub.workers, config.hub.database_connections + (config.ledger_url == config.database_url)
    needed = workers * each
    with database.read() as tx:
        is_pooled = database_connection(tx).is_pooled
        allowed = min(limit for limit in tx.execute(_LIMITS).one() if limit >= 0)
    sums = f"{workers} workers with {each} connections each" if workers > 1 else f"a worker with {each} connections"
    if is_pooled:
        detail = f"a connection pooler is in front of the server; it must accept {needed} clients: {sums}"
        yield ok("connections", detail, needed=needed)
    elif needed > allowed:
        yield warning(
            "connections",
            f"the server allows {allowed} connections, and the hub may need {needed}: {sums}",
            "raise max_connections of the server, lower hub.workers or hub.database_connections, or use a pooler",
            needed=needed,
            allowed=allowed,
        )
    else:
        detail = f"the server allows {allowed} connections, and the hub needs at most {needed}: {sums}"
        yield ok("connections", detail, needed=needed, allowed=allowed)


def _tokens(config: Config, database: Database) -> Iterator[CheckResult]:
    with database.read() as tx:
        required = is_required(tx)
    if required:
        yield ok("tokens", "the hub requires a token")
    elif is_loopback(config.hub.host):
        yield ok("tokens", "the hub requires no token, and listens only on this machine")
    else:
        yield problem(
            "tokens",
            f"no token exists, and hub.host is {config.hub.host}: the hub does not start",
            "onceward token create NAME --scope read --scope write",
        )


def _test_mode(database: Database) -> Iterator[CheckResult]:
    with database.read() as tx:
        enabled = test_mode(tx)
    if enabled:
        yield warning("test-mode", "new entries go into the test schema", "onceward ingest test-mode off")
    else:
        yield ok("test-mode", "off")
