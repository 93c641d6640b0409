"""Tokens: who may ask the hub for what. Only a digest is stored, so a copy of the database opens nothing.

A token is `ow_<token id>_<secret>`, shown once when it is made. Its name is the principal that it stands for; two live
tokens may share a name, so that one can replace the other without a gap. Scopes are `read`, `write` and `admin`, and
none of them implies another.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

import sqlalchemy
from sqlalchemy import bindparam, exists, insert, literal, or_, select, update

from onceward.db.clock import now_text
from onceward.db.engine import Transaction
from onceward.db.tables import tokens
from onceward.errors import InvalidInput

SCOPES = ("admin", "read", "write")
NAME_CHARACTERS_MAX = 128
# Whoever needs no token: a token by such a name would have a stranger's idempotency keys.
RESERVED_NAMES = frozenset({"local", "anonymous"})

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
    text = f"ow_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    token = Token(token_id, name, wanted, now_text(), None, _digest(text))
    tx.execute(
        insert(tokens).values(
            token_id=token.token_id,
            name=token.name,
            digest=token.digest,
            scopes=" ".join(sorted(token.scopes)),
            created_at=token.created_at,
        )
    )
    return token, text


def listed(tx: Transaction) -> list[Token]:
    """Every token that was ever made, oldest first."""
    rows = tx.execute(select(tokens).order_by(tokens.c.created_at, tokens.c.token_id))
    return [_token(row) for row in rows]


def revoke(tx: Transaction, token_id_or_name: str) -> int:
    """End the token of that id, or all of that name, from the next request on; says how many that were."""
    named = or_(tokens.c.token_id == token_id_or_name, tokens.c.name == token_id_or_name)
    live = tokens.c.revoked_at.is_(None)
    return tx.execute(update(tokens).where(named, live).values(revoked_at=now_text())).rowcount


def find(tx: Transaction, secret_text: str) -> Token | None:
    """The live token of this text. Malformed, unknown and revoked ones are all None."""
    return look(tx, secret_text).token


def any_live(tx: Transaction) -> bool:
    """Whether the hub needs tokens: it does as soon as there is one."""
    return look(tx, "").guarded


_live = exists().where(tokens.c.revoked_at.is_(None))
_nothing = select(literal(1).label("one")).subquery("nothing")
# One statement, so that both facts are of one moment: a row always comes, with or without a token in it.
_LOOK = select(_live.label("guarded"), tokens).select_from(
    _nothing.outerjoin(tokens, tokens.c.token_id == bindparam("wanted"))
)


def look(tx: Transaction, secret_text: str) -> Look:
    """`find` and `any_live` in one read."""
    shape = _TOKEN.fullmatch(secret_text)
    row = tx.execute(_LOOK, {"wanted": "" if shape is None else shape[1]}).one()
    digest = _digest(secret_text)
    same = hmac.compare_digest(digest, _NO_DIGEST if row.digest is None else row.digest)
    live = same and shape is not None and row.revoked_at is None
    return Look(bool(row.guarded), _token(row) if live else None)


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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _token(row: sqlalchemy.Row[tuple[object, ...]]) -> Token:
    return Token(row.token_id, row.name, frozenset(row.scopes.split()), row.created_at, row.revoked_at, row.digest)
