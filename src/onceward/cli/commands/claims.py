"""`onceward claims`: list the claims of a ledger, and resolve, abandon or forget them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click

from onceward.cli.argument import json_argument
from onceward.cli.backend import JsonObject, exactly_one, with_backend
from onceward.cli.output import as_json, print_fields, print_json, print_table
from onceward.cli.settings import DATA
from onceward.core.claim import WIRE_STATUSES
from onceward.hub.config.config import Config

# Exit code of `--fail-if-any`, for monitoring scripts.
FOUND = 3
_PAGE_MAX = 500
_versions = click.IntRange(1, 2**53 - 1)
_statuses = click.Choice(WIRE_STATUSES)


class ClaimsBackend(Protocol):
    """Claims of a running hub, or of a ledger."""

    def claims(
        self, scope: str | None, status: str | None, limit: int, after: str | None, *, oldest: bool
    ) -> JsonObject:
        """Return one page: `claims`, `next_after` and `has_more`."""

    def claim(self, scope: str, key: str) -> JsonObject: ...

    def resolve_claim(
        self, scope: str, key: str, version: int, verdict: str, reason: str, value: Any, response: JsonObject | None
    ) -> JsonObject:
        """Resolve a doubt. A `response` has `status`, `headers` and `body_base64`."""

    def abandon_claim(self, scope: str, key: str, version: int, reason: str, *, force: bool) -> JsonObject: ...

    def forget_claim(self, scope: str, key: str, version: int, reason: str) -> JsonObject:
        """Remove a completed claim, and return it as it was."""

    def purge_claims(self) -> JsonObject: ...


@contextmanager
def _local(config: Config) -> Iterator[ClaimsBackend]:
    from onceward.cli.local.claims import local_claims  # noqa: PLC0415  # slow import; `--help` does without

    with local_claims(config) as found:
        yield found


def on_ledger(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a backend to a command, which gets a `ClaimsBackend` instead of them."""
    return with_backend(command, (*DATA, "ledger", "namespace"), _local)


@click.group()
def claims() -> None:
    """List claims (running, failed, in doubt), and resolve those in doubt.

    A claim is in doubt if an effect that must not be repeated was interrupted: it may or may not have happened. Ask the
    provider of the effect, then record the result with `resolve`.

    With --hub, the commands ask a running hub, which requires a token with scope admin. Without it, they work directly
    on a ledger: the hub's, or with --ledger that of any application.

    \b
    Examples:
      onceward claims list --status in_doubt --oldest
      onceward claims show call charge:42
      onceward claims resolve call charge:42 --version 7 --committed --reason "found in the bank's journal"
    """  # noqa: D301  # \b: click does not rewrap the paragraph


@claims.command("list")
@click.option("--scope", metavar="SCOPE", help="Only claims in this scope.")
@click.option("--status", type=_statuses, help="Only claims with this status.")
@click.option("--oldest", is_flag=True, help="List the oldest claims first.")
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", default=100, show_default=True, help="Maximum number to list."
)
@click.option(
    "--fail-if-any",
    type=_statuses,
    help=f"List only claims with this status, and exit with code {FOUND} if there are any.",
)
@as_json
@on_ledger
def list_(
    backend: ClaimsBackend,
    scope: str | None,
    status: str | None,
    oldest: bool,
    limit: int,
    fail_if_any: str | None,
    as_json: bool,
) -> int:
    """List claims, in the order of the store unless --oldest is given.

    \b
    Examples:
      onceward claims list --status in_doubt --oldest
      onceward claims list --fail-if-any in_doubt     # for monitoring
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    if fail_if_any and status not in (None, fail_if_any):
        raise click.UsageError(
            f"--fail-if-any {fail_if_any} lists only claims with that status; remove --status {status}",
            click.get_current_context(),
        )
    found = _listed(backend, scope, fail_if_any or status, limit, oldest)
    if as_json:
        print_json(found)
    elif found["claims"] or not fail_if_any:
        rows = [(*(one[name] for name in _COLUMNS),) for one in found["claims"]]
        print_table([name.upper() for name in _COLUMNS], rows)
        if found["has_more"]:
            click.echo(f"there are more than {limit} claims; raise --limit to list more", err=True)
    return FOUND if fail_if_any and found["claims"] else 0


def _listed(backend: ClaimsBackend, scope: str | None, status: str | None, limit: int, oldest: bool) -> JsonObject:
    """Return at most `limit` claims, reading as many pages as needed."""
    found = backend.claims(scope, status, min(limit, _PAGE_MAX), None, oldest=oldest)
    claims = found["claims"]
    while found["has_more"] and len(claims) < limit:
        wanted = min(limit - len(claims), _PAGE_MAX)
        found = backend.claims(scope, status, wanted, found["next_after"], oldest=oldest)
        claims += found["claims"]
    return {"claims": claims, "next_after": found["next_after"], "has_more": found["has_more"]}


_COLUMNS = ("status", "scope", "key", "version", "attempt", "created_at", "note")


@claims.command()
@click.argument("scope")
@click.argument("key")
@as_json
@on_ledger
def show(backend: ClaimsBackend, scope: str, key: str, as_json: bool) -> None:
    """Show one claim and its recorded outcome.

    \b
    Examples:
      onceward claims show call charge:42
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    _print_claim(backend.claim(scope, key), as_json)


