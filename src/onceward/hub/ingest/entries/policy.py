"""Policies: what the keys of an entry mean, and what happens to an entry that exists already.

Policies are rows, initially the same in both schemas. A policy can be disabled, but never deleted, because entries
refer to it.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args

from sqlalchemy import TextClause, text

from onceward.core.canonical import Json
from onceward.core.json_text import checked, compact, refused
from onceward.errors import Conflict
from onceward.hub.db.engine import Transaction
from onceward.hub.db.page import LIMIT_MAX, RowPage, page_of, parse_cursor
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.ingest.entries.columns import IMMUTABLE, TEXT_BYTES_MAX, UPDATABLE
from onceward.hub.ingest.entries.schema import EntrySchema

Action: TypeAlias = Literal["skip", "update"]
Role: TypeAlias = Literal["identity", "hint"]

POLICY_KEY_BYTES_MAX = 128


@dataclass(frozen=True, slots=True)
class Policy:
    """A stored policy.

    `update_fields` lists the columns that an update may change; None means all updatable columns, empty means none.
    `content_type` may be several types with a slash between them. `secondary_role` says whether the secondary key is an
    identity, which finds an entry like the primary key, or a hint, which only one entry can have and which finds none.
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
        """Return the policy as responses show it."""
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        shown["update_fields"] = None if self.update_fields is None else list(self.update_fields)
        return shown

    @property
    def text(self) -> str:
        """The whole policy as text, which differs after every change. A form sends back the text that it was made from."""
        return compact(self.json())


def _seed(number: int, key: str, content_type: str, action: Action, role: Role, *, enabled: bool = True) -> Policy:
    return Policy(number, key, key.partition("_")[0], content_type, action, None, enabled, role)


# The policies of a new database, in both schemas.
SEEDS = (
    _seed(1, "telegram_thought_v1", "thought/note", "update", "hint"),
    _seed(2, "telegram_link_v1", "link", "skip", "identity"),
    _seed(3, "email_newsletter_v1", "newsletter", "skip", "identity"),
    _seed(4, "email_correspondence_thread_v1", "correspondence_thread", "update", "identity"),
    _seed(5, "email_correspondence_thread_v2", "correspondence_thread", "update", "identity", enabled=False),
)

COLUMNS = tuple(field.name for field in fields(Policy))
_PAGE = "SELECT {columns} FROM {policies} WHERE policy_id > :after ORDER BY policy_id LIMIT :limit"
# All policies as one value, so that unchanged ones need not be parsed again.
_ALL_SQLITE = "SELECT json_group_array(json_array({columns})) FROM {policies}"
_ALL_POSTGRES = "SELECT CAST(coalesce(json_agg(json_build_array({columns})), '[]') AS text) FROM {policies}"
# A cursor is the id of the last policy of a page.
_CURSOR = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_LOCK = "SELECT {columns} FROM {policies} WHERE policy_key = :policy_key {locked}"
_USED = "SELECT EXISTS (SELECT 1 FROM {entries} WHERE idempotency_policy_id = :policy_id)"
_PUT = """
    INSERT INTO {policies}
        (policy_key, source, content_type, conflict_action, update_fields, enabled, secondary_role)
    VALUES (:policy_key, :source, :content_type, :conflict_action, :update_fields, :enabled, :secondary_role)
    ON CONFLICT (policy_key) {on_conflict}
    RETURNING policy_id
"""


class PolicyOptions(TypedDict, total=False):
    """Optional fields of a policy. Absent fields stay unchanged; a new policy is enabled, updates all, has no hints."""

    update_fields: Sequence[str] | None
    enabled: bool
    secondary_role: str


def list_policies(tx: Transaction, schema: EntrySchema) -> Sequence[Policy]:
    """Return all policies, including disabled ones, in order of creation. The same object while nothing changes."""
    ((stored,),) = _all_statement(schema, is_sqlite=tx.dialect.name == "sqlite").rows(tx)
    return _parsed(stored)


@functools.cache
def _all_statement(schema: EntrySchema, *, is_sqlite: bool) -> RawStatement:
    policies = schema.table("idempotency_policies", is_sqlite=is_sqlite)
    statement = _ALL_SQLITE if is_sqlite else _ALL_POSTGRES
    return RawStatement(statement.format(policies=policies, columns=", ".join(COLUMNS)))


@functools.lru_cache(maxsize=8)
def _parsed(stored: str) -> Sequence[Policy]:
    return tuple(sorted(map(read_policy, json.loads(stored)), key=operator.attrgetter("policy_id")))


