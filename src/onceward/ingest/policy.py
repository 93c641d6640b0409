"""Policies: what the keys of an entry mean, and what happens to one that is there already.

They are rows, the same in both schemas to begin with. One that is no longer wanted is disabled; none is ever deleted,
because entries refer to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args

from sqlalchemy import TextClause, text

from onceward.core.canonical import Json
from onceward.core.text import checked, compact, refused
from onceward.db.engine import Transaction
from onceward.db.page import LIMIT_MAX, Page, page_of, place_in
from onceward.errors import Conflict
from onceward.ingest.columns import IMMUTABLE, TEXT_BYTES_MAX, UPDATABLE
from onceward.ingest.schema import Schema

Action: TypeAlias = Literal["skip", "update"]
Role: TypeAlias = Literal["identity", "hint"]

POLICY_KEY_BYTES_MAX = 128


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy as it is stored. `update_fields` None: every column that may be updated; empty: none.

    `content_type` may be several with a slash between them. The secondary key is an identity, which finds an entry as
    the primary one does, or a hint, which only one entry can have and which finds none.
    """

    policy_id: int
    policy_key: str
    source: str
    content_type: str
    conflict_action: Action
    update_fields: tuple[str, ...] | None
    enabled: bool
    secondary_role: Role

    def json(self) -> dict[str, Json]:
        """As every answer shows it."""
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        shown["update_fields"] = None if self.update_fields is None else list(self.update_fields)
        return shown


def _seed(number: int, key: str, content_type: str, action: Action, role: Role, *, enabled: bool = True) -> Policy:
    return Policy(number, key, key.partition("_")[0], content_type, action, None, enabled, role)


# What a new database has, in both schemas.
SEEDS = (
    _seed(1, "telegram_thought_v1", "thought/note", "update", "hint"),
    _seed(2, "telegram_link_v1", "link", "skip", "identity"),
    _seed(3, "email_newsletter_v1", "newsletter", "skip", "identity"),
    _seed(4, "email_correspondence_thread_v1", "correspondence_thread", "update", "identity"),
    _seed(5, "email_correspondence_thread_v2", "correspondence_thread", "update", "identity", enabled=False),
)

_LIST = """
    SELECT policy_id, policy_key, source, content_type, conflict_action, update_fields, enabled, secondary_role
    FROM {policies} WHERE policy_id > :after ORDER BY policy_id {limited}
"""
# The number of the last policy of a page is the cursor.
_CURSOR = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_LOCK = "SELECT policy_id, source, content_type FROM {policies} WHERE policy_key = :policy_key {locked}"
_USED = "SELECT EXISTS (SELECT 1 FROM {entries} WHERE idempotency_policy_id = :policy_id)"
_PUT = """
    INSERT INTO {policies}
        (policy_key, source, content_type, conflict_action, update_fields, enabled, secondary_role)
    VALUES (:policy_key, :source, :content_type, :conflict_action, :update_fields, :enabled, :secondary_role)
    ON CONFLICT (policy_key) DO UPDATE SET {changes}
    RETURNING policy_id
"""


class Kept(TypedDict, total=False):
    """What need not be said of a policy: it stays as it is. A new one is enabled, updates all, and has no hints."""

    update_fields: Sequence[str] | None
    enabled: bool
    secondary_role: str


def list_policies(tx: Transaction, schema: Schema) -> list[Policy]:
    """All of them, the disabled ones too, in the order in which they were made."""
    return [_read(row) for row in tx.execute(_statement(tx, schema, _LIST, limited=""), {"after": 0})]


def policy_page(tx: Transaction, schema: Schema, limit: int, after: str = "") -> Page[Policy]:
    """A page of them behind the cursor, in the same order."""
    limit = min(limit, LIMIT_MAX)
    asked = {"after": int(place_in(after, _CURSOR)[0]) if after else 0, "limit": limit + 1}
    rows = tx.execute(_statement(tx, schema, _LIST, limited="LIMIT :limit"), asked)
    return page_of([_read(row) for row in rows], limit, lambda policy: str(policy.policy_id))


