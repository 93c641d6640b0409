"""Tokens: created, found, listed and revoked, on both databases."""

from __future__ import annotations

import hashlib
import re
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select, update

from onceward.errors import Conflict, InvalidInput
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.db.raw_sql import sqlite_connection
from onceward.hub.db.tables import tokens as table
from onceward.hub.security import tokens


def test_a_token_is_found_by_its_text_and_only_its_digest_is_stored(database: Database) -> None:
    with database.write() as tx:
        made, text = tokens.create(tx, "ci", ["write", "read"])
    with database.read() as tx:
        found = tokens.find(tx, text)
        (row,) = tx.execute(select(table)).all()

    assert re.fullmatch(r"ow_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", text)
    assert found == made
    assert found is not None
    assert (found.name, found.scopes, found.revoked_at) == ("ci", frozenset({"read", "write"}), None)
    assert row.digest == hashlib.sha256(text.encode()).hexdigest()
    assert row.scopes == "read write"
    assert text[-43:] not in str(row)
    assert made.digest not in repr(made)


def test_anything_but_the_exact_text_is_not_a_token(database: Database) -> None:
    with database.write() as tx:
        made, text = tokens.create(tx, "ci", ["read"])
        tokens.create(tx, "other", ["read"])
    wrong = [
        "",
        "ow_",
        text[:-1],
        text + "x",
        text + "\n",
        " " + text,
        text.upper(),
        text[:-1] + ("a" if text[-1] != "a" else "b"),
        f"ow_{'0' * 12}_{'a' * 43}",
        f"ow_{made.token_id}_{'a' * 43}",
        made.digest,
        "ow_" + "é" * 12 + "_" + "a" * 43,
        "\ud800",
        "x" * 100_000,
    ]
    with database.read() as tx:
        found = [tokens.find(tx, text) for text in wrong]

    assert found == [None] * len(wrong)


def test_a_revoked_token_is_invalid_at_once_and_stays_listed(database: Database) -> None:
    with database.write() as tx:
        made, text = tokens.create(tx, "ci", ["read"])
        kept, kept_text = tokens.create(tx, "other", ["read"])
    with database.write() as tx:
        assert tokens.revoke(tx, made.token_id) == 1
        assert tokens.revoke(tx, made.token_id) == 0
        assert tokens.revoke(tx, "nobody") == 0
    with database.read() as tx:
        assert tokens.find(tx, text) is None
        assert tokens.find(tx, kept_text) == kept
        first, second = tokens.list_tokens(tx)

    assert (first.token_id, first.revoked_at is None) == (made.token_id, False)
    assert second == kept


def test_two_live_tokens_may_share_a_name_and_are_revoked_together(database: Database) -> None:
    with database.write() as tx:
        _, old = tokens.create(tx, "ci", ["read"])
        new_token, new = tokens.create(tx, "ci", ["read", "write"])
        assert tokens.find(tx, old) is not None
        assert tokens.find(tx, new) == new_token
        assert tokens.revoke(tx, "ci") == 2
        assert tokens.find(tx, old) is tokens.find(tx, new) is None


def test_once_a_token_was_made_the_hub_requires_one_until_it_is_opened_again(database: Database) -> None:
    with database.write() as tx:
        assert not tokens.is_required(tx)
        tokens.create(tx, "a", ["read"])
        assert tokens.is_required(tx)
        tokens.revoke(tx, "a")
        assert tokens.is_required(tx), "the last one is gone, and nobody is let in for that"
        tokens.open_local(tx)
        assert not tokens.is_required(tx)
        tokens.create(tx, "b", ["read"])
        assert tokens.is_required(tx)
        tokens.revoke(tx, "b")
        assert tokens.is_required(tx), "it was opened until the next token, not forever"
        assert [token.name for token in tokens.list_tokens(tx)] == ["a", "b"], "an opening is not a token"


def test_an_expired_token_is_invalid_and_the_hub_still_requires_one(database: Database) -> None:
    with database.write() as tx:
        made, text = tokens.create(tx, "ci", ["read"], valid_seconds=3600)
        _, forever = tokens.create(tx, "forever", ["read"])
        before = tokens.find(tx, text), tokens.find(tx, forever)
        tx.execute(update(table).where(table.c.name == "ci").values(expires_at=made.created_at))
        tokens.revoke(tx, "forever")
        after = tokens.lookup(tx, text)
        wrong_secret = tokens.lookup(tx, text[:-1] + ("a" if text[-1] != "a" else "b"))

    assert made.expires_at is not None
    assert made.expires_at[:10] >= made.created_at[:10]
    assert made.expires_at > made.created_at
    assert None not in before
    assert after == tokens.TokenLookup(token_required=True, token=None, expired_at=made.created_at)
    assert wrong_secret.expired_at is None, "only the owner of a token learns that it is expired"


