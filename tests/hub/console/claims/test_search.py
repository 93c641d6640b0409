"""Bounded searches, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from tests.backends import BACKENDS, Servers
from tests.hub.console.sample_claims import begin, doubt, settle

from onceward import open_ledger
from onceward.errors import InvalidInput
from onceward.hub.console.claims.query import ClaimQuery, parse_query
from onceward.hub.console.claims.search import (
    count_doubts,
    find_claims,
    find_doubts,
    find_unfinished,
    near_the_end,
)
from onceward.ledger import Ledger

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture(scope="module", params=["sqlite", "postgres", "redis"])
def shop(
    request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ledger]:
    """A ledger with 30 settled operations and three doubts, in a store that another ledger shares."""
    url = BACKENDS[request.param].url(servers, tmp_path_factory.mktemp("shop"))
    with open_ledger(url, namespace="other") as other, open_ledger(url, namespace="shop") as ledger:
        for number in range(3):
            settle(other, f"other-{number}")
        for number in range(30):
            settle(ledger, f"pay-{number:02}")
        for number in range(3):
            doubt(ledger, f"lost-{number}", note="the bank timed out" if number else "")
        yield ledger


def test_a_small_ledger_is_shown_whole_with_the_newest_first(shop: Ledger) -> None:
    found = run(find_claims(shop, ClaimQuery(), 100))

    assert found.is_sorted
    assert [entry.key for entry in found.entries][:4] == ["lost-2", "lost-1", "lost-0", "pay-29"]
    assert len(found.entries) == 33


def test_a_filter_reads_bounded_pages_and_continues(shop: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.hub.console.claims.search.READ_MAX", 10)
    monkeypatch.setattr("onceward.hub.console.claims.search._FILTERED_PAGE", 5)
    keys: list[str] = []
    after, rounds = "", 0
    while True:
        found = run(find_claims(shop, parse_query("key:pay-* user:charges"), 100, after))
        keys += [entry.key for entry in found.entries]
        after, rounds = found.after, rounds + 1
        assert found.read <= 15
        if not after:
            break

    assert sorted(keys) == [f"pay-{number:02}" for number in range(30)]
    assert rounds > 2


def test_a_status_without_an_index_is_searched_page_by_page(shop: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.hub.console.claims.search.READ_MAX", 10)
    monkeypatch.setattr("onceward.hub.console.claims.search._FILTERED_PAGE", 5)
    found = run(find_claims(shop, parse_query("status:failed"), 100))

    assert (len(found.entries), bool(found.after), found.is_sorted) == (0, True, False)
    assert found.read <= 15


def test_a_whole_key_is_read_directly(shop: Ledger) -> None:
    named = run(find_claims(shop, parse_query("key:pay-07 scope:charges"), 100))
    guessed = run(find_claims(shop, parse_query("key:lost-1"), 100, scopes=["http:user:grace", "http:user:ada"]))
    of_user = run(find_claims(shop, parse_query("key:lost-1 user:ada"), 100))

    assert [(len(one.entries), one.read) for one in (named, guessed, of_user)] == [(1, 1), (1, 2), (1, 1)]
    assert run(find_claims(shop, parse_query("key:no-such-key scope:charges"), 100)).entries == []


def test_a_wrong_cursor_is_refused(shop: Ledger) -> None:
    with pytest.raises(InvalidInput):
        run(find_claims(shop, ClaimQuery(), 10, "====", ()))


def test_doubts_are_found_oldest_first_and_counted(shop: Ledger) -> None:
    assert [entry.key for entry in run(find_doubts(shop, ClaimQuery())).entries] == ["lost-0", "lost-1", "lost-2"]
    assert [entry.key for entry in run(find_doubts(shop, parse_query("timed"))).entries] == ["lost-1", "lost-2"]
    assert run(count_doubts(shop, 99)) == (3, False)
    assert run(count_doubts(shop, 2)) == (2, True)


def test_claims_near_the_end_of_their_lease_are_told_from_others(shop: Ledger) -> None:
    """The last test of this file: it adds claims, which the others do not expect."""
    begin(shop, "quiet")
    claim = begin(shop, "silent")
    shop.blocking.renew(claim, lease_seconds=1.0)
    found = run(find_unfinished(shop))

    assert [entry.key for entry in found.entries] == ["silent", "quiet"]
    assert [entry.key for entry in near_the_end(found)] == ["silent"]
