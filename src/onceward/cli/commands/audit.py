"""`onceward audit`: the audit log of a hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import click

from onceward.cli.backend import Shown, with_backend
from onceward.cli.output import as_json, print_json, print_table
from onceward.cli.settings import DATA
from onceward.hub.config.config import Config

_PAGE_MAX = 500
_COLUMNS = ("audit_id", "created_at", "principal", "client", "action", "target", "result")


class AuditBackend(Protocol):
    """The audit log of a running hub, or of a hub's data."""

    def audit(self, limit: int, after: str | None) -> Shown:
        """Return one page, newest first: `entries`, `next_after` and `has_more`."""


@contextmanager
def _local(config: Config) -> Iterator[AuditBackend]:
    from onceward.cli.local.audit import local_audit  # noqa: PLC0415  # slow import; `--help` does without

    with local_audit(config) as found:
        yield found


@click.command()
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", default=100, show_default=True, help="Maximum number to list."
)
@as_json
@lambda command: with_backend(command, DATA, _local)
def audit(backend: AuditBackend, limit: int, as_json: bool) -> None:
    """List who did what: tokens, policies, the test mode, garbage collection and claims, newest first.

    A result `started` without a second line means that the action may have happened: its process died, or the database
    failed. --json also shows the details.

    \b
    Examples:
      onceward audit
      onceward audit --limit 1000 --json
      onceward audit --hub https://hub.example.com --token-file token
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    entries: list[dict[str, Any]] = []
    page: Shown = {"next_after": None, "has_more": True}
    while page["has_more"] and len(entries) < limit:
        page = backend.audit(min(_PAGE_MAX, limit - len(entries)), page["next_after"])
        entries += page["entries"]
    if as_json:
        print_json({**page, "entries": entries})
        return
    print_table([name.upper() for name in _COLUMNS], [tuple(one[name] for name in _COLUMNS) for one in entries])
    if page["has_more"]:
        click.echo(f"there are more than {limit} entries; raise --limit to list more", err=True)