@claims.command()
@click.argument("scope")
@click.argument("key")
@click.option(
    "--version", type=_versions, metavar="N", required=True, help="Version that you checked, from `claims show`."
)
@click.option("--committed", is_flag=True, help="The effect happened.")
@click.option("--not-committed", is_flag=True, help="The effect did not happen, and will not.")
@click.option("--value", metavar="JSON", help="With --committed: the result of the effect. [default: null]")
@click.option("--status", type=int, metavar="CODE", help="For an HTTP claim: the status that the client's retry gets.")
@click.option(
    "--header",
    "headers",
    metavar="'NAME: VALUE'",
    multiple=True,
    help="With --status: a header; repeat the option for several.",
)
@click.option(
    "--body", metavar="TEXT", help="With --status: the body. @FILE reads it from a file, and - from standard input."
)
@click.option("--reason", required=True, help="How you know whether the effect happened. Recorded with your user name.")
@as_json
@exactly_one("committed", "not_committed")
@on_ledger
def resolve(
    backend: ClaimsBackend,
    scope: str,
    key: str,
    version: int,
    committed: bool,
    not_committed: bool,  # noqa: ARG001  # checked by `exactly_one`
    value: str | None,
    status: int | None,
    headers: tuple[str, ...],
    body: str | None,
    reason: str,
    as_json: bool,
) -> None:
    """Resolve a claim in doubt. The command refuses if the claim has another version, or is not in doubt.

    KEY may be truncated as in the log: its first 20 characters and "...".

    For an HTTP claim, whose scope begins with http:, --committed takes the response: --status, --header and --body. The
    client's retry gets exactly this response. Without them, it gets 409 outcome-not-kept.

    \b
    Examples:
      onceward claims resolve call charge:42 --version 7 --committed --value '{"charge": "ch_1"}' \\
          --reason "found in the bank's journal"
      onceward claims resolve call charge:43 --version 9 --not-committed --reason "provider_final: never arrived"
      onceward claims resolve http:user:ada 7f3c2b1a --version 4 --committed --status 201 \\
          --header "Content-Type: application/json" --body @paid.json --reason "found in the bank's journal"
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    verdict = "committed" if committed else "not_committed"
    given = None if value is None else json_argument(value, "'--value'")
    response = _response(status, headers, body)
    _print_claim(backend.resolve_claim(scope, key, version, verdict, reason, given, response), as_json)


@claims.command()
@click.argument("scope")
@click.argument("key")
@click.option(
    "--version", type=_versions, metavar="N", required=True, help="Version that you checked, from `claims show`."
)
@click.option("--reason", required=True, help="Why you abandon the claim. Recorded with your user name.")
@click.option("--force", is_flag=True, help="Also end a claim whose lease is running. It is then always in doubt.")
@as_json
@on_ledger
def abandon(
    backend: ClaimsBackend, scope: str, key: str, version: int, reason: str, force: bool, as_json: bool
) -> None:
    """End a claim whose holder will not end it. It becomes failed if it may be repeated, otherwise in doubt.

    The command refuses while the lease is running, unless the holder was a process on this machine and has died.
    --force ends the claim anyway, always in doubt: its holder may be alive, and may still settle it.

    KEY may be truncated as in the log: its first 20 characters and "...".

    \b
    Examples:
      onceward claims abandon call charge:42 --version 7 --reason "its machine is gone"
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    _print_claim(backend.abandon_claim(scope, key, version, reason, force=force), as_json)


@claims.command()
@click.argument("scope")
@click.argument("key")
@click.option(
    "--version", type=_versions, metavar="N", required=True, help="Version that you checked, from `claims show`."
)
@click.option("--reason", required=True, help="Why the effect may run again. Logged with your user name.")
@as_json
@on_ledger
def forget(backend: ClaimsBackend, scope: str, key: str, version: int, reason: str, as_json: bool) -> None:
    """Remove a completed claim. The effect happened, and THE NEXT CALL WITH THIS KEY RUNS IT AGAIN.

    This is the only way to remove a claim that never expires, such as that of a tool with once="ever". The command
    refuses if the claim has another version, is in progress or is in doubt. It prints the claim as it was.

    KEY may be truncated as in the log: its first 20 characters and "...".

    \b
    Examples:
      onceward claims forget tool:ever:acme refund:order-7 --version 7 --reason "refunded to the wrong card"
      onceward claims forget call charge:42 --version 9 --reason "test data" --ledger sqlite:///payments.db
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    _print_claim(backend.forget_claim(scope, key, version, reason), as_json)
    if not as_json:
        click.echo("forgotten: the next call with this key runs the effect again", err=True)


@claims.command()
@as_json
@on_ledger
def purge(backend: ClaimsBackend, as_json: bool) -> None:
    """Delete claims whose retention is over. A running hub does this itself.

    \b
    Examples:
      onceward claims purge --ledger sqlite:///payments.db
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    done = backend.purge_claims()
    if as_json:
        print_json(done)
    else:
        print_fields(done)


def _response(status: int | None, headers: tuple[str, ...], body: str | None) -> JsonObject | None:
    if status is None:
        if headers or body is not None:
            raise click.UsageError(
                "--header and --body describe a response: give --status too", click.get_current_context()
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
            raise click.BadParameter(f"cannot read {body[1:]!r}: {error.strerror}", param_hint="'--body'") from None
    return (body or "").encode()


def _print_claim(claim: JsonObject, as_json: bool) -> None:
    if as_json:
        print_json(claim)
    else:
        print_fields({name: value for name, value in claim.items() if value is not None})
