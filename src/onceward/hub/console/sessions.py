"""Sessions of the console: a random cookie, stored as a digest with the id of the token that opened it.

A session lasts 12 hours. It ends earlier with its token: both are read for every request, so that a revoked token has no
access from the next request on.
"""

from __future__ import annotations

import datetime
import hashlib
import secrets
from dataclasses import dataclass

from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.lookup import Lookup
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.timestamps import now_text, time_text

SESSION_SECONDS = 12 * 3600
# 256 bits cannot be guessed.
_ID_BYTES = 32

_INSERT = RawStatement("""
    INSERT INTO console_sessions (session_digest, token_id, created_at, expires_at)
    VALUES (:digest, :token_id, :now, :expires_at)
""")
_DELETE = RawStatement("DELETE FROM console_sessions WHERE session_digest = :digest")
_PURGE = RawStatement("DELETE FROM console_sessions WHERE expires_at <= :now")
_COLUMNS = "s.expires_at, t.token_id, t.name, t.scopes, t.expires_at, t.revoked_at"
_FIND = Lookup(
    RawStatement(f"""
        SELECT {_COLUMNS} FROM console_sessions s JOIN tokens t ON t.token_id = s.token_id
        WHERE s.session_digest = :digest
    """),  # noqa: S608  # our own column names
    f"""
        SELECT e.place, {_COLUMNS}
        FROM json_array_elements(CAST(:asked AS json)) WITH ORDINALITY AS e(row, place)
        JOIN console_sessions s ON s.session_digest = e.row ->> 'digest' JOIN tokens t ON t.token_id = s.token_id
    """,  # noqa: S608
)


@dataclass(frozen=True, slots=True)
class Session:
    """A valid session: the token that opened it, with its name and scopes."""

    token_id: str
    name: str
    scopes: frozenset[str]


def new_session_id() -> str:
    """Return a random text for the cookie."""
    return secrets.token_urlsafe(_ID_BYTES)


def create_session(tx: Transaction, session_id: str, token_id: str) -> None:
    """Store a session, and delete those that have ended."""
    now = datetime.datetime.now(datetime.UTC)
    _PURGE.count(tx, {"now": time_text(now)})
    expires_at = time_text(now + datetime.timedelta(seconds=SESSION_SECONDS))
    row = {"digest": _digest(session_id), "token_id": token_id, "now": time_text(now), "expires_at": expires_at}
    _INSERT.count(tx, row)


def end_session(tx: Transaction, session_id: str) -> None:
    _DELETE.count(tx, {"digest": _digest(session_id)})


async def find_session(database: Database, session_id: str) -> Session | None:
    """Return the session of a cookie. None if it is unknown or over, or its token was revoked or has expired."""
    rows = await database.lookups.find(_FIND, {"digest": _digest(session_id)})
    if not rows:
        return None
    expires_at, token_id, name, scopes, token_expires_at, revoked_at = rows[0]
    now = now_text()
    if revoked_at is not None or expires_at <= now or (token_expires_at is not None and token_expires_at <= now):
        return None
    return Session(token_id, name, frozenset(scopes.split()))


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()
