"""Rows of the audit log. They are only appended; retention deletes old ones, and the database refuses anything else.

An action in the hub's own database has one row, with the result `done`, in the transaction of the action. Any other
action has two: `started` before it, and its result after it, which names the first row in `started_id`.

    started   the action may have happened; its result row, if there is one, says more
    done      it happened
    refused   nothing was changed
    unknown   it failed on the way, and may have happened in part or as a whole
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy import delete, insert, select

from onceward.hub.audit.actor import Actor
from onceward.hub.audit.filter import AuditFilter
from onceward.hub.db.engine import Transaction
from onceward.hub.db.page import LIMIT_MAX, RowPage, page_of, parse_cursor
from onceward.hub.db.tables import audit_log
from onceward.hub.db.timestamps import now_text, time_text

Result: TypeAlias = Literal["started", "done", "refused", "unknown"]
Details: TypeAlias = Mapping[str, Any]

NO_FILTER = AuditFilter()
# Rows that retention deletes in one transaction.
_RETENTION_BATCH = 1000
_CURSOR = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A row of the audit log."""

    audit_id: int
    created_at: str
    principal: str
    token_id: str | None
    client: str | None
    source: str
    request_id: str | None
    action: str
    target: str | None
    details: Details
    result: Result
    started_id: int | None

    def json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def append(
    tx: Transaction,
    actor: Actor,
    action: str,
    target: str | None,
    details: Details,
    *,
    result: Result = "done",
    started_id: int | None = None,
) -> int:
    """Append a row and return its id. Never pass a secret: every admin can read the details.

    Args:
        tx: The transaction of the action, so that neither is committed without the other.
        actor: The caller or user who acts.
        action: The kind of object and the verb, such as `token.create`.
        target: The object: an id, a name, or scope and key of a claim.
        details: Further fields, as JSON.
        result: The result, as far as it is known.
        started_id: The id of the row that was written before the action.

    Returns:
        The id of the row.
    """
    row = {
        "created_at": now_text(),
        "principal": actor.principal,
        "token_id": actor.token_id,
        "client": actor.client,
        "source": actor.source,
        "request_id": actor.request_id,
        "action": action,
        "target": target,
        "details": json.dumps(details, default=str),
        "result": result,
        "started_id": started_id,
    }
    audit_id: int = tx.execute(insert(audit_log).values(row).returning(audit_log.c.audit_id)).scalar_one()
    return audit_id


def audit_page(tx: Transaction, limit: int, after: str = "", only: AuditFilter = NO_FILTER) -> RowPage[AuditRow]:
    """Return a page of the rows that pass the filter, newest first."""
    limit = min(limit, LIMIT_MAX)
    query = only.apply(select(audit_log).order_by(audit_log.c.audit_id.desc()).limit(limit + 1))
    if after:
        query = query.where(audit_log.c.audit_id < int(parse_cursor(after, _CURSOR)[0]))
    rows = [_row(row) for row in tx.execute(query).mappings()]
    return page_of(rows, limit, lambda row: str(row.audit_id))


def _row(row: Mapping[Any, Any]) -> AuditRow:
    values = {name: row[name] for name in AuditRow.__slots__}
    return AuditRow(**{**values, "details": json.loads(row["details"])})


def delete_old_rows(tx: Transaction, age: datetime.timedelta) -> int:
    """Delete some of the rows older than this, and return their number. Call it again until it returns 0."""
    before = time_text(datetime.datetime.now(datetime.UTC) - age)
    old = select(audit_log.c.audit_id).where(audit_log.c.created_at < before)
    old = old.order_by(audit_log.c.audit_id).limit(_RETENTION_BATCH)
    return tx.execute(delete(audit_log).where(audit_log.c.audit_id.in_(old))).rowcount
