"""`onceward claims`: what the ledger holds, and how an operator ends a doubt."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click

from onceward.cli.argument import json_argument
from onceward.cli.output import as_json, say_fields, say_json, say_table
from onceward.cli.settings import DATA
from onceward.cli.target import Shown, exactly_one, somewhere
from onceward.core.claim import Status
from onceward.hub.config import Config

# For scripts that watch: something is there that should not be.
FOUND = 3
_PAGE_MAX = 500
_versions = click.IntRange(1, 2**53 - 1)
_statuses = click.Choice([status.value for status in Status])


class Place(Protocol):
    """Where claims are: a hub that runs, or a ledger."""

    def claims(self, scope: str | None, status: str | None, limit: int, after: str | None, *, oldest: bool) -> Shown:
        """One page: `claims`, `next_after` and `has_more`."""

    def claim(self, scope: str, key: str) -> Shown: ...

    def resolve_claim(
        self, scope: str, key: str, version: int, verdict: str, reason: str, value: Any, response: Shown | None
    ) -> Shown:
        """`response` has `status`, `headers` and `body_base64`."""

    def abandon_claim(self, scope: str, key: str, version: int, reason: str, *, force: bool) -> Shown: ...

    def purge_claims(self) -> Shown: ...


@contextmanager
def _here(config: Config) -> Iterator[Place]:
    from onceward.cli.stored_claims import stored_claims  # noqa: PLC0415  # a ledger is a lot to import for `--help`

    with stored_claims(config) as found:
        yield found


def on_ledger(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say where; the command gets a `Place` instead of them."""
    return somewhere(command, (*DATA, "ledger", "namespace"), _here)


@click.group()
def claims() -> None:
    """Look at claims: who works on what, what failed, what is in doubt. And end doubts.

    A claim is in doubt when an effect that may not be repeated was interrupted: nobody knows whether it happened. Find
    out at its provider, then say so with `resolve`.

    With --hub it asks a hub that runs, with a token of scope admin; without it, it works straight on a ledger: a
    hub's, or with --ledger any that an application uses.
    """


@claims.command("list")
@click.option("--scope", metavar="SCOPE", help="Only of this scope.")
@click.option("--status", type=_statuses, help="Only with this status.")
@click.option("--oldest", is_flag=True, help="The oldest first.")
@click.option("--limit", type=click.IntRange(1), metavar="N", default=100, show_default=True, help="The most to list.")
@click.option(
    "--fail-if-any",
    type=_statuses,
    help=f"List only claims with this status, and exit with code {FOUND} if there are any.",
)
@as_json
@on_ledger
def list_(
    place: Place,
    scope: str | None,
    status: str | None,
    oldest: bool,
    limit: int,
    fail_if_any: str | None,
    as_json: bool,
) -> int:
    """List claims.

    \b
    onceward claims list --status in_doubt --oldest
    onceward claims list --fail-if-any in_doubt     # for a monitor
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    if fail_if_any and status not in (None, fail_if_any):
        raise click.UsageError(
            f"--fail-if-any {fail_if_any} lists only the claims with that status; leave out --status {status}",
            click.get_current_context(),
        )
    found = _listed(place, scope, fail_if_any or status, limit, oldest)
    if as_json:
        say_json(found)
    elif found["claims"] or not fail_if_any:
        rows = [(*(one[name] for name in _COLUMNS),) for one in found["claims"]]
        say_table([name.upper() for name in _COLUMNS], rows)
        if found["has_more"]:
            click.echo(f"there are more than {limit}; --limit lists more of them", err=True)
    return FOUND if fail_if_any and found["claims"] else 0


def _listed(place: Place, scope: str | None, status: str | None, limit: int, oldest: bool) -> Shown:
    """At most `limit` claims, in as many pages as it takes."""
    found = place.claims(scope, status, min(limit, _PAGE_MAX), None, oldest=oldest)
    claims = found["claims"]
    while found["has_more"] and len(claims) < limit:
        wanted = min(limit - len(claims), _PAGE_MAX)
        found = place.claims(scope, status, wanted, found["next_after"], oldest=oldest)
        claims += found["claims"]
    return {"claims": claims, "next_after": found["next_after"], "has_more": found["has_more"]}


_COLUMNS = ("status", "scope", "key", "version", "attempt", "created_at", "note")


@claims.command()
@click.argument("scope")
@click.argument("key")
@as_json
@on_ledger
def show(place: Place, scope: str, key: str, as_json: bool) -> None:
    """Show one claim, and what is kept of its outcome.

    \b
    onceward claims show call charge:42
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    _say(place.claim(scope, key), as_json)