def policy_page(tx: Transaction, schema: EntrySchema, limit: int, after: str = "") -> RowPage[Policy]:
    """Return a page of policies after the cursor, in the same order."""
    limit = min(limit, LIMIT_MAX)
    asked = {"after": int(parse_cursor(after, _CURSOR)[0]) if after else 0, "limit": limit + 1}
    rows = tx.execute(_statement(tx, schema, _PAGE, columns=", ".join(COLUMNS)), asked)
    return page_of([read_policy(row) for row in rows], limit, lambda policy: str(policy.policy_id))


def put_policy(
    tx: Transaction,
    schema: EntrySchema,
    policy_key: str,
    *,
    source: str,
    content_type: str,
    conflict_action: str,
    seen: str | None = None,
    **options: Unpack[PolicyOptions],
) -> Policy:
    """Create a policy, or replace the fields of the policy with this key.

    `seen` is the `text` of the policy that the caller saw, or empty if there was none; None replaces any. Raises
    `Conflict` if the policy is another one by now, or if it has entries and its source or content types would change:
    the entries would no longer match their policy.
    """
    policy_key = checked("policy_key", _text("policy_key", policy_key).strip(), POLICY_KEY_BYTES_MAX)
    given: dict[str, object] = {
        "source": _plain("source", source),
        "content_type": "/".join(
            _plain("content_type", part) for part in _text("content_type", content_type).split("/")
        ),
        "conflict_action": _one_of("conflict_action", conflict_action, get_args(Action)),
        **{name: _CHECKS[name](value) for name, value in options.items()},
    }
    values = {"policy_key": policy_key, **_NEW, **given}
    # On PostgreSQL this waits for transactions that insert entries of the policy: their foreign keys lock its row.
    locked = "" if tx.dialect.name == "sqlite" else "FOR UPDATE"
    lock = _statement(tx, schema, _LOCK, columns=", ".join(COLUMNS), locked=locked)
    row = tx.execute(lock, {"policy_key": policy_key}).one_or_none()
    there = None if row is None else read_policy(row)
    if seen is not None and seen != ("" if there is None else there.text):
        raise _changed(policy_key, there)
    if (
        there is not None
        and (there.source, there.content_type) != (values["source"], values["content_type"])
        and tx.execute(_statement(tx, schema, _USED), {"policy_id": there.policy_id}).scalar()
    ):
        raise Conflict(
            f"policy {policy_key!r} has entries, so its source and content_type cannot change;"
            " create another policy and disable this one"
        )
    # Nothing locks a policy that does not exist yet: another transaction may be creating it.
    changes = ", ".join(f"{name} = excluded.{name}" for name in given)
    on_conflict = "DO NOTHING" if seen == "" else f"DO UPDATE SET {changes}"
    policy_id = tx.execute(_statement(tx, schema, _PUT, on_conflict=on_conflict), values).scalar_one_or_none()
    found = list_policies(tx, schema)
    if policy_id is None:
        raise _changed(policy_key, next(policy for policy in found if policy.policy_key == policy_key))
    return next(policy for policy in found if policy.policy_id == policy_id)


def _changed(policy_key: str, there: Policy | None) -> Conflict:
    what = "does not exist any more" if there is None else f"is different by now: {there.text}"
    return Conflict(f"policy {policy_key!r} {what}; look at it again, then change it")


def _statement(tx: Transaction, schema: EntrySchema, statement: str, **parts: str) -> TextClause:
    is_sqlite = tx.dialect.name == "sqlite"
    tables = {
        "policies": schema.table("idempotency_policies", is_sqlite=is_sqlite),
        "entries": schema.table("entries", is_sqlite=is_sqlite),
    }
    return text(statement.format(**tables, **parts))


def read_policy(row: Sequence[Any]) -> Policy:
    """Return the policy of a row of `COLUMNS`."""
    policy_id, policy_key, source, content_type, action, names, enabled, role = row
    update_fields = None if names is None else tuple(json.loads(names))
    return Policy(policy_id, policy_key, source, content_type, action, update_fields, bool(enabled), role)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise refused(name, "must be a string")
    return value


def _plain(name: str, value: object) -> str:
    # Sources and content types are compared in this form.
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
            raise refused("update_fields", f"must not contain {name}, which never changes")
        if name not in UPDATABLE:
            raise refused("update_fields", f"must not contain {name[:64]!r}; allowed are {', '.join(UPDATABLE)}")
    return compact(list(dict.fromkeys(names)))


# Defaults of a new policy's optional fields, and the validation of given ones.
_NEW: dict[str, object] = {"update_fields": None, "enabled": True, "secondary_role": "identity"}
_CHECKS: dict[str, Callable[[object], object]] = {
    "update_fields": _fields,
    "enabled": lambda value: _flag("enabled", value),
    "secondary_role": lambda value: _one_of("secondary_role", value, get_args(Role)),
}
