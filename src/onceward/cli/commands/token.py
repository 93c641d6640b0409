"""`onceward token`: access tokens of a hub."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from onceward.cli.output import as_json, print_json, print_table
from onceward.cli.settings import DATA, settings
from onceward.errors import NotFound
from onceward.hub.config.config import Config
from onceward.hub.config.setting import Duration
from onceward.hub.security.scopes import GRANTABLE

if TYPE_CHECKING:
    from onceward.hub.db.engine import Database
    from onceward.hub.security.tokens import Token

_VALIDITY = Duration(1, 36_500 * 86_400.0, named=False)


def _read_validity(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else _VALIDITY.read(value, as_text=True)
    except ValueError:
        raise click.BadParameter(f"expected {_VALIDITY.expected}, not {value!r}") from None


@click.group()
def token() -> None:
    """Create, list and revoke the access tokens of a hub.

    Tokens are stored in the hub's database; the hub does not have to be running. Once a token has been created, every
    request needs a token, even after all of them are revoked. `open-local` reverts this.

    \b
    Examples:
      onceward token create ada --scope read --scope write
      onceward token list
      onceward token revoke ada
    """  # noqa: D301  # \b: click does not rewrap the paragraph


@token.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(GRANTABLE),
    metavar="SCOPE",
    multiple=True,
    required=True,
    help="Scope of the token: read, write, admin, metrics, or one for a part of the hub, such as read:topics. Repeat"
    " the option for several. No scope includes another.",
)
@click.option(
    "--expires",
    "valid_seconds",
    metavar="DURATION",
    callback=_read_validity,
    help="How long the token is valid: 12h, 90d. [default: until it is revoked]",
)
@as_json
@settings(*DATA)
def create(config: Config, name: str, scopes: tuple[str, ...], valid_seconds: float | None, as_json: bool) -> None:
    """Create a token for NAME and print it.

    The token is printed only this once: the hub stores just its digest. NAME is the principal of the token. Two tokens
    may share a name, so that one can replace the other without a gap.

    The scopes read, write and admin cover the whole hub, and metrics covers only /metrics. A scope with a part covers
    only that part: topics, tasks, events, ingest, turns, claims, storage, audit or settings.

    \b
    Examples:
      onceward token create ada --scope read --scope write --expires 90d
      onceward token create crawler --scope write:ingest
      onceward token create prometheus --scope metrics
      TOKEN=$(onceward token create robot --scope read)
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    from onceward.hub.audit.actor import local_actor  # noqa: PLC0415  # slow import; `--help` does without
    from onceward.hub.audit.log import append  # noqa: PLC0415  # slow import; `--help` does without
    from onceward.hub.config import data_folder  # noqa: PLC0415  # slow import; `--help` does without
    from onceward.hub.security import tokens  # noqa: PLC0415  # slow import; `--help` does without

    is_new = not data_folder.has_data(config)
    with data_folder.opened(config) as database, database.write() as tx:
        made, text = tokens.create(tx, name, scopes, valid_seconds=valid_seconds)
        details = {"name": made.name, "scopes": sorted(made.scopes), "expires_at": made.expires_at}
        append(tx, local_actor(), "token.create", made.token_id, details)
    if is_new:
        # Probably another folder than that of a running hub, which then still requires no token.
        click.echo(
            f"onceward: {str(config.data_folder)!r} had no data, so this token is for a new hub there; give the folder"
            " of an existing hub with --data-dir",
            err=True,
        )
    if as_json:
        click.echo(json.dumps({**_shown(made), "token": text}))
        return
    click.echo(text)
    until = "" if made.expires_at is None else f", valid until {made.expires_at}"
    click.echo(
        f"onceward: created token {made.token_id} for {made.name} ({_scopes(made)}{until}); it is not shown again",
        err=True,
    )


@token.command("list")
@as_json
@settings(*DATA)
def list_tokens(config: Config, as_json: bool) -> None:
    """List all tokens, oldest first, including revoked and expired ones. The secrets are not shown.

    The time of the last use is rounded down to the hour.

    \b
    Examples:
      onceward token list
      onceward token list --json
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    from onceward.hub.security import tokens  # noqa: PLC0415

    with _existing_database(config) as database, database.read() as tx:
        found = tokens.list_tokens(tx)
    if as_json:
        click.echo(json.dumps({"tokens": [_shown(one) for one in found]}))
        return
    rows = [
        (one.token_id, one.name, _scopes(one), one.created_at, one.expires_at, one.last_used_at, one.revoked_at)
        for one in found
    ]
    print_table(("ID", "NAME", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "REVOKED"), rows)


@token.command()
@click.argument("id_or_name")
@as_json
@settings(*DATA)
def revoke(config: Config, id_or_name: str, as_json: bool) -> None:
    """Revoke a token by its id, or all tokens with a name.

    The hub refuses them from the next request on.

    \b
    Examples:
      onceward token revoke ada           # all tokens with this name
      onceward token revoke 1a2b3c4d5e6f  # one token, by its id from `onceward token list`
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    from onceward.hub.audit.actor import local_actor  # noqa: PLC0415
    from onceward.hub.audit.log import append  # noqa: PLC0415
    from onceward.hub.security import tokens  # noqa: PLC0415

    with _existing_database(config) as database, database.write() as tx:
        count = tokens.revoke(tx, id_or_name)
        if count:
            append(tx, local_actor(), "token.revoke", id_or_name, {"revoked": count})
    if not count:
        raise NotFound(f"no valid token has the id or name {id_or_name!r}; `onceward token list` lists the tokens")
    click.echo(json.dumps({"revoked": count}) if as_json else f"revoked: {count}")


@token.command("open-local")
@click.option("--yes", is_flag=True, help="Confirm that every program on this machine gets full access to the hub.")
@as_json
@settings(*DATA)
def open_local(config: Config, yes: bool, as_json: bool) -> None:
    """Accept requests from this machine without a token again.

    This reverts the hub to its state before the first token was created. Every program on the hub's machine then has
    full access, and so has everyone who reaches the hub through a proxy on that machine. Revoke all tokens first.
    Creating a token ends this state. A running hub applies the change from the next request on.

    \b
    Examples:
      onceward token open-local --yes
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    from onceward.hub.audit.actor import local_actor  # noqa: PLC0415
    from onceward.hub.audit.log import append  # noqa: PLC0415
    from onceward.hub.security import tokens  # noqa: PLC0415

    if not yes:
        raise click.UsageError(
            "open-local gives every program on this machine full access to the hub; confirm with --yes"
        )
    with _existing_database(config) as database, database.write() as tx:
        since = tokens.open_local(tx)
        append(tx, local_actor(), "token.open_local", None, {})
    if as_json:
        print_json({"open_since": since})
        return
    click.echo(
        f"onceward: {since}: user {getpass.getuser()} opened this hub: requests from this machine need no token until"
        " the next token is created",
        err=True,
    )


@contextmanager
def _existing_database(config: Config) -> Iterator[Database]:
    """Open the database of an existing hub. A folder without data is an error: it is probably the wrong one."""
    from onceward.hub.config import data_folder  # noqa: PLC0415

    if not data_folder.has_data(config):
        raise NotFound(f"no hub data in {str(config.data_folder)!r}; give the folder with --data-dir")
    with data_folder.opened(config) as database:
        yield database


def _scopes(token: Token) -> str:
    return " ".join(sorted(token.scopes))


def _shown(token: Token) -> dict[str, object]:
    return {
        "token_id": token.token_id,
        "name": token.name,
        "scopes": sorted(token.scopes),
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "last_used_at": token.last_used_at,
        "revoked_at": token.revoked_at,
    }