@claims.command()
@click.argument("scope")
@click.argument("key")
@click.option(
    "--version", "seen", type=_versions, required=True, help="The version that you looked at (`claims show`)."
)
@click.option("--committed", is_flag=True, help="It happened.")
@click.option("--not-committed", is_flag=True, help="It did not happen, and it will not.")
@click.option("--value", metavar="JSON", help="With --committed: what the effect gave. [default: null]")
@click.option("--status", type=int, metavar="CODE", help="Of an HTTP claim: the status that the client's retry gets.")
@click.option(
    "--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="With --status: a header; once for each."
)
@click.option(
    "--body", metavar="TEXT", help="With --status: the body; @FILE reads it from a file, - from standard input."
)
@click.option("--reason", required=True, help="How you know. It is kept with your name.")
@as_json
@exactly_one("committed", "not_committed")
@on_ledger
def resolve(
    place: Place,
    scope: str,
    key: str,
    seen: int,
    committed: bool,
    not_committed: bool,  # noqa: ARG001  # the other of the two
    value: str | None,
    status: int | None,
    headers: tuple[str, ...],
    body: str | None,
    reason: str,
    as_json: bool,
) -> None:
    """End a doubt. Nothing is done when the claim has another version by now, or is not in doubt.

    KEY may be cut as the log shows it: its first 20 characters and "...".

    On an HTTP claim, whose scope begins with http:, --committed takes the response: --status, --header and --body. The
    client's retry gets exactly that. Without them it gets 409 outcome-not-kept.

    \b
    onceward claims resolve call charge:42 --version 7 --committed --value '{"charge": "ch_1"}' \\
        --reason "found in the bank's journal"
    onceward claims resolve call charge:43 --version 9 --not-committed --reason "provider_final: never arrived"
    onceward claims resolve http:user:ada 7f3c2b1a --version 4 --committed --status 201 \\
        --header "Content-Type: application/json" --body @paid.json --reason "found in the bank's journal"
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    verdict = "committed" if committed else "not_committed"
    given = None if value is None else json_argument(value, "'--value'")
    response = _response(status, headers, body)
    _say(place.resolve_claim(scope, key, seen, verdict, reason, given, response), as_json)


@claims.command()
@click.argument("scope")
@click.argument("key")
@click.option(
    "--version", "seen", type=_versions, required=True, help="The version that you looked at (`claims show`)."
)
@click.option("--reason", required=True, help="Why. It is kept with your name.")
@click.option("--force", is_flag=True, help="Also while the lease runs. The claim is then always in doubt.")
@as_json
@on_ledger
def abandon(place: Place, scope: str, key: str, seen: int, reason: str, force: bool, as_json: bool) -> None:
    """End a claim whose holder will not: it has failed if it may be repeated; otherwise it is in doubt.

    It is refused while the lease runs, unless the holder is proved dead from this machine. With --force it ends then,
    too, always in doubt: its holder may be alive, and may still settle it. KEY may be cut as the log shows it.

    \b
    onceward claims abandon call charge:42 --version 7 --reason "its machine is gone"
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    _say(place.abandon_claim(scope, key, seen, reason, force=force), as_json)


@claims.command()
@as_json
@on_ledger
def purge(place: Place, as_json: bool) -> None:
    """Delete claims that are past their retention. A hub that runs does so by itself.

    \b
    onceward claims purge --ledger sqlite:///payments.db
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    done = place.purge_claims()
    if as_json:
        say_json(done)
    else:
        say_fields(done)


def _response(status: int | None, headers: tuple[str, ...], body: str | None) -> Shown | None:
    if status is None:
        if headers or body is not None:
            raise click.UsageError(
                "--header and --body belong to a response: give --status too", click.get_current_context()
            )
        return None
    named: dict[str, list[str]] = {}
    for line in headers:
        name, colon, value = line.partition(":")
        if not colon:
            raise click.BadParameter(f"expected 'Name: value', not {line!r}", param_hint="'--header'")
        named.setdefault(name.strip(), []).append(value.strip())
    return {"status": status, "headers": named, "body_base64": base64.b64encode(_bytes(body)).decode()}


def _bytes(body: str | None) -> bytes:
    if body == "-":
        return sys.stdin.buffer.read()
    if body is not None and body.startswith("@"):
        try:
            return Path(body[1:]).read_bytes()
        except OSError as error:
            raise click.BadParameter(f"{body[1:]!r} cannot be read: {error.strerror}", param_hint="'--body'") from None
    return (body or "").encode()


def _say(claim: Shown, as_json: bool) -> None:
    if as_json:
        say_json(claim)
    else:
        say_fields({name: value for name, value in claim.items() if value is not None})
