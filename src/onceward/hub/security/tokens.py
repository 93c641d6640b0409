"""Access tokens. Only a digest is stored, so that a copy of the database gives no access.

A token is `ow_<token id>_<secret>`, shown once when it is created. Its name is its principal. Two valid tokens may
share a name, so that one can replace the other without a gap. `scopes.py` has the scopes; none of them implies another.
A token with `expires_at` is not valid from that time on.

Once a token has been created, the hub requires one, even after all of them are revoked: revoked rows stay, and any row
counts. `open_local` reverts this with an additional row under the reserved name `local`. This row is not usable as a
token, and counts until the next token is created or revoked.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
import secrets
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    column,
    exists,
    false,
    func,
    insert,
    literal_column,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects import sqlite

from onceward.errors import Conflict, InvalidInput
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.lookup import Lookup
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.tables import tokens
from onceward.hub.db.timestamps import now_text, time_text
from onceward.hub.security.scopes import GRANTABLE

# The scopes for the whole hub.
SCOPES = ("admin", "read", "write")
NAME_CHARACTERS_MAX = 128
# Principals without a token. A token with such a name would share their idempotency keys.
RESERVED_NAMES = frozenset({"local", "anonymous"})
# The name of the rows that `open_local` writes.
_OPENING = "local"

# 256 bits cannot be guessed, so a slow hash instead of SHA-256 is not needed.
_SECRET_BYTES = 32
_ID_BYTES = 6
_TOKEN = re.compile(r"ow_([0-9a-f]{12})_[A-Za-z0-9_-]{43}", re.ASCII)
# An id, an opening's id, or the text of a token: `token revoke` would take a name of this form for one of them.
_LIKE_AN_ID = re.compile(r"(?:open-)?[0-9a-f]{12}|ow_.*", re.ASCII | re.IGNORECASE | re.DOTALL)
# The digest to compare with if the token does not exist, so that the check takes as long as for one that exists.
_NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True)
class Token:
    """A stored token, without its secret text."""

    token_id: str
    name: str
    scopes: frozenset[str]
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None
    digest: str = field(repr=False)

    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= now_text()


@dataclass(frozen=True, slots=True)
class TokenLookup:
    """Result of one lookup: whether the hub requires tokens, and the valid token with the given text.

    `expired_at` is set instead if the token is expired.
    """

    token_required: bool
    token: Token | None
    expired_at: str | None = None


def create(
    tx: Transaction, name: str, scopes: Iterable[str], *, valid_seconds: float | None = None
) -> tuple[Token, str]:
    """Create a token. Return it with its secret text, which is not stored and cannot be shown again.

    With `valid_seconds`, it expires after that time.
    """
    name, wanted = check_name(name), check_scopes(scopes)
    token_id = secrets.token_hex(_ID_BYTES)
    secret_text = f"ow_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    now = datetime.datetime.now(datetime.UTC)
    expires_at = None if valid_seconds is None else time_text(now + datetime.timedelta(seconds=valid_seconds))
    token = Token(token_id, name, wanted, time_text(now), expires_at, None, None, _digest(secret_text))
    _close_openings(tx)
    _insert(tx, token)
    return token, secret_text


def _insert(tx: Transaction, token: Token) -> None:
    tx.execute(
        insert(tokens).values(
            token_id=token.token_id,
            name=token.name,
            digest=token.digest,
            scopes=" ".join(sorted(token.scopes)),
            created_at=token.created_at,
            expires_at=token.expires_at,
        )
    )


def list_tokens(tx: Transaction) -> list[Token]:
    """Return all tokens, oldest first, including revoked and expired ones."""
    rows = tx.execute(select(*_COLUMNS).where(_is_token).order_by(tokens.c.created_at, tokens.c.token_id))
    return [_token(tuple(row)) for row in rows]


def revoke(tx: Transaction, token_id_or_name: str) -> int:
    """Revoke the token with this id, or all with this name, from the next request on. Return their number."""
    # A token of an earlier version may have a name that is not normalized.
    names = {token_id_or_name, unicodedata.normalize("NFKC", token_id_or_name)}
    named = or_(tokens.c.token_id == token_id_or_name, tokens.c.name.in_(names))
    _close_openings(tx)
    return tx.execute(update(tokens).where(named, _is_live, _is_token).values(revoked_at=now_text())).rowcount


def set_last_use(tx: Transaction, token_id: str, used_at: str) -> None:
    """Set the time of the last use, unless another process has already set this time or a later one."""
    is_older = or_(tokens.c.last_used_at.is_(None), tokens.c.last_used_at < used_at)
    tx.execute(update(tokens).where(tokens.c.token_id == token_id, is_older).values(last_used_at=used_at))


def open_local(tx: Transaction) -> str:
    """Accept requests from this machine without a token again, until the next token is created. Return the time.

    Raises `Conflict` while a token is valid. Expired tokens are revoked.
    """
    now = now_text()
    # Only valid tokens are live: an expired one would otherwise keep the hub closed.
    tx.execute(update(tokens).where(_is_live, _is_token, tokens.c.expires_at <= now).values(revoked_at=now))
    live = tx.execute(select(func.count()).select_from(tokens).where(_is_live, _is_token)).scalar_one()
    if live:
        tokens_, them = ("token", "it") if live == 1 else ("tokens", "them")
        verb = "is" if live == 1 else "are"
        raise Conflict(f"there {verb} {live} valid {tokens_}; revoke {them} first (`onceward token list` lists {them})")
    _close_openings(tx)
    opening = Token(f"open-{secrets.token_hex(_ID_BYTES)}", _OPENING, frozenset(), now, None, None, None, _NO_DIGEST)
    _insert(tx, opening)
    return opening.created_at


def _close_openings(tx: Transaction) -> None:
    tx.execute(update(tokens).where(_is_live, _is_opening).values(revoked_at=now_text()))


def find(tx: Transaction, secret_text: str) -> Token | None:
    """Return the valid token with this text. None if it is malformed, unknown, revoked or expired."""
    return lookup(tx, secret_text).token


def is_required(tx: Transaction) -> bool:
    """Return whether the hub requires a token: since the first one was created, unless `open_local` was called."""
    return lookup(tx, "").token_required


_COLUMNS = (
    tokens.c.token_id,
    tokens.c.name,
    tokens.c.scopes,
    tokens.c.created_at,
    tokens.c.expires_at,
    tokens.c.last_used_at,
    tokens.c.revoked_at,
    tokens.c.digest,
)
_is_live = tokens.c.revoked_at.is_(None)
# A literal, so that the statement has one parameter only: `lookup_async` passes no other one to SQLite's driver.
_opening: ColumnElement[str] = literal_column(f"'{_OPENING}'")
_is_token, _is_opening = tokens.c.name != _opening, tokens.c.name == _opening
# Cases are tried in order: if the row is that of a valid token, no other row is read. An opening counts only while no
# token is valid: `create` and `open_local` may have committed in either order.
_token_required = case(
    (and_(_is_live, _is_token), true()),
    (exists().where(_is_live, _is_token), true()),
    (exists().where(_is_live, _is_opening), false()),
    else_=exists().where(_is_token),
)
_one_row = select(text("1 AS one")).subquery("one_row")
# One statement, so that both facts are from one snapshot. It always returns a row, with or without a token.
_LOOKUP = select(_token_required.label("guarded"), *_COLUMNS).select_from(
    _one_row.outerjoin(tokens, tokens.c.token_id == bindparam("wanted"))
)
_LOOKUP_ALL = select(_token_required.label("guarded"), *_COLUMNS).select_from(
    _one_row.outerjoin(tokens, tokens.c.token_id.in_(bindparam("wanted", expanding=True)))
)
_asked = (
    text("""
        SELECT e.place, e.row ->> 'wanted' AS wanted
        FROM json_array_elements(CAST(:asked AS json)) WITH ORDINALITY AS e(row, place)
    """)
    .columns(column("place", Integer), column("wanted", Text))
    .subquery("asked")
)
_LOOKUP_ASYNC = Lookup(
    RawStatement(str(_LOOKUP.compile(dialect=sqlite.dialect(paramstyle="named")))),
    select(_asked.c.place, _token_required.label("guarded"), *_COLUMNS).select_from(
        _asked.outerjoin(tokens, tokens.c.token_id == _asked.c.wanted)
    ),
)


def lookup(tx: Transaction, secret_text: str) -> TokenLookup:
    """Run `find` and `is_required` in one query."""
    return _verified(secret_text, tx.execute(_LOOKUP, {"wanted": _id_in(secret_text)}).one())


def lookup_all(database: Database, secret_texts: Collection[str]) -> dict[str, TokenLookup]:
    """Run `lookup` for several tokens in one query."""
    ids = {text: _id_in(text) for text in secret_texts}
    with database.read() as tx:
        rows = [tuple(row) for row in tx.execute(_LOOKUP_ALL, {"wanted": sorted(set(ids.values()))})]
    found = {row[1]: row for row in rows}
    unknown = (rows[0][0], *(None for _ in _COLUMNS))
    return {text: _verified(text, found.get(token_id, unknown)) for text, token_id in ids.items()}


async def lookup_async(database: Database, secret_text: str) -> TokenLookup:
    """Run `lookup` for a request, without a transaction."""
    (row,) = await database.lookups.find(_LOOKUP_ASYNC, {"wanted": _id_in(secret_text)})
    return _verified(secret_text, row)


def _id_in(secret_text: str) -> str:
    shape = _TOKEN.fullmatch(secret_text)
    return "" if shape is None else shape[1]


def _verified(secret_text: str, row: Sequence[Any]) -> TokenLookup:
    token_required, *fields = row
    stored_digest, revoked_at = fields[-1], fields[-2]
    same = hmac.compare_digest(_digest(secret_text), _NO_DIGEST if stored_digest is None else stored_digest)
    if not same or revoked_at is not None:
        return TokenLookup(bool(token_required), None)
    token = _token(fields)
    if token.is_expired():
        return TokenLookup(bool(token_required), None, token.expires_at)
    return TokenLookup(bool(token_required), token)


def check_name(name: str) -> str:
    """Return the name in NFKC, so that names that look the same are the same; raise `InvalidInput` if it is refused."""
    name = unicodedata.normalize("NFKC", name)
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not name.isprintable() or name != name.strip():
        raise InvalidInput(
            f"a token's name must be 1 to {NAME_CHARACTERS_MAX} printable characters, without surrounding spaces",
            (("name", f"must be 1 to {NAME_CHARACTERS_MAX} printable characters, without surrounding spaces"),),
        )
    if name.casefold() in RESERVED_NAMES:
        raise InvalidInput(
            f"a token cannot be named {name!r}: the name is reserved for callers without a token",
            (("name", "is reserved for callers without a token"),),
        )
    if _LIKE_AN_ID.fullmatch(name):
        raise InvalidInput(
            f"a token cannot be named {name!r}: the name could be mistaken for the id or the text of a token",
            (("name", "could be mistaken for the id or the text of a token"),),
        )
    return name


def check_scopes(scopes: Iterable[str]) -> frozenset[str]:
    wanted = frozenset(scopes)
    if not wanted or wanted - set(GRANTABLE):
        problem = f"must be one or more of {', '.join(GRANTABLE)}"
        raise InvalidInput(f"scopes {problem}", (("scopes", problem),))
    return wanted


def _digest(secret_text: str) -> str:
    return hashlib.sha256(secret_text.encode("utf-8", "surrogatepass")).hexdigest()


def _token(fields: Sequence[Any]) -> Token:
    token_id, name, scopes, *times, digest = fields
    created_at, expires_at, last_used_at, revoked_at = times
    return Token(token_id, name, frozenset(scopes.split()), created_at, expires_at, last_used_at, revoked_at, digest)
