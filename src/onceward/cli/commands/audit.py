"""`onceward audit`: the audit log of a hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import click

from onceward.cli.backend import JsonObject, with_backend
from onceward.cli.output import as_json, print_json, print_table
from onceward.cli.settings import DATA
from onceward.hub.config.config import Config
from onceward.hub.config.setting import Duration

_PAGE_MAX = 500
_AGO = Duration(0, 100 * 365 * 86_400.0, named=False)
_COLUMNS = ("audit_id", "created_at", "principal", "client", "action", "target", "result")


class AuditBackend(Protocol):
    """The audit log of a running hub, or of a hub's data."""

    def audit(self, limit: int, after: str | None, only: dict[str, str | None]) -> JsonObject:
        """Return one page of the entries that meet the conditions, newest first, with `next_after` and `has_more`."""


@contextmanager
def _local(config: Config) -> Iterator[AuditBackend]:
    from onceward.cli.local.audit import local_audit  # noqa: PLC0415  # slow import; `--help` does without

    with local_audit(config) as found:
        yield found


def _read_time(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Convert a duration to the time that long ago. The backend checks everything else."""
    try:
        seconds = _AGO.read(value, as_text=True)
    except ValueError:
        return value
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


@click.command()
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", default=100, show_default=True, help="Maximum number to list."
)
@click.option("--principal", metavar="NAME", help="Only entries of this principal.")
@click.option(
    "--action", metavar="ACTION", help="Only this action, such as claim.resolve, or all actions on claims: claim."
)
@click.option(
    "--since", metavar="TIME", callback=_read_time, help="Only entries since then: 24h (ago), 2031-05-01, or RFC 3339."
)
@click.option(
    "--until", metavar="TIME", callback=_read_time, help="Only entries before then. A date without a time is included."
)
@as_json
@lambda command: with_backend(command, DATA, _local)
def audit(backend: AuditBackend, limit: int, as_json: bool, **only: str | None) -> None:
    """List who did what: tokens, policies, the test mode, garbage collection and claims, newest first.

    Periodic jobs of the hub have entries, too, with the principal hub, if they deleted something.

    A result `started` without a second line means that the action may have happened: its process died, or the database
    failed. --json also shows the details.

    \b
    Examples:
      onceward audit
      onceward audit --limit 1000 --json
      onceward audit --principal ada --action claim --since 7d
      onceward audit --hub https://hub.example.com --token-file token
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    entries: list[dict[str, Any]] = []
    page: JsonObject = {"next_after": None, "has_more": True}
    while page["has_more"] and len(entries) < limit:
        page = backend.audit(min(_PAGE_MAX, limit - len(entries)), page["next_after"], only)
        entries += page["entries"]
    if as_json:
        print_json({**page, "entries": entries})
        return
    print_table([name.upper() for name in _COLUMNS], [tuple(one[name] for name in _COLUMNS) for one in entries])
    if page["has_more"]:
        click.echo(f"there are more than {limit} entries; raise --limit to list more", err=True)
