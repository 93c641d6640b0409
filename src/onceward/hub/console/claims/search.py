"""Bounded searches in a ledger: a page never reads more than a few pages of the store, however large the ledger is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from onceward.core.claim import SECOND, UNFINISHED, Entry, Ref, Status
from onceward.errors import InvalidOption
from onceward.hub.claims.claims import from_cursor, to_cursor
from onceward.hub.console.claims.query import ClaimQuery
from onceward.hub.db.page import not_a_cursor
from onceward.ledger.internals import dispatcher_of
from onceward.ledger.ledger import Ledger
from onceward.store import PAGE_MAX

# Entries that one request reads at most. A filter that matches nothing still answers within a fraction of a second.
READ_MAX = 5000
# Doubts are few, and their list begins with the oldest: all of them are read, up to here.
DOUBTS_MAX = 2000
# A claim whose lease ends within this time was not renewed as it should be.
NEAR_SECONDS = 5
# With a filter that the store does not know, this many entries are read at a time.
_FILTERED_PAGE = 100


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Entries that match, and how far the search has come.

    Attributes:
        entries: The entries.
        now: The time of the store's clock.
        after: The cursor with which the search continues, or an empty text if it is complete.
        read: The number of entries that were read.
        is_sorted: Whether the entries are all that match, sorted by age.
    """

    entries: Sequence[Entry]
    now: int
    after: str = ""
    read: int = 0
    is_sorted: bool = True


@dataclass(slots=True)
class _Collected:
    entries: list[Entry] = field(default_factory=list)
    after: str = ""
    read: int = 0


async def find_claims(
    ledger: Ledger, query: ClaimQuery, limit: int, after: str = "", scopes: Iterable[str] = ()
) -> SearchResult:
    """Return entries that match a filter, the newest first if all of them were read.

    Args:
        ledger: The ledger.
        query: The filter.
        limit: The most entries to return.
        after: The cursor of an earlier result.
        scopes: Scopes in which to look for a whole key, if the filter does not name one.

    Returns:
        The entries. If there are more than could be read, they are in the order of the store.

    Raises:
        InvalidInput: The cursor is not valid.
        StoreUnavailable: The store did not respond.
    """
    if query.exact_key and not after:
        found = await _read_key(ledger, query, scopes)
        if found.entries or query.exact_scope:
            return found
    position = from_cursor(after)
    # A small ledger is read as a whole, so that the newest can be first.
    first = PAGE_MAX if _is_plain(query) and not after else limit
    collected = await _collect(ledger, query, first, position, READ_MAX)
    if collected.after and first > limit:
        collected = await _collect(ledger, query, limit, position, READ_MAX)
    now = await _now(ledger)
    if collected.after or after:
        return SearchResult(collected.entries, now, to_cursor(collected.after) or "", collected.read, is_sorted=False)
    return SearchResult(sorted(collected.entries, key=_newest)[:limit], now, "", collected.read)


async def find_doubts(ledger: Ledger, query: ClaimQuery) -> SearchResult:
    """Return the claims in doubt that match a filter, the oldest first.

    `after` is set if there are more than `DOUBTS_MAX`: then these are the oldest of those that were read.
    """
    collected = await _collect(ledger, replace(query, status=Status.IN_DOUBT.value), DOUBTS_MAX, "", DOUBTS_MAX)
    entries = sorted(collected.entries, key=lambda one: (one.claimed_at or one.created_at, one.scope, one.key))
    return SearchResult(entries, await _now(ledger), collected.after, collected.read)


async def count_doubts(ledger: Ledger, at_most: int) -> tuple[int, bool]:
    """Count the claims in doubt, and return whether there are more than were counted."""
    collected = await _collect(ledger, ClaimQuery(status=Status.IN_DOUBT.value), at_most, "", READ_MAX)
    return len(collected.entries), bool(collected.after)


async def find_unfinished(ledger: Ledger) -> SearchResult:
    """Return the claims in progress, those whose lease ends first at the beginning."""
    collected = await _collect(ledger, ClaimQuery(status=Status.IN_PROGRESS.value), READ_MAX, "", READ_MAX)
    entries = sorted(collected.entries, key=lambda one: one.lease_until)
    return SearchResult(entries, await _now(ledger), collected.after, collected.read)


def near_the_end(found: SearchResult) -> list[Entry]:
    """Return the claims whose lease has lapsed or is about to."""
    return [entry for entry in found.entries if entry.lease_until - found.now <= NEAR_SECONDS * SECOND]


async def _read_key(ledger: Ledger, query: ClaimQuery, scopes: Iterable[str]) -> SearchResult:
    """Read a key directly: in its scope, in the scope of its user, or in those that are known."""
    wanted = [query.exact_scope] if query.exact_scope else [f"http:user:{query.user}"] if query.user else [*scopes]
    refs = [Ref(f"{ledger.namespace}:{scope}", query.exact_key) for scope in wanted[:PAGE_MAX]]
    reading = await dispatcher_of(ledger).read(refs)
    found = [
        entry
        for entry in reading.entries
        if entry is not None and not entry.absent(reading.now) and query.matches(entry, ledger.namespace, reading.now)
    ]
    return SearchResult(sorted(found, key=_newest), reading.now, "", len(refs))


async def _collect(ledger: Ledger, query: ClaimQuery, limit: int, after: str, read_max: int) -> _Collected:
    """Read entries page by page until `limit` of them match, or `read_max` were read. The last page is used whole."""
    collected = _Collected(after=after)
    now = await _now(ledger)
    status = query.status if query.status in UNFINISHED else None
    page_max = min(PAGE_MAX, limit) if _is_plain(query) else _FILTERED_PAGE
    while collected.read < read_max and len(collected.entries) < limit:
        size = min(page_max, limit - len(collected.entries)) if _is_plain(query) else page_max
        try:
            page = await ledger.scan(query.exact_scope or None, status, after=collected.after, limit=size)
        except InvalidOption:
            raise not_a_cursor() from None
        collected.entries += (
            entry for entry in page.entries if not entry.absent(now) and query.matches(entry, ledger.namespace, now)
        )
        collected.after = page.next
        if not page.next:
            break
        # A page may be empty although more follow, where several namespaces share a store.
        collected.read += max(len(page.entries), 1)
    return collected


def _is_plain(query: ClaimQuery) -> bool:
    """Return whether the store itself selects what the filter wants, through an index.

    Only unfinished entries have one. For any other status a store would read the whole ledger, and its callers would wait.
    """
    indexed = not query.status or query.status in UNFINISHED
    return (
        indexed and not (query.key or query.endpoint or query.user or query.words) and query.scope == query.exact_scope
    )


def _newest(entry: Entry) -> tuple[int, str, str]:
    return -entry.created_at, entry.scope, entry.key


async def _now(ledger: Ledger) -> int:
    return (await dispatcher_of(ledger).read([])).now
