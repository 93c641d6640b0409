"""Actions outside the hub's database: a row before, and a row with the result."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress

import pytest

from onceward.errors import Conflict, StoreUnavailable
from onceward.hub.audit.actor import Actor, local_actor
from onceward.hub.audit.log import AuditRow, audit_page
from onceward.hub.audit.recorder import record_action, record_action_blocking
from onceward.hub.db.engine import Database, open_database

ADA = Actor("ada", "api")
ARGUMENTS = (ADA, "claim.resolve", "call k", {"version": 7})


def listed(database: Database) -> list[AuditRow]:
    """Return all rows, oldest first."""
    with database.read() as tx:
        return audit_page(tx, 500).items[::-1]


def run(database: Database, error: BaseException | None, *, blocking: bool) -> None:
    """Run an action, which raises this error if there is one."""
    if blocking:
        with record_action_blocking(database, *ARGUMENTS) as audit:
            assert [row.result for row in listed(database)][-1] == "started", "it is committed before the action"
            audit.details = {"status": "completed"}
            if error is not None:
                raise error
        return

    async def main() -> None:
        async with record_action(database, *ARGUMENTS) as audit:
            assert [row.result for row in listed(database)][-1] == "started", "it is committed before the action"
            audit.details = {"status": "completed"}
            if error is not None:
                raise error

    asyncio.run(main())


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "async"])
def test_the_result_of_an_action_is_a_second_row(database: Database, blocking: bool) -> None:
    errors = [None, Conflict("changed"), StoreUnavailable("away"), ZeroDivisionError(), KeyboardInterrupt()]
    for error in errors[:-1] if not blocking else errors:
        with suppress(BaseException):
            run(database, error, blocking=blocking)
    rows = listed(database)
    results = [(row.result, row.details) for row in rows if row.started_id is not None]

    assert results == [
        ("done", {"status": "completed"}),
        ("refused", {"error": "conflict"}),
        ("unknown", {"error": "store-unavailable"}),
        ("unknown", {"error": "ZeroDivisionError"}),
    ]
    started = [row for row in rows if row.result == "started"]
    assert [row.started_id for row in rows if row.started_id] == [row.audit_id for row in started[:4]]
    assert started[0].details == {"version": 7}
    assert {(row.principal, row.action, row.target) for row in rows} == {("ada", "claim.resolve", "call k")}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "async"])
def test_an_action_that_cannot_be_recorded_is_not_done(database: Database, blocking: bool) -> None:
    done = []
    with database.write() as tx:
        tx.exec_driver_sql("CREATE TRIGGER full BEFORE INSERT ON audit_log BEGIN SELECT RAISE(ABORT, 'full'); END")
    with closing(open_database(str(database.engine.url))) as other:

        async def act() -> None:
            async with record_action(other, *ARGUMENTS):
                done.append(1)

        with suppress(Exception):
            if blocking:
                with record_action_blocking(other, *ARGUMENTS):
                    done.append(1)
            else:
                asyncio.run(act())

    assert done == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_action_keeps_its_result_if_the_second_row_cannot_be_written(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with record_action_blocking(database, *ARGUMENTS):
        database.writer.close()

    assert any(message.startswith("audit_result_not_written") for message in caplog.messages)
    assert [row.result for row in listed(database)] == ["started"]


def test_a_command_is_recorded_with_the_user_of_the_machine() -> None:
    actor = local_actor()

    assert actor.principal
    assert (actor.source, actor.token_id, actor.client) == ("command", None, None)
