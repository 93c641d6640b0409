"""`onceward token`: who may use the hub, and for what."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from onceward.cli.output import as_json, say_table
from onceward.cli.settings import DATA, settings
from onceward.errors import NotFound
from onceward.hub.config import Config

if TYPE_CHECKING:
    from onceward.db.engine import Database
    from onceward.hub.tokens import Token

# As in `onceward.hub.tokens`, which is imported only when a command runs.
SCOPES = ("read", "write", "admin")


@click.group()
def token() -> None:
    """Make, list and revoke the tokens that the hub accepts.

    They are kept in the hub's database; the hub need not be running. Once a token was created, every request needs one,
    also after all of them are revoked.
    """


@token.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    required=True,
    help="What it may do; once for each. None of them implies another.",
)
@as_json
@settings(*DATA)
def create(config: Config, name: str, scopes: tuple[str, ...], as_json: bool) -> None:
    """Make a token for NAME and print it, this once: only a digest is kept.

    NAME is whom the token stands for. Two tokens may share a name, so that one can replace the other without a gap.

    \b
    onceward token create ada --scope read --scope write
    TOKEN=$(onceward token create robot --scope read)
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    from onceward.hub import data, tokens  # noqa: PLC0415  # a database is a lot to import for `--help`

    with data.opened(config) as database, database.write() as tx:
        made, text = tokens.create(tx, name, scopes)
    if as_json:
        click.echo(json.dumps({**_shown(made), "token": text}))
        return
    click.echo(text)
    click.echo(f"onceward: token {made.token_id} for {made.name} ({_scopes(made)}); it is not shown again", err=True)


@token.command("list")
@as_json
@settings(*DATA)
def list_tokens(config: Config, as_json: bool) -> None:
    """List all tokens, oldest first, also those that were revoked. The tokens themselves are not shown.

    \b
    onceward token list
    onceward token list --json
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    from onceward.hub import tokens  # noqa: PLC0415

    with _there(config) as database, database.read() as tx:
        found = tokens.listed(tx)
    if as_json:
        click.echo(json.dumps({"tokens": [_shown(one) for one in found]}))
        return
    rows = [(one.token_id, one.name, _scopes(one), one.created_at, one.revoked_at) for one in found]
    say_table(("ID", "NAME", "SCOPES", "CREATED", "REVOKED"), rows)


@token.command()
@click.argument("id_or_name")
@as_json
@settings(*DATA)
def revoke(config: Config, id_or_name: str, as_json: bool) -> None:
    """End the token with this id, or all tokens with this name, from their next request on.

    \b
    onceward token revoke ada
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    from onceward.hub import tokens  # noqa: PLC0415

    with _there(config) as database, database.write() as tx:
        count = tokens.revoke(tx, id_or_name)
    if not count:
        raise NotFound(f"there is no live token with the id or name {id_or_name!r}; see onceward token list")
    click.echo(json.dumps({"revoked": count}) if as_json else f"revoked: {count}")


@token.command("open-local")
@click.option("--yes", is_flag=True, help="Confirm that every program on this machine may do everything.")
@settings(*DATA)
def open_local(config: Config, yes: bool) -> None:
    """Let requests from this machine in without a token again, as before the first token.

    Every program on the hub's machine may then do everything, and so may everybody behind a proxy on it. Revoke all
    tokens first. The next token that is created ends it. A hub that is running follows with its next request.

    \b
    onceward token open-local --yes
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    from onceward.hub import tokens  # noqa: PLC0415

    if not yes:
        raise click.UsageError("open-local lets every program on this machine do everything; confirm it with --yes")
    with _there(config) as database, database.write() as tx:
        since = tokens.open_local(tx)
    click.echo(
        f"onceward: {since}: user {getpass.getuser()} opened this hub: requests from its own machine need no token until"
        " the next one is created",
        err=True,
    )


@contextmanager
def _there(config: Config) -> Iterator[Database]:
    """The database of a hub that has been there: whoever looks for tokens in an empty folder looks in the wrong one."""
    from onceward.hub import data  # noqa: PLC0415

    if not data.has_data(config):
        raise NotFound(f"there is no data of a hub in {str(config.data_folder)!r}; name it with --data-dir")
    with data.opened(config) as database:
        yield database


def _scopes(token: Token) -> str:
    return " ".join(sorted(token.scopes))


def _shown(token: Token) -> dict[str, object]:
    return {
        "token_id": token.token_id,
        "name": token.name,
        "scopes": sorted(token.scopes),
        "created_at": token.created_at,
        "revoked_at": token.revoked_at,
    }