def test_expired_tokens_do_not_keep_a_hub_from_being_opened(database: Database) -> None:
    with database.write() as tx:
        made, _ = tokens.create(tx, "ci", ["read"], valid_seconds=3600)
        tx.execute(update(table).values(expires_at=made.created_at))
        tokens.open_local(tx)
        assert not tokens.is_required(tx)


def test_a_hub_with_a_live_token_is_not_opened(database: Database) -> None:
    with database.write() as tx:
        tokens.create(tx, "a", ["read"])
        with pytest.raises(Conflict, match="1 valid token"):
            tokens.open_local(tx)
        assert tokens.is_required(tx)


def test_a_token_created_while_the_hub_is_opened_wins(database: Database) -> None:
    """Two transactions of PostgreSQL may not see each other. The test creates the rows that they would leave."""
    with database.write() as tx:
        tokens.create(tx, "old", ["read"])
        tokens.revoke(tx, "old")
        tokens.open_local(tx)
        opening = tx.execute(select(table).where(table.c.name == "local")).one()
        tokens.create(tx, "new", ["read"])
        tx.execute(update(table).where(table.c.token_id == opening.token_id).values(revoked_at=None))
        assert tokens.is_required(tx)
        tokens.revoke(tx, "new")
        assert tokens.is_required(tx)


def test_finding_a_token_reads_no_other_rows(tmp_path: Path) -> None:
    with closing(open_database(f"sqlite:///{tmp_path}/hub.db")) as database:
        migrate(database)
        with database.write() as tx:
            _, first = tokens.create(tx, "first", ["read"])
        few = steps(database, first)
        with database.write() as tx:
            for number in range(200):
                tokens.create(tx, f"t{number}", ["read"])
            tx.execute(update(table).values(revoked_at="2026-01-01T00:00:00Z"))
            _, last = tokens.create(tx, "last", ["read"])
        many = steps(database, last)

    assert many == pytest.approx(few, abs=10)


def steps(database: Database, text: str) -> int:
    """The number of steps that SQLite's virtual machine takes to find this token."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    with database.read() as tx:
        driver = sqlite_connection(tx.connection)
        driver.set_progress_handler(count, 1)
        assert tokens.find(tx, text) is not None
        driver.set_progress_handler(None, 0)
    return counted


@pytest.mark.parametrize(
    "name", ["", " ", "a" * 129, "a\n", "\x1b[31m", "\u202eevil", " a", "a ", "local", "Anonymous", "\ud800"], ids=ascii
)
def test_an_unreadable_or_reserved_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        tokens.check_name(name)


@pytest.mark.parametrize(
    "name", ["1a2b3c4d5e6f", "1A2B3C4D5E6F", "open-1a2b3c4d5e6f", "ow_x", "\uff11a2b3c4d5e6f"], ids=ascii
)
def test_a_name_that_could_be_an_id_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="mistaken for the id"):
        tokens.check_name(name)


def test_names_that_look_the_same_are_the_same(database: Database) -> None:
    composed, decomposed = "Jos\u00e9", "Jose\u0301"
    with database.write() as tx:
        first, _ = tokens.create(tx, composed, ["read"])
        second, _ = tokens.create(tx, decomposed, ["read"])
        revoked = tokens.revoke(tx, decomposed)

    assert first.name == second.name == composed
    assert revoked == 2
    with pytest.raises(InvalidInput, match="reserved"):
        tokens.check_name("\uff4cocal")


@pytest.mark.parametrize("name", ["a", "a" * 128, "Jürgen's laptop", "ci/main", "localhost"])
def test_other_names_are_stored_unchanged(name: str) -> None:
    assert tokens.check_name(name) == name


@pytest.mark.parametrize("scopes", [[], ["all"], ["read", "Write"], [""], "read", ["admin:topics"]], ids=str)
def test_an_invalid_scope_is_refused(scopes: list[str]) -> None:
    with pytest.raises(InvalidInput):
        tokens.check_scopes(scopes)
