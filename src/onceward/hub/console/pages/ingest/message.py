"""A pasted message: how it is normalized and keyed, and what an insert of it would do. Nothing is written.

The message passes the normalizers of the API, and then `preview`, which runs the batch insert on a table that only
reads, in a read-only transaction.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from onceward.core.canonical import Json
from onceward.core.json_text import refused
from onceward.errors import Conflict, InvalidInput
from onceward.hub.console.forms import FORM_BYTES_MAX, Form
from onceward.hub.console.visit import Visit
from onceward.hub.db.engine import Database
from onceward.hub.db_threads import in_thread
from onceward.hub.ingest.email.normalize import normalize_mail
from onceward.hub.ingest.entries.columns import PRIMARY, SECONDARY
from onceward.hub.ingest.entries.draft import POLICY_KEY
from onceward.hub.ingest.entries.policy import Policy, list_policies
from onceward.hub.ingest.entries.preview import preview
from onceward.hub.ingest.entries.result import Inserted
from onceward.hub.ingest.entries.schema import active_schema
from onceward.hub.ingest.explain import how_keyed, what_follows
from onceward.hub.ingest.newest import find_entry
from onceward.hub.ingest.payload import Payload
from onceward.hub.ingest.telegram import normalize_telegram
from onceward.hub.web.json_body import parse

_KINDS = ("email", "telegram")
# Shown apart from the columns of the entry.
_APART = (POLICY_KEY, PRIMARY, SECONDARY, "reasons")


@dataclass(frozen=True, slots=True)
class PreviewRefusal:
    """The problem that the API would send: its status, and its reason."""

    status: int
    reason: str
    step: str


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column that an update would change."""

    column: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class PreviewOutcome:
    """Previewed outcome of a message: a result, or a refusal."""

    schema: str
    policy: Policy | None = None
    result: Inserted | None = None
    because: str = ""
    entry_id: int | None = None
    changes: tuple[ColumnChange, ...] = ()
    refusal: PreviewRefusal | None = None


async def show(visit: Visit) -> Response:
    """Show the empty form."""
    return await _page(visit, "email", "")


async def explain(visit: Visit, form: Form) -> Response:
    """Show what the message is, and what would happen to it."""
    kind, text = form.text("kind"), form.raw("message")
    if kind not in _KINDS:
        raise refused("kind", f"must be {' or '.join(_KINDS)}")
    # Like the routes: normalizing does not take the threads of readers and writers.
    normalizers: asyncio.Semaphore = visit.request.app.state.normalizers
    try:
        async with normalizers:
            payload = await asyncio.to_thread(_normalized, kind, text)
    except InvalidInput as error:
        return await _page(visit, kind, text, refusal=PreviewRefusal(400, _reason(error), f"POST /normalize/{kind}"))
    outcome = await in_thread(_outcome, visit.hub.database, payload)
    return await _page(visit, kind, text, payload=payload, outcome=outcome, refusal=outcome.refusal)


def _normalized(kind: str, text: str) -> Payload:
    if kind == "email":
        return normalize_mail(text.encode())
    sent: Json = parse(text.encode())
    if not isinstance(sent, dict):
        raise InvalidInput("the message must be a JSON object")
    return normalize_telegram(sent)


def _outcome(database: Database, payload: Payload) -> PreviewOutcome:
    with database.read() as tx:
        schema = active_schema(tx)
        policy = next((one for one in list_policies(tx, schema) if one.policy_key == payload.get(POLICY_KEY)), None)
        try:
            result = preview(tx, schema, payload)
        except (InvalidInput, Conflict) as error:
            status = 400 if isinstance(error, InvalidInput) else 409
            return PreviewOutcome(
                schema.name, policy, refusal=PreviewRefusal(status, _reason(error), "POST /db/insert")
            )
        row = result.row or {}
        entry_id = row.get("entry_id")
        stored = find_entry(tx, schema, entry_id) if isinstance(entry_id, int) else None
    changes = tuple(ColumnChange(name, (stored or {}).get(name), row.get(name)) for name in result.outcome.changed)
    number = entry_id if isinstance(entry_id, int) else None
    return PreviewOutcome(schema.name, policy, result, what_follows(result), number, changes)


def _reason(error: InvalidInput | Conflict) -> str:
    fields = error.fields if isinstance(error, InvalidInput) else ()
    return "; ".join(f"{name} {message}" for name, message in fields) or str(error)


async def _page(
    visit: Visit,
    kind: str,
    text: str,
    *,
    payload: Payload | None = None,
    outcome: PreviewOutcome | None = None,
    refusal: PreviewRefusal | None = None,
) -> Response:
    return await visit.page(
        "message.html",
        kind=kind,
        message=text,
        columns=[] if payload is None else [(name, value) for name, value in payload.items() if name not in _APART],
        payload=payload,
        reasons=[] if payload is None else payload.get("reasons") or [],
        how=[] if payload is None else how_keyed(payload),
        keys=(PRIMARY, SECONDARY),
        policy_column=POLICY_KEY,
        outcome=outcome,
        refusal=refusal,
        bytes_max=FORM_BYTES_MAX,
    )
