"""Scans and reads: pages, filters, and unusual keys."""

# ruff: noqa: S101  # These are tests.

from __future__ import annotations

import unicodedata

import pytest

from onceward.core.claim import Entry, Ref, Status, Verb
from onceward.core.key import KEY_BYTES_MAX, SCOPE_BYTES_MAX
from onceward.store import PAGE_MAX, Store
from onceward.testing.caller import RETAIN_SECONDS, SCOPE, Caller, begin, entry_of, move, versions_of
from onceward.testing.clock import PinnedClock

# No two of these keys are equal, and a store returns each of them unchanged.
ODD_KEYS = [
    " ", "  ", "a", "A", "a ", " a", "a\t", "a\n", "\r\n", "a:b", "a:b:c", ":", "::", "a/b", "a%b", "a_b", "a?b", "a*",
    "[a]", "{a}", "{", "}", "a{b}c", "'", "''", '"', "\\", "\\\\", "\\n", "--", ";", "$1", "%s", "%(a)s", "null", "None",
    "0", "00", "1", "-1", "1.0", "1e3", "NaN", "true", "é", unicodedata.normalize("NFD", "é"), "É", "ß", "ss", "\N{LATIN SMALL LETTER DOTLESS I}", "i",
    "İ", "Å", "\N{ANGSTROM SIGN}", "ﬁ", "fi", "字", "\N{ZERO WIDTH SPACE}a", "a\u00ad", "\u202ea", "\ufeffa",
    "\N{GRINNING FACE}", "\N{GRINNING FACE}\ufe0f", "\U0010ffff", "\ue000", "\x01", "\x7f", "\x80", "\x1f",
    "k" * KEY_BYTES_MAX, "K" * KEY_BYTES_MAX, "k" * (KEY_BYTES_MAX - 1), "\N{GRINNING FACE}" * (KEY_BYTES_MAX // 4),
]  # fmt: skip

# Pairs of scope and key. Some of them become the same text if a store joins scope and key without escaping.
ALIKE = [("a", "b:c"), ("a:b", "c"), ("a:b:c", "d"), ("a", "b:c:d"), ("a ", "b"), ("a", " b"), ("ab", "c"), ("a", "bc")]


class PageRules:
    def test_every_key_is_read_back_unchanged_and_stays_distinct(self, caller: Caller) -> None:
        """Rule 1."""
        results = caller.commit(*(begin(key) for key in ODD_KEYS))

        assert all(result.applied for result in results)
        assert sorted(entry.key for entry in caller.scan(limit=7)) == sorted(ODD_KEYS)
        for key in ODD_KEYS:
            there = caller.read(key)
            assert there is not None
            assert there.key == key

    def test_scope_and_key_are_never_confused(self, caller: Caller) -> None:
        """Rule 1."""
        results = caller.commit(*(begin(key, scope=scope) for scope, key in ALIKE))

        assert all(result.applied for result in results)
        assert sorted(entry.ref for entry in caller.scan(None)) == sorted(ALIKE)
        for scope in {scope for scope, _ in ALIKE}:
            assert sorted(entry.ref for entry in caller.scan(scope)) == sorted(ref for ref in ALIKE if ref[0] == scope)

    def test_the_longest_scope_and_key_work_in_every_method(self, caller: Caller) -> None:
        """Rule 7."""
        scope, key = "s" * SCOPE_BYTES_MAX, "é" * (KEY_BYTES_MAX // 2)
        version = entry_of(caller.one(begin(key, scope)), applied=True).version

        caller.one(move(Verb.SETTLE, version, key, scope))

        assert [entry.ref for entry in caller.scan(scope, limit=1)] == [(scope, key)]

    def test_a_read_returns_entries_in_the_order_of_its_keys(self, caller: Caller) -> None:
        """Rule 3."""
        caller.commit(*(begin(f"key-{number}") for number in range(5)))
        refs = [Ref(SCOPE, key) for key in ("key-3", "nothing", "key-0", "key-3", "key-4")]

        entries = caller.store.read(refs).entries

        assert [entry and entry.key for entry in entries] == ["key-3", None, "key-0", "key-3", "key-4"]
        assert caller.store.read([]).entries == ()

    def test_many_entries_are_read_at_once(self, caller: Caller) -> None:
        """Rule 7."""
        caller.commit(*(begin(f"key-{number}") for number in range(PAGE_MAX)))

        entries = caller.store.read([Ref(SCOPE, f"key-{number}") for number in range(PAGE_MAX)]).entries

        assert [entry and entry.key for entry in entries] == [f"key-{number}" for number in range(PAGE_MAX)]

    @pytest.mark.parametrize("limit", [1, 2, 3, 11, 12, 13, PAGE_MAX])
    def test_a_scan_shows_every_entry_once_with_any_page_size(self, limit: int, caller: Caller) -> None:
        """Rule 7."""
        results = caller.commit(*(begin(f"key-{number}", scope=f"scope-{number % 3}") for number in range(12)))
        entries = [entry_of(result, applied=True) for result in results]

        assert by_ref(caller.scan(None, limit=limit)) == by_ref(entries)
        assert by_ref(caller.scan("scope-1", limit=limit)) == by_ref(entries[1::3])

    def test_a_scan_continues_over_several_pages(self, caller: Caller) -> None:
        """Rule 7."""
        keys = [f"key-{number}" for number in range(PAGE_MAX + 5)]
        caller.commit(*(begin(key) for key in keys[:PAGE_MAX]))
        caller.commit(*(begin(key) for key in keys[PAGE_MAX:]))

        assert sorted(entry.key for entry in caller.scan(None, limit=PAGE_MAX)) == sorted(keys)

    @pytest.mark.parametrize("status", Status)
    def test_a_scan_is_filtered_by_status_and_scope(self, status: Status, caller: Caller) -> None:
        """Rule 7."""
        verbs = {Status.COMPLETED: Verb.SETTLE, Status.FAILED: Verb.FAIL, Status.IN_DOUBT: Verb.DOUBT}
        for scope in ("one", "two"):
            keys = [f"{wanted}-{number}" for wanted in Status for number in range(3)]
            versions = versions_of(caller.commit(*(begin(key, scope=scope) for key in keys)))
            caller.commit(
                *(
                    move(verbs[Status(key.split("-")[0])], version, key, scope)
                    for key, version in zip(keys, versions, strict=True)
                    if not key.startswith(Status.IN_PROGRESS)
                )
            )
        mine = [f"{status}-{number}" for number in range(3)]

        assert sorted(entry.key for entry in caller.scan("one", status, limit=2)) == mine
        assert sorted(entry.ref for entry in caller.scan(None, status, limit=2)) == [
            (scope, key) for scope in ("one", "two") for key in mine
        ]
        assert caller.scan("three", status) == []

    def test_a_scan_shows_expired_entries_until_they_are_purged(self, caller: Caller, clock: PinnedClock) -> None:
        """Rule 6."""
        settled = entry_of(caller.move(Verb.SETTLE, caller.hold().version), applied=True)
        clock.advance(RETAIN_SECONDS)

        assert caller.scan() == [settled]
        assert caller.scan(status=Status.COMPLETED) == [settled]
        caller.store.purge(1)
        assert caller.scan() == []
        assert caller.scan(status=Status.COMPLETED) == []

    @pytest.mark.parametrize("others", ["come", "go"])
    def test_a_scan_shows_a_lasting_entry_exactly_once_while_others_come_and_go(
        self, others: str, caller: Caller
    ) -> None:
        """Rule 7."""
        steady = [f"steady-{number}" for number in range(20)]
        fleeting = [f"fleeting-{number}" for number in range(10)]
        caller.commit(*(begin(key) for key in steady))
        versions = versions_of(caller.commit(*(begin(key) for key in fleeting))) if others == "go" else []
        seen: list[str] = []
        page = caller.store.scan(SCOPE, None, "", 3)
        while True:
            seen += [entry.key for entry in page.entries]
            if not page.next:
                break
            if versions:
                caller.move(Verb.RELEASE, versions.pop(0), fleeting.pop(0))
                caller.store.purge(10)
            elif fleeting:
                caller.hold(fleeting.pop(0))
            page = caller.store.scan(SCOPE, None, page.next, 3)

        assert sorted(key for key in seen if key.startswith("steady")) == sorted(steady)
        assert len(seen) == len(set(seen))

    def test_an_entry_is_found_by_its_new_status_after_a_change(self, caller: Caller) -> None:
        """Rule 1."""
        version = caller.hold().version
        caller.move(Verb.DOUBT, version)
        assert (len(caller.scan(status=Status.IN_PROGRESS)), len(caller.scan(status=Status.IN_DOUBT))) == (0, 1)

        caller.move(Verb.OVERTURN, version)
        assert (len(caller.scan(status=Status.IN_DOUBT)), len(caller.scan(status=Status.FAILED))) == (0, 1)

        caller.hold()
        assert (len(caller.scan(status=Status.FAILED)), len(caller.scan(status=Status.IN_PROGRESS))) == (0, 1)

    def test_an_empty_store_has_one_empty_page(self, store: Store) -> None:
        """Rule 7."""
        caller = Caller(store)

        assert caller.scan(None) == []
        assert caller.scan("anything", Status.IN_DOUBT) == []


def by_ref(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.ref)