def put_policy(
    tx: Transaction,
    schema: Schema,
    policy_key: str,
    *,
    source: str,
    content_type: str,
    conflict_action: str,
    **kept: Unpack[Kept],
) -> Policy:
    """Make a policy, or make the one of this name as it is said here.

    `Conflict` when it has entries and would be about another source or other content types: these would no longer be
    what their policy says.
    """
    policy_key = checked("policy_key", _text("policy_key", policy_key).strip(), POLICY_KEY_BYTES_MAX)
    said: dict[str, object] = {
        "source": _plain("source", source),
        "content_type": "/".join(
            _plain("content_type", part) for part in _text("content_type", content_type).split("/")
        ),
        "conflict_action": _one_of("conflict_action", conflict_action, get_args(Action)),
        **{name: _CHECKS[name](value) for name, value in kept.items()},
    }
    values = {"policy_key": policy_key, **_NEW, **said}
    # On PostgreSQL this waits for those who are inserting entries of the policy, whose foreign keys hold it.
    locked = "" if tx.dialect.name == "sqlite" else "FOR UPDATE"
    there = tx.execute(_statement(tx, schema, _LOCK, locked=locked), {"policy_key": policy_key}).one_or_none()
    if (
        there is not None
        and (there.source, there.content_type) != (values["source"], values["content_type"])
        and tx.execute(_statement(tx, schema, _USED), {"policy_id": there.policy_id}).scalar()
    ):
        raise Conflict(
            f"the policy {policy_key!r} has entries, so its source and content_type stay as they are;"
            " make another policy, and disable this one"
        )
    changes = ", ".join(f"{name} = excluded.{name}" for name in said)
    policy_id = tx.execute(_statement(tx, schema, _PUT, changes=changes), values).scalar_one()
    return next(policy for policy in list_policies(tx, schema) if policy.policy_id == policy_id)


def _statement(tx: Transaction, schema: Schema, statement: str, **parts: str) -> TextClause:
    is_sqlite = tx.dialect.name == "sqlite"
    tables = {
        "policies": schema.table("idempotency_policies", is_sqlite=is_sqlite),
        "entries": schema.table("entries", is_sqlite=is_sqlite),
    }
    return text(statement.format(**tables, **parts))


def _read(row: Sequence[Any]) -> Policy:
    policy_id, policy_key, source, content_type, action, names, enabled, role = row
    update_fields = None if names is None else tuple(json.loads(names))
    return Policy(policy_id, policy_key, source, content_type, action, update_fields, bool(enabled), role)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise refused(name, "must be a text")
    return value


def _plain(name: str, value: object) -> str:
    # As sources and content types are compared.
    return checked(name, _text(name, value).strip().lower(), TEXT_BYTES_MAX[name])


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise refused(name, "must be " + " or ".join(allowed))
    return str(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise refused(name, "must be true or false")
    return value


def _fields(names: object) -> str | None:
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise refused("update_fields", "must be null or a list of columns")
    for name in names:
        if name in IMMUTABLE:
            raise refused("update_fields", f"must not have {name}, which never changes")
        if name not in UPDATABLE:
            raise refused("update_fields", f"has {name[:64]!r}; an update can change {', '.join(UPDATABLE)}")
    return compact(list(dict.fromkeys(names)))


# What a new policy has where nothing is said of it, and how it is checked where something is.
_NEW: dict[str, object] = {"update_fields": None, "enabled": True, "secondary_role": "identity"}
_CHECKS: dict[str, Callable[[object], object]] = {
    "update_fields": _fields,
    "enabled": lambda value: _flag("enabled", value),
    "secondary_role": lambda value: _one_of("secondary_role", value, get_args(Role)),
}
