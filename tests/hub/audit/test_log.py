"""Rows of the audit log: appended with their action, listed in pages, and never changed."""

from __future__ import annotations

import datetime
from contextlib import suppress

import pytest
from sqlalchemy import delete, insert, text, update

from onceward.errors import InvalidInput, OncewardError
from onceward.hub.audit import log
from onceward.hub.audit.actor import Actor
from onceward.hub.db.engine import Database
from onceward.hub.db.tables import audit_log
from onceward.hub.db.timestamps import time_text

ADA = Actor("ada", "api", "0123456789ab", "203.0.113.9", "r1")


def listed(database: Database) -> list[log.AuditRow]:
    with database.read() as tx:
        return log.audit_page(tx, 500).items


def test_a_row_says_who_did_what_when_and_with_what_result(database: Database) -> None:
    with database.write() as tx:
        first = log.append(tx, ADA, "policy.put", "rss", {"enabled": True})
        log.append(tx, ADA, "claim.purge", None, {}, result="refused", started_id=first)
    newest, oldest = listed(database)

    assert oldest.json() == {
        "audit_id": first,
        "created_at": oldest.created_at,
        "principal": "ada",
        "token_id": "0123456789ab",
        "client": "203.0.113.9",
        "source": "api",
        "request_id": "r1",
        "action": "policy.put",
        "target": "rss",
        "details": {"enabled": True},
        "result": "done",
        "started_id": None,
    }
    assert oldest.created_at.startswith("20")
    assert (newest.result, newest.started_id) == ("refused", first)


def test_a_row_is_committed_with_its_action_or_not_at_all(database: Database) -> None:
    with suppress(ValueError), database.write() as tx:
        log.append(tx, ADA, "policy.put", "rss", {})
        raise ValueError("the action fails")

    assert listed(database) == []


def test_pages_continue_where_the_previous_one_ended(database: Database) -> None:
    with database.write() as tx:
        ids = [log.append(tx, ADA, "test_mode.put", None, {"number": number}) for number in range(5)]
    with database.read() as tx:
        first = log.audit_page(tx, 2)
        second = log.audit_page(tx, 3, first.next_after or "")

    assert [row.audit_id for row in (*first.items, *second.items)] == ids[::-1]
    assert first.has_more
    assert not second.has_more
    for wrong in ("x", "0", "-1", "1" * 30):
        with database.read() as tx, pytest.raises(InvalidInput):
            log.audit_page(tx, 2, wrong)


@pytest.mark.parametrize(
    "statement",
    [
        update(audit_log).values(principal="somebody else"),
        delete(audit_log),
        text(
            "REPLACE INTO audit_log (audit_id, created_at, principal, source, action, details, result)"
            " SELECT audit_id, created_at, 'somebody else', source, action, details, result FROM audit_log"
        ),
        text("TRUNCATE audit_log"),
    ],
    ids=["update", "delete", "replace", "truncate"],
)
def test_the_database_refuses_to_change_a_row(database: Database, statement: object) -> None:
    with database.write() as tx:
        log.append(tx, ADA, "policy.put", "rss", {})
    before = listed(database)
    with suppress(OncewardError, Exception), database.write() as tx:
        tx.execute(statement)  # type: ignore[call-overload]

    assert listed(database) == before
    assert len(before) == 1


def test_retention_deletes_old_rows_and_the_database_keeps_new_ones(database: Database) -> None:
    now = datetime.datetime.now(datetime.UTC)
    with database.write() as tx:
        kept = log.append(tx, ADA, "policy.put", "new", {})
        row = {"principal": "ada", "source": "api", "action": "policy.put", "details": "{}", "result": "done"}
        for days in (31, 40, 400):
            old = time_text(now - datetime.timedelta(days=days))
            tx.execute(insert(audit_log).values(created_at=old, target=str(days), **row))
    with database.write() as tx:
        first = log.delete_old_rows(tx, datetime.timedelta(days=365))
        again = log.delete_old_rows(tx, datetime.timedelta(days=365))
    after_a_year = [one.target for one in listed(database)]
    with database.write() as tx:
        log.delete_old_rows(tx, datetime.timedelta(days=30))

    assert (first, again) == (1, 0)
    assert after_a_year == ["40", "31", "new"]
    assert [one.audit_id for one in listed(database)] == [kept]
