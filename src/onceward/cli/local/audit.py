"""Backend of the audit log: the database of a hub, opened directly, whether or not the hub is running."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from onceward.cli.backend import JsonObject
from onceward.errors import NotFound
from onceward.hub.audit.filter import audit_filter
from onceward.hub.audit.log import audit_page
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config
from onceward.hub.db.engine import Database


@contextmanager
def local_audit(config: Config) -> Iterator[LocalAudit]:
    if not data_folder.has_data(config):
        folder = str(config.data_folder)
        raise NotFound(f"no hub data in {folder!r}; give the folder with --data-dir, or a running hub with --hub")
    with data_folder.opened(config) as database:
        yield LocalAudit(database)


class LocalAudit:
    """`onceward.cli.commands.audit.AuditBackend` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def audit(self, limit: int, after: str | None, only: Mapping[str, Any]) -> JsonObject:
        texts = {name: value for name, value in only.items() if value is not None}
        with self._database.read() as tx:
            page = audit_page(tx, limit, after or "", audit_filter(**texts))
        return {
            "entries": [row.json() for row in page.items],
            "next_after": page.next_after,
            "has_more": page.has_more,
        }
