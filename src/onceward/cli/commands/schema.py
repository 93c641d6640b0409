"""`onceward schema`: tables created by one role, for another role that uses them and may not create any."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import click

from onceward.cli.backend import exactly_one
from onceward.cli.output import as_json, print_json
from onceward.errors import InvalidOption, InvalidStoreUrl
from onceward.store.redis import REDIS_SCHEMES

_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
_NONE_NEEDED = {
    "sqlite": "SQLite needs no schema: the file and its tables are created on first use.",
    "memory": "memory: needs no schema.",
    **dict.fromkeys(REDIS_SCHEMES, "Redis needs no schema: the ledger's keys are created as they are used."),
}
_ROLE = "ROLE"


def _on_a_store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the database and the role."""
    decorated: Callable[..., Any] = as_json(exactly_one("database", "ledger")(command))
    for name, metavar, about in (
        (
            "role",
            "NAME",
            "Role that the application or the hub connects as. It is granted what it needs, but not CREATE.",
        ),
        ("ledger", "URL", "For the tables of a ledger: postgresql://…"),
        ("database", "URL", "For the tables of a hub's database: postgresql://…"),
    ):
        decorated = click.option(f"--{name}", metavar=metavar, help=about)(decorated)
    return decorated


@click.group()
def schema() -> None:
    """Print or run the SQL that creates the tables on PostgreSQL.

    It includes the GRANTs for the role that uses the tables. A hub or an application creates its tables itself if its
    role may do so. If not, run these commands once as a role that may, and again after an upgrade of Onceward. A hub
    with its ledger in the same database needs two runs: one with --database, one with --ledger.

    \b
    Examples:
      onceward schema print --ledger postgresql:// --role app > ledger.sql
      onceward schema create --ledger postgresql://owner@host/name --role app
      onceward schema create --database postgresql://owner@host/name --role hub
    """  # noqa: D301  # \b: click does not rewrap the paragraph


@schema.command("print")
@_on_a_store
def print_(database: str | None, ledger: str | None, role: str | None, as_json: bool) -> None:
    """Print the SQL for an empty database. Only the scheme of the URL matters: no connection is opened.

    --json prints the SQL that creates the tables and that of the GRANTs apart: sql and grants, or null for both and the
    reason if the store needs no tables.

    \b
    Examples:
      onceward schema print --ledger postgresql:// --role app | psql postgresql://owner@host/name
      onceward schema print --database postgresql:// --role hub
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    no_schema_reason = _no_schema_reason(database, ledger)
    if no_schema_reason is not None:
        if as_json:
            print_json({"sql": None, "grants": None, "reason": no_schema_reason})
        else:
            click.echo(f"-- {no_schema_reason}")
        return
    script, grants = _sql(is_ledger=ledger is not None)
    if as_json:
        print_json({"sql": script.strip(), "grants": None if role is None else grants(role), "reason": None})
        return
    click.echo(script.strip() + "\n")
    if role is None:
        click.echo("-- For the role that uses the tables: replace ROLE with its name, or pass --role NAME.")
        click.echo("".join(f"-- {line}\n" for line in grants(_ROLE).splitlines()), nl=False)
    else:
        click.echo(grants(role), nl=False)


@schema.command("create")
@_on_a_store
def create(database: str | None, ledger: str | None, role: str | None, as_json: bool) -> None:
    """Create missing tables, upgrade older ones, and grant --role what it needs. Repeating it is safe.

    \b
    Examples:
      onceward schema create --ledger postgresql://owner@host/name --role app
      onceward schema create --database postgresql://owner@host/name --role hub
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    no_schema_reason = _no_schema_reason(database, ledger)
    if no_schema_reason is not None:
        if as_json:
            print_json({"created": False, "role": None, "reason": no_schema_reason})
        else:
            click.echo(no_schema_reason)
        return
    _, grants = _sql(is_ledger=ledger is not None)
    granted = None if role is None else grants(role)
    if ledger is not None:
        _create_ledger(ledger, granted)
    else:
        _create_database(str(database), granted)
    if as_json:
        print_json({"created": True, "role": role, "reason": None})
    else:
        click.echo("the tables are up to date" + ("" if role is None else f", and {role} may use them"))


def _no_schema_reason(database: str | None, ledger: str | None) -> str | None:
    """Return the reason why this store needs no schema. None on PostgreSQL, which needs one."""
    scheme, separator, _ = str(database or ledger).partition(":")
    if not separator or scheme.lower() not in {*_POSTGRES, *_NONE_NEEDED}:
        known = (
            "postgresql://…, redis://…, sqlite:///… or memory:" if database is None else "postgresql://… or sqlite:///…"
        )
        raise InvalidStoreUrl(f"{'--database' if database else '--ledger'} must be a URL: {known}")
    if database is not None and scheme.lower() not in {*_POSTGRES, "sqlite"}:
        raise InvalidOption(f"a hub's database must be SQLite or PostgreSQL, got {scheme}")
    return _NONE_NEEDED.get(scheme.lower())


def _sql(*, is_ledger: bool) -> tuple[str, Callable[[str], str]]:
    """Return the SQL that creates the tables, and a function that returns the GRANTs for a role."""
    if is_ledger:
        from onceward.store.postgres.roles import ledger_grants  # noqa: PLC0415  # slow import; `--help` does without
        from onceward.store.postgres.upgrade import ledger_script  # noqa: PLC0415

        return ledger_script(), ledger_grants
    from onceward.hub.db.migrate import database_grants, database_script  # noqa: PLC0415  # as above

    return database_script(), database_grants


def _create_ledger(url: str, grants: str | None) -> None:
    from onceward.store.postgres.store import PostgresStore  # noqa: PLC0415  # as above

    with closing(PostgresStore(url)) as store:
        store.check()
        if grants is not None:
            store.connection.run(grants)


def _create_database(url: str, grants: str | None) -> None:
    from onceward.hub.db.engine import open_database  # noqa: PLC0415  # as above
    from onceward.hub.db.migrate import migrate, run_script  # noqa: PLC0415

    with closing(open_database(url, pool_size=1)) as database:
        migrate(database)
        if grants is not None:
            run_script(database, grants)
