"""Sessions: stored as digests, over after 12 hours, and never longer than their token."""

from __future__ import annotations

import asyncio
import datetime

from sqlalchemy import text

from onceward.hub.console import sessions
from onceward.hub.console.sessions import SESSION_SECONDS, Session, create_session, end_session, find_session
from onceward.hub.db.engine import Database
from onceward.hub.security import tokens


def opened(database: Database, name: str = "ada", valid_seconds: float | None = None) -> tuple[str, str]:
    """A new session and its token."""
    session_id = sessions.new_session_id()
    with database.write() as tx:
        token, _ = tokens.create(tx, name, ["read"], valid_seconds=valid_seconds)
        create_session(tx, session_id, token.token_id)
    return session_id, token.token_id


def found(database: Database, session_id: str) -> Session | None:
    return asyncio.run(find_session(database, session_id))


def test_a_session_has_the_name_and_scopes_of_its_token(database: Database) -> None:
    session_id, token_id = opened(database)

    assert found(database, session_id) == Session(token_id, "ada", frozenset({"read"}))
    assert found(database, session_id + "x") is None


def test_the_cookie_itself_is_not_stored(database: Database) -> None:
    session_id, _ = opened(database)
    with database.read() as tx:
        rows = str(tx.execute(text("SELECT * FROM console_sessions")).all())

    assert session_id not in rows
    assert len(session_id) >= 43


def test_a_session_ends_with_its_token_its_time_or_a_logout(database: Database) -> None:
    revoked, token_id = opened(database, "grace")
    expired, _ = opened(database, "joan", valid_seconds=0.0)
    over, _ = opened(database, "mary")
    left, _ = opened(database, "ada")
    with database.write() as tx:
        tokens.revoke(tx, token_id)
        end_session(tx, left)
        tx.execute(
            text("UPDATE console_sessions SET expires_at = :at WHERE session_digest = :digest"),
            {"at": "2020-01-01T00:00:00.000000Z", "digest": sessions._digest(over)},
        )

    assert [found(database, one) for one in (revoked, expired, over, left)] == [None] * 4


def test_a_session_lasts_twelve_hours_and_old_ones_are_deleted(database: Database) -> None:
    opened(database)
    with database.write() as tx:
        tx.execute(text("UPDATE console_sessions SET expires_at = '2020-01-01T00:00:00.000000Z'"))
    opened(database, "grace")
    with database.read() as tx:
        ((created_at, expires_at),) = tx.execute(text("SELECT created_at, expires_at FROM console_sessions")).all()
    span = datetime.datetime.fromisoformat(expires_at) - datetime.datetime.fromisoformat(created_at)

    assert span.total_seconds() == SESSION_SECONDS == 12 * 3600
