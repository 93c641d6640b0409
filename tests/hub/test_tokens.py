"""Tokens: made, found, listed and ended, on both databases."""

from __future__ import annotations

import hashlib
import re

import pytest
from sqlalchemy import select

from onceward.db.engine import Database
from onceward.db.tables import tokens as table
from onceward.errors import InvalidInput
from onceward.hub import tokens


def test_a_token_is_found_by_its_text_and_only_its_digest_is_kept(database: Database) -> None:
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


def test_everything_that_is_not_exactly_the_text_is_no_token(database: Database) -> None:
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


def test_a_revoked_token_is_gone_at_once_and_stays_listed(database: Database) -> None:
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
        first, second = tokens.listed(tx)

    assert (first.token_id, first.revoked_at is None) == (made.token_id, False)
    assert second == kept


def test_two_live_tokens_may_share_a_name_and_end_together(database: Database) -> None:
    with database.write() as tx:
        _, old = tokens.create(tx, "ci", ["read"])
        new_token, new = tokens.create(tx, "ci", ["read", "write"])
        assert tokens.find(tx, old) is not None
        assert tokens.find(tx, new) == new_token
        assert tokens.revoke(tx, "ci") == 2
        assert tokens.find(tx, old) is tokens.find(tx, new) is None


def test_the_hub_needs_tokens_as_long_as_one_is_live(database: Database) -> None:
    with database.write() as tx:
        assert not tokens.any_live(tx)
        tokens.create(tx, "a", ["read"])
        tokens.create(tx, "b", ["read"])
        assert tokens.any_live(tx)
        tokens.revoke(tx, "a")
        assert tokens.any_live(tx)
        tokens.revoke(tx, "b")
        assert not tokens.any_live(tx)


@pytest.mark.parametrize(
    "name", ["", " ", "a" * 129, "a\n", "\x1b[31m", "\u202eevil", " a", "a ", "local", "Anonymous", "\ud800"], ids=ascii
)
def test_a_name_that_cannot_be_read_or_means_somebody_else_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        tokens.check_name(name)


@pytest.mark.parametrize("name", ["a", "a" * 128, "Jürgen's laptop", "ci/main", "localhost"])
def test_other_names_are_as_they_are(name: str) -> None:
    assert tokens.check_name(name) == name


@pytest.mark.parametrize("scopes", [[], ["all"], ["read", "Write"], [""], "read"], ids=str)
def test_what_is_no_scope_is_refused(scopes: list[str]) -> None:
    with pytest.raises(InvalidInput):
        tokens.check_scopes(scopes)
