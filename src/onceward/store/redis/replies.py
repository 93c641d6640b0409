"""Decoding of the script's replies as entries and results, in the layout of `commit.lua`."""

from __future__ import annotations

import json
from typing import cast

from onceward.core.claim import ABANDONS, FINISHED, Begin, Entry, Move, Status, Write, WriteResult, apply
from onceward.core.outcome import Outcome
from onceward.errors import StoreUnavailable

# The words of a reply: those of the entry, whether the write was applied, the earlier status and the time.
_WORDS = 25


def to_result(write: Write, reply: object, cached: Entry | None) -> WriteResult:
    if not cast("bytes", reply).startswith(b"["):
        return _brief(write, cast("bytes", reply), cached)
    head, body = split(reply)
    applied = bool(head[22])
    # If a move finished the entry, the outcome is the one that was sent. An abandoned claim has none.
    ends = applied and isinstance(write, Move) and head[1] in FINISHED and write.verb not in ABANDONS
    sent = write.outcome if ends and isinstance(write, Move) else None
    before = Status(head[23]) if head[23] else None
    return WriteResult(applied, to_entry(write.scope, write.key, head, body, sent), int(head[24]), before)


def _brief(write: Write, reply: bytes, cached: Entry | None) -> WriteResult:
    """Decode the short reply to an applied write: the time, and the version or the earlier status."""
    time, _, word = reply.partition(b" ")
    now = int(time)
    if isinstance(write, Begin):
        entry, before = apply(None, write, now, int(word)), None
    else:
        entry, before = apply(cached, write, now, 0), Status(word.decode())
    if entry is None:
        raise StoreUnavailable("the Redis store returned an incomplete result")
    return WriteResult(True, entry, now, before)


def split(reply: object) -> tuple[list[str], bytes | None]:
    """Split a reply into its words and the body of the outcome. Raises `StoreUnavailable` if it is malformed."""
    text, has_body, body = cast("bytes", reply).partition(b"\n")
    try:
        head = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise _unreadable() from error
    if not isinstance(head, list) or len(head) != _WORDS:
        raise _unreadable()
    return head, body if has_body else None


def _unreadable() -> StoreUnavailable:
    return StoreUnavailable(
        "the Redis store returned an entry that cannot be read; check whether another program writes to its keys"
    )


def to_entry(scope: str, key: str, head: list[str], body: bytes | None, outcome: Outcome | None = None) -> Entry | None:
    """Decode the entry in a reply, or None if there is none. Raises `StoreUnavailable` if it is malformed."""
    try:
        return _to_entry(scope, key, head, body, outcome)
    except (ValueError, TypeError, OverflowError) as error:
        raise _unreadable() from error


def _to_entry(scope: str, key: str, head: list[str], body: bytes | None, outcome: Outcome | None) -> Entry | None:
    (fingerprint, status, version, attempt, write_id, holder, repeatable, lease_until, expires_at) = head[:9]
    (created_at, completed_at, user_id, endpoint, note, code, headers, chunks, claimed_at) = head[9:18]
    recovery_point, recovery_seq, refuse_until, not_done_count = head[18:22]
    if not status:
        return None
    if outcome is None:
        headers_or_none = headers if isinstance(headers, str) else None
        outcome = Outcome(int(code) if code else None, headers_or_none, body, int(chunks))
    return Entry(
        scope=scope,
        key=key,
        fingerprint=fingerprint,
        status=Status(status),
        version=int(version),
        attempt=int(attempt),
        write_id=write_id,
        holder=holder,
        repeatable=repeatable == "1",
        lease_until=int(lease_until),
        expires_at=int(expires_at) if expires_at else None,
        created_at=int(created_at),
        completed_at=int(completed_at) if completed_at else None,
        user_id=user_id,
        endpoint=endpoint,
        note=note,
        outcome=outcome,
        claimed_at=int(claimed_at or created_at),
        recovery=recovery_point if isinstance(recovery_point, str) else None,
        recovery_seq=int(recovery_seq),
        refuse_until=int(refuse_until) if refuse_until else None,
        key_basis=int(not_done_count),
    )
