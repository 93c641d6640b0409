"""Filters of the audit log."""

from __future__ import annotations

import pytest
from sqlalchemy import insert

from onceward.errors import InvalidInput
from onceward.hub.audit.filter import audit_filter
from onceward.hub.audit.log import audit_page
from onceward.hub.db.engine import Database
from onceward.hub.db.tables import audit_log

ROWS = [
    ("ada", "claim.resolve", "2031-05-01T00:00:00.000000Z"),
    ("ada", "claim_x.y", "2031-05-01T23:59:59.999999Z"),
    ("bob", "claim.purge", "2031-05-02T00:00:00.000000Z"),
    ("hub", "blobs.gc", "2031-05-03T12:00:00.000000Z"),
]


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, [0, 1, 2, 3]),
        ({"principal": "ada"}, [0, 1]),
        ({"principal": "ad_"}, []),
        ({"action": "claim"}, [0, 2]),
        ({"action": "claim.purge"}, [2]),
        ({"action": "clai"}, []),
        ({"since": "2031-05-02"}, [2, 3]),
        ({"until": "2031-05-01"}, [0, 1]),
        ({"until": "2031-05-02T00:00:00Z"}, [0, 1]),
        ({"since": "2031-05-03T14:00:00+02:00"}, [3]),
        ({"principal": "ada", "action": "claim", "since": "2031-05-01", "until": "2031-05-01"}, [0]),
    ],
    ids=str,
)
def test_only_rows_that_meet_all_conditions_are_listed(
    database: Database, asked: dict[str, str], wanted: list[int]
) -> None:
    with database.write() as tx:
        for principal, action, created_at in ROWS:
            row = {"principal": principal, "action": action, "created_at": created_at}
            tx.execute(insert(audit_log).values(source="api", details="{}", result="done", **row))
    with database.read() as tx:
        found = audit_page(tx, 10, only=audit_filter(**asked)).items

    assert [(one.principal, one.action, one.created_at) for one in found[::-1]] == [ROWS[number] for number in wanted]


@pytest.mark.parametrize("text", ["yesterday", "2031-05-01T08:00:00", "2031-13-01", "0001-01-01T00:00:00+14:00"])
def test_other_texts_than_times_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="since must be a date"):
        audit_filter(since=text)
