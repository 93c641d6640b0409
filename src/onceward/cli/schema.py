"""`onceward schema`: the tables made by one role, and used by another that may not make any."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import click

from onceward.cli.target import exactly_one
from onceward.errors import InvalidOption, InvalidStoreUrl

_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
_NONE_NEEDED = {
    "sqlite": "SQLite needs no schema: the file and its tables are made at the first use.",
    "memory": "memory: needs no schema.",
    **dict.fromkeys(
        ("redis", "rediss", "redis+cluster", "rediss+cluster"),
        "Redis needs no schema: the ledger's keys are made as they are used.",
    ),
}
_ROLE = "ROLE"


def _on_a_store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say where, and for whom."""
    decorated: Callable[..., Any] = exactly_one("database", "ledger")(command)
    for name, metavar, about in (
        ("role", "NAME", "The role that the application or the hub runs under; it gets what it needs, and no CREATE."),
        ("ledger", "URL", "The tables of a ledger: postgresql://…"),
        ("database", "URL", "The tables of a hub's database: postgresql://…"),
    ):
        decorated = click.option(f"--{name}", metavar=metavar, help=about)(decorated)
    return decorated


@click.group()
def schema() -> None:
    """Print or run the SQL that makes the tables on PostgreSQL, and the GRANTs for the role that uses them.

    A hub or an application makes its tables itself where its role may. Where it may not, a role that may does it once
    with these commands, and again after an upgrade of Onceward. A hub that keeps its ledger in the same database needs
    two runs: one with --database, one with --ledger.

    \b
    onceward schema print --ledger postgresql:// --role app > ledger.sql
    onceward schema create --ledger postgresql://owner@host/name --role app
    onceward schema create --database postgresql://owner@host/name --role hub
    """  # noqa: D301  # \b is click's mark for lines that stay as they are


@schema.command("print")
@_on_a_store
def print_(database: str | None, ledger: str | None, role: str | None) -> None:
    """Print the SQL for an empty database. Of the URL only its kind counts: nothing is connected to.

    \b
    onceward schema print --ledger postgresql:// --role app | psql postgresql://owner@host/name
    onceward schema print --database postgresql:// --role hub
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    kind = _kind(database, ledger)
    if kind is not None:
        click.echo(f"-- {kind}")
        return
    script, grants = _texts(is_ledger=ledger is not None)
    click.echo(script.strip() + "\n")
    if role is None:
        click.echo("-- For the role that uses the tables, with its name in place of ROLE (--role NAME does it):")
        click.echo("".join(f"-- {line}\n" for line in grants(_ROLE).splitlines()), nl=False)
    else:
        click.echo(grants(role), nl=False)


@schema.command("create")
@_on_a_store
def create(database: str | None, ledger: str | None, role: str | None) -> None:
    """Make what is missing, or upgrade what is older, and grant --role what it needs. Running it twice does no harm.

    \b
    onceward schema create --ledger postgresql://owner@host/name --role app
    onceward schema create --database postgresql://owner@host/name --role hub
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    kind = _kind(database, ledger)
    if kind is not None:
        click.echo(kind)
        return
    _, grants = _texts(is_ledger=ledger is not None)
    granted = None if role is None else grants(role)
    if ledger is not None:
        _create_ledger(ledger, granted)
    else:
        _create_database(str(database), granted)
    click.echo("the tables are there" + ("" if role is None else f", and {role} may use them"))


def _kind(database: str | None, ledger: str | None) -> str | None:
    """Why nothing is needed; None on PostgreSQL."""
    scheme, separator, _ = str(database or ledger).partition(":")
    if not separator or scheme.lower() not in {*_POSTGRES, *_NONE_NEEDED}:
        known = (
            "postgresql://…, redis://…, sqlite:///… or memory:" if database is None else "postgresql://… or sqlite:///…"
        )
        raise InvalidStoreUrl(f"{'--database' if database else '--ledger'} is a URL: {known}")
    if database is not None and scheme.lower() not in {*_POSTGRES, "sqlite"}:
        raise InvalidOption(f"a hub's database is SQLite or PostgreSQL, not {scheme}")
    return _NONE_NEEDED.get(scheme.lower())


def _texts(*, is_ledger: bool) -> tuple[str, Callable[[str], str]]:
    """The SQL that makes the tables, and that which lets a role use them."""
    if is_ledger:
        from onceward.store.postgres_roles import ledger_grants  # noqa: PLC0415  # a driver is a lot for `--help`
        from onceward.store.postgres_script import ledger_script  # noqa: PLC0415

        return ledger_script(), ledger_grants
    from onceward.db.migrate import database_grants, database_script  # noqa: PLC0415  # as above

    return database_script(), database_grants


def _create_ledger(url: str, grants: str | None) -> None:
    from onceward.store.postgres import PostgresStore  # noqa: PLC0415  # as above

    with closing(PostgresStore(url)) as store:
        store.check()
        if grants is not None:
            store.wire.run(grants)


def _create_database(url: str, grants: str | None) -> None:
    from onceward.db.engine import open_database  # noqa: PLC0415  # as above
    from onceward.db.migrate import migrate, run_script  # noqa: PLC0415

    with closing(open_database(url, pool_size=1)) as database:
        migrate(database)
        if grants is not None:
            run_script(database, grants)
