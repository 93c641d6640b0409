"""Tokens: who may ask the hub for what. Only a digest is stored, so a copy of the database opens nothing.

A token is `ow_<token id>_<secret>`, shown once when it is made. Its name is the principal that it stands for; two live
tokens may share a name, so that one can replace the other without a gap. Scopes are `read`, `write` and `admin`, and
none of them implies another.

Once a token was created, the hub requires one, also after all of them are revoked: revoked rows stay, and any row counts.
`open_local` reverts this with a row of its own under the reserved name `local`. It opens nothing as a token, and counts
until the next token is created or revoked.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    ColumnElement,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal_column,
    not_,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects import sqlite

from onceward.db.clock import now_text
from onceward.db.engine import Database, Transaction
from onceward.db.tables import tokens
from onceward.errors import Conflict, InvalidInput

SCOPES = ("admin", "read", "write")
NAME_CHARACTERS_MAX = 128
# Whoever needs no token: a token by such a name would have a stranger's idempotency keys.
RESERVED_NAMES = frozenset({"local", "anonymous"})
# The name of the rows that `open_local` writes.
_OPENING = "local"

# 256 bits: nobody guesses one, so nothing slower than SHA-256 is needed to keep it.
_SECRET_BYTES = 32
_ID_BYTES = 6
_TOKEN = re.compile(r"ow_([0-9a-f]{12})_[A-Za-z0-9_-]{43}", re.ASCII)
# Compared with when there is no such token, so that this takes as long.
_NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token; never the token itself."""

    token_id: str
    name: str
    scopes: frozenset[str]
    created_at: str
    revoked_at: str | None
    digest: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look into the table says: whether the hub needs tokens at all, and the live token that was asked for."""

    guarded: bool
    token: Token | None


def create(tx: Transaction, name: str, scopes: Iterable[str]) -> tuple[Token, str]:
    """A new token, and its text, which is not stored and cannot be shown again."""
    name, wanted = check_name(name), check_scopes(scopes)
    token_id = secrets.token_hex(_ID_BYTES)
    secret_text = f"ow_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    token = Token(token_id, name, wanted, now_text(), None, _digest(secret_text))
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
        )
    )


def listed(tx: Transaction) -> list[Token]:
    """Every token that was ever made, oldest first."""
    rows = tx.execute(select(*_COLUMNS).where(_is_token).order_by(tokens.c.created_at, tokens.c.token_id))
    return [_token(tuple(row)) for row in rows]


def revoke(tx: Transaction, token_id_or_name: str) -> int:
    """End the token of that id, or all of that name, from the next request on; says how many that were."""
    named = or_(tokens.c.token_id == token_id_or_name, tokens.c.name == token_id_or_name)
    _close_openings(tx)
    return tx.execute(update(tokens).where(named, _is_live, _is_token).values(revoked_at=now_text())).rowcount


def open_local(tx: Transaction) -> str:
    """Let this machine in without a token again, until the next one is created; gives the time. `Conflict` while a
    token lives.
    """
    live = tx.execute(select(func.count()).select_from(tokens).where(_is_live, _is_token)).scalar_one()
    if live:
        tokens_, them = ("token", "it") if live == 1 else ("tokens", "them")
        verb = "is" if live == 1 else "are"
        raise Conflict(f"there {verb} {live} live {tokens_}; revoke {them} first, see onceward token list")
    _close_openings(tx)
    opening = Token(f"open-{secrets.token_hex(_ID_BYTES)}", _OPENING, frozenset(), now_text(), None, _NO_DIGEST)
    _insert(tx, opening)
    return opening.created_at


def _close_openings(tx: Transaction) -> None:
    tx.execute(update(tokens).where(_is_live, _is_opening).values(revoked_at=now_text()))


def find(tx: Transaction, secret_text: str) -> Token | None:
    """The live token of this text. Malformed, unknown and revoked ones are all None."""
    return look(tx, secret_text).token


def is_required(tx: Transaction) -> bool:
    """Whether the hub requires a token: from the first one on, unless it was opened again."""
    return look(tx, "").guarded


_COLUMNS = (
    tokens.c.token_id,
    tokens.c.name,
    tokens.c.scopes,
    tokens.c.created_at,
    tokens.c.revoked_at,
    tokens.c.digest,
)
_is_live = tokens.c.revoked_at.is_(None)
# Part of the statement's text, which SQLite's driver gets with one parameter.
_opening: ColumnElement[str] = literal_column(f"'{_OPENING}'")
_is_token, _is_opening = tokens.c.name != _opening, tokens.c.name == _opening
# An opening counts only while no token lives, whatever the order in which two transactions were committed.
_is_open = and_(exists().where(_is_live, _is_opening), not_(exists().where(_is_live, _is_token)))
_guarded = and_(exists().where(_is_token), not_(_is_open))
_one_row = select(text("1 AS one")).subquery("one_row")
# One statement, so that both facts are of one moment: a row always comes, with or without a token in it.
_LOOK = select(_guarded.label("guarded"), *_COLUMNS).select_from(
    _one_row.outerjoin(tokens, tokens.c.token_id == bindparam("wanted"))
)
_LOOK_AT_ALL = select(_guarded.label("guarded"), *_COLUMNS).select_from(
    _one_row.outerjoin(tokens, tokens.c.token_id.in_(bindparam("wanted", expanding=True)))
)
_LOOK_ON_SQLITE = str(_LOOK.compile(dialect=sqlite.dialect(paramstyle="named")))


def look(tx: Transaction, secret_text: str) -> Look:
    """`find` and `is_required` in one read."""
    return _judged(secret_text, tuple(tx.execute(_LOOK, {"wanted": _id_in(secret_text)}).one()))


def look_at_all(database: Database, secret_texts: Collection[str]) -> dict[str, Look]:
    """`look` for each of these, in one statement."""
    ids = {text: _id_in(text) for text in secret_texts}
    with database.read() as tx:
        rows = [tuple(row) for row in tx.execute(_LOOK_AT_ALL, {"wanted": sorted(set(ids.values()))})]
    found = {row[1]: row for row in rows}
    unknown = (rows[0][0], *(None for _ in _COLUMNS))
    return {text: _judged(text, found.get(token_id, unknown)) for text, token_id in ids.items()}


def look_now(database: Database, secret_text: str) -> Look:
    """`look`, for every request. One statement needs no transaction around it: on PostgreSQL that would be three ways
    to the server instead of one, and SQLite's driver, asked directly, answers in an eighth of the time.
    """
    wanted = {"wanted": _id_in(secret_text)}
    with database.speaking():
        if database.is_sqlite:
            with closing(database.engine.raw_connection()) as raw:
                row = raw.cursor().execute(_LOOK_ON_SQLITE, wanted).fetchone()
        else:
            with database.engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT")
                row = tuple(connection.execute(_LOOK, wanted).one())
    return _judged(secret_text, row)


def _id_in(secret_text: str) -> str:
    shape = _TOKEN.fullmatch(secret_text)
    return "" if shape is None else shape[1]


def _judged(secret_text: str, row: tuple[Any, ...]) -> Look:
    guarded, *fields = row
    kept, revoked_at = fields[-1], fields[-2]
    same = hmac.compare_digest(_digest(secret_text), _NO_DIGEST if kept is None else kept)
    return Look(bool(guarded), _token(fields) if same and revoked_at is None else None)


def check_name(name: str) -> str:
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not name.isprintable() or name != name.strip():
        raise InvalidInput(
            f"A token's name is 1 to {NAME_CHARACTERS_MAX} visible characters, without blanks around them",
            (("name", "not a name"),),
        )
    if name.casefold() in RESERVED_NAMES:
        raise InvalidInput(
            f"A token cannot be named {name!r}: that stands for who needs no token", (("name", "reserved"),)
        )
    return name


def check_scopes(scopes: Iterable[str]) -> frozenset[str]:
    wanted = frozenset(scopes)
    if not wanted or wanted - set(SCOPES):
        raise InvalidInput(f"Scopes are one or more of {', '.join(SCOPES)}", (("scopes", "not scopes"),))
    return wanted


def _digest(secret_text: str) -> str:
    return hashlib.sha256(secret_text.encode("utf-8", "surrogatepass")).hexdigest()


def _token(fields: Sequence[Any]) -> Token:
    token_id, name, scopes, created_at, revoked_at, digest = fields
    return Token(token_id, name, frozenset(scopes.split()), created_at, revoked_at, digest)
