"""What the ledger holds, for whoever looks after it: who works on what, what is in doubt, and how a doubt is ended.

A doubt is ended by compare-and-set: only as long as the entry is in doubt under the very version that somebody looked
at, and with who said so and why.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from onceward.core.claim import Entry, Status
from onceward.core.outcome import INLINE_BYTES_MAX, pack, unpack
from onceward.core.text import checked, refused
from onceward.core.verdict import Committed, Final, NotCommitted
from onceward.errors import Conflict, NotFound, OncewardError
from onceward.ledger import Ledger
from onceward.store import PAGE_MAX

COMMITTED, NOT_COMMITTED = "committed", "not_committed"
VERDICTS = (COMMITTED, NOT_COMMITTED)
REASON_BYTES_MAX = 500

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def list_claims(
    ledger: Ledger, scope: str | None, status: str | None, limit: int, *, oldest: bool = False, after: str = ""
) -> dict[str, Any]:
    """At most so many entries, and where the list goes on. The oldest first takes a look at all of them."""
    if oldest:
        found = sorted(await _all(ledger, scope, status), key=lambda entry: (entry.created_at, entry.ref))
        return {"claims": [shown(ledger, entry) for entry in found[:limit]], "next": None}
    page = await ledger.scan(scope, status, after=after, limit=limit)
    entries = list(page.entries)
    # A page may be short, or empty, with more behind it.
    while page.next and len(entries) < limit:
        page = await ledger.scan(scope, status, after=page.next, limit=limit - len(entries))
        entries += page.entries
    return {"claims": [shown(ledger, entry) for entry in entries], "next": page.next}


async def show_claim(ledger: Ledger, scope: str, key: str) -> dict[str, Any]:
    """One entry with what is kept of its outcome."""
    entry = await ledger.read(scope, key)
    if entry is None:
        raise NotFound(f"there is no claim with this key in the scope {scope!r}")
    return {**shown(ledger, entry), "outcome": await _outcome(ledger, entry)}


async def resolve_claim(
    ledger: Ledger, actor: str, *, scope: str, key: str, version: int, verdict: str, value: Any, reason: str
) -> dict[str, Any]:
    """End a doubt: it happened, with this value, or it did not and will not. Gives the entry as it is then."""
    checked("reason", reason, REASON_BYTES_MAX)
    if verdict not in VERDICTS:
        raise refused("verdict", f"is {' or '.join(VERDICTS)}")
    if verdict == NOT_COMMITTED and value is not None:
        raise refused("value", "goes with the verdict committed")
    if verdict == COMMITTED and pack(value, INLINE_BYTES_MAX) is None:
        raise refused("value", f"is larger than {INLINE_BYTES_MAX} bytes")
    before = await ledger.read(scope, key)
    if before is None:
        raise NotFound(f"there is no claim with this key in the scope {scope!r}")
    note = f"{verdict} by {actor}: {reason}"
    said = Committed(value) if verdict == COMMITTED else NotCommitted(_final(reason))
    if not await ledger.resolve(scope, key, version, said, note=note):
        now = await ledger.read(scope, key) or before
        raise Conflict(
            f"the claim is {now.status.value} with version {now.version}; only one in doubt can be resolved, with the"
            " version that it has. Look at it again"
        )
    return await show_claim(ledger, scope, key)


async def purge_claims(ledger: Ledger) -> int:
    """Delete every entry whose retention is over; gives how many."""
    count = 0
    while gone := await ledger.purge():
        count += gone
    return count


def shown(ledger: Ledger, entry: Entry) -> dict[str, Any]:
    """An entry as every answer shows it, without its outcome."""
    return {
        "scope": entry.scope.removeprefix(f"{ledger.namespace}:"),
        "key": entry.key,
        "status": entry.status.value,
        "version": entry.version,
        "attempt": entry.attempt,
        "created_at": _time(entry.created_at),
        "lease_until": _time(entry.lease_until) if entry.status is Status.IN_PROGRESS else None,
        "completed_at": _time(entry.completed_at),
        "expires_at": _time(entry.expires_at),
        "repeatable": entry.repeatable,
        "user_id": entry.user_id or None,
        "endpoint": entry.endpoint or None,
        "note": entry.note or None,
    }


async def _all(ledger: Ledger, scope: str | None, status: str | None) -> list[Entry]:
    entries: list[Entry] = []
    after = ""
    while True:
        page = await ledger.scan(scope, status, after=after, limit=PAGE_MAX)
        entries += page.entries
        if not page.next:
            return entries
        after = page.next


async def _outcome(ledger: Ledger, entry: Entry) -> dict[str, Any] | None:
    if entry.status is not Status.COMPLETED:
        return None
    body = await ledger.body(entry)
    told: dict[str, Any] = {"code": entry.outcome.code, "bytes": None if body is None else len(body)}
    if body is not None and len(body) <= INLINE_BYTES_MAX:
        told["value"] = _value(entry, body)
    return told


def _value(entry: Entry, body: bytes) -> Any:
    """What is kept, as far as JSON can show it: a response by its text, a value as itself."""
    if entry.outcome.code is not None:
        return body.decode("utf-8", "replace")
    try:
        value = unpack(body)
        json.dumps(value)
    except (OncewardError, TypeError, ValueError):
        return body.decode("utf-8", "replace")
    return value


def _final(reason: str) -> Final:
    """A reason may begin with one of the words for why it is final; otherwise the one who says it answers for it."""
    word = reason.partition(":")[0].strip()
    return next((one for one in Final if one.value == word), Final.OPERATOR)


def _time(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
