"""Payloads as normalizers return them, in short, and the rows that are stored."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from onceward.core.canonical import Json
from onceward.hub.db.engine import Database
from onceward.hub.events.log import Event, extent, page
from onceward.hub.ingest.entries.columns import COLUMNS
from onceward.hub.ingest.entries.policy import put_policy
from onceward.hub.ingest.entries.schema import PKM, PKM_TEST, EntrySchema
from onceward.hub.ingest.payload import Payload

SKIP_IDENTITY, SKIP_HINT, UPDATE_IDENTITY, UPDATE_HINT = KINDS = (
    "skip_identity",
    "skip_hint",
    "update_identity",
    "update_hint",
)


def make_policies(database: Database, **options: Any) -> None:
    """A policy of each kind, in both schemas, for a source that is not fail-closed."""
    for schema in (PKM, PKM_TEST):
        with database.write() as tx:
            for name in KINDS:
                action, role = name.split("_")
                put_policy(
                    tx,
                    schema,
                    name,
                    source="notes",
                    content_type="note",
                    conflict_action=action,
                    secondary_role=role,
                    **options,
                )


def note(policy: str | None, primary: str | None, secondary: str | None = None, **columns: Json) -> Payload:
    return {
        "source": "notes",
        "content_type": "note",
        "idempotency_policy_key": policy,
        "idempotency_key_primary": primary,
        "idempotency_key_secondary": secondary,
        **columns,
    }


def thought(number: int, words: str = "hello", **columns: Json) -> Payload:
    return {
        "source": "telegram",
        "content_type": "thought",
        "clean_text": words,
        "metadata": {},
        "external_ref": f"tg:1:{number}",
        "idempotency_policy_key": "telegram_thought_v1",
        "idempotency_key_primary": f"tg:1:{number}",
        "idempotency_key_secondary": f"hash of {words}",
        "reasons": ["it has no URL"],
        **columns,
    }


def newsletter(message_id: str | None, day: str | None, **columns: Json) -> Payload:
    return {
        "source": "email",
        "content_type": "newsletter",
        "idempotency_policy_key": "email_newsletter_v1",
        "idempotency_key_primary": message_id,
        "idempotency_key_secondary": day,
        **columns,
    }


def stored(database: Database, schema: EntrySchema = PKM) -> list[dict[str, Any]]:
    """Every entry of the schema, oldest first, the metadata as text."""
    table = schema.table("entries", is_sqlite=database.is_sqlite)
    with database.read() as tx:
        rows = tx.execute(text(f"SELECT {', '.join(COLUMNS)} FROM {table} ORDER BY id"))  # noqa: S608  # our own names
        return [{**dict(zip(COLUMNS, row, strict=True)), "id": str(row[1])} for row in rows]


def events(database: Database) -> list[Event]:
    with database.read() as tx:
        return page(tx, 0, extent(tx).last_event_id, 500)
