"""The claim machine: what each write does to one entry. Pure: the store brings the clock and the versions.

    state      begin                              renew    settle, same version       fail / release      abandon   resolve
    absent     -> held; Run                       lost     lost                       nothing to do       refused   nothing to do
    held       Busy; once lapsed or proved dead:  -> held  -> settled                 -> failed / absent  see below refused
               repeatable -> held, Run (new version);
               otherwise  -> in_doubt, InDoubt
    in_doubt   InDoubt                            lost     -> settled (late receipt)  lost                refused   -> settled / failed
    settled    Replay                             lost     lost                       lost                refused   refused
    failed     -> held; Run (attempt + 1)         lost     lost                       lost                refused   refused

A held claim whose holder no longer knows what happened may also give itself up (`doubt`): held -> in_doubt.

Someone other than the holder may `abandon` a held claim. It is refused while the lease runs by the store's clock, so
that a holder that renews at that moment wins. Then: repeatable -> failed; otherwise -> in_doubt. `abandon_dead` is the
same for a holder proved dead, whose lease does not count. A claim that failed so has no `completed_at`; the next begin
finds it as a claim in progress that has lapsed, because its holder may have done something. The background purge abandons each lapsed claim that may not
be repeated, so that its doubt shows before someone asks for the key.

In a store the states are `in_progress`, `completed`, `failed` and `in_doubt`; absent is no row, or a completed or
failed row past its `expires_at`. Release leaves such a row behind: only purge deletes, so that a version can never
be minted below one that was seen before.

Times are whole microseconds since 1970 by the store's clock; spans are microseconds too.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TypeAlias, assert_never

from onceward.core.entry import FINISHED, SECOND, UNFINISHED, Entry, Ref, Status
from onceward.core.outcome import NOTHING, Outcome
from onceward.core.record import record

__all__ = [
    "ABANDONS", "FINISHED", "MOVES", "SECOND", "UNFINISHED", "Answer", "Append", "Begin", "Busy", "Claim", "Entry", "Found",
    "InDoubt", "Mismatch", "Move", "Ref", "Replay", "Status", "Verb", "Write", "apply", "committed", "doubted",
    "found", "mints",
]  # fmt: skip


class Verb(enum.StrEnum):
    RENEW = "renew"
    SETTLE = "settle"
    FAIL = "fail"
    RELEASE = "release"
    DOUBT = "doubt"
    ABANDON = "abandon"
    ABANDON_DEAD = "abandon_dead"
    UPHOLD = "uphold"
    OVERTURN = "overturn"


# Which states each verb accepts (with the right version), and the state it leaves. Resolve is `uphold` or `overturn`.
MOVES: dict[Verb, tuple[frozenset[Status], Status]] = {
    Verb.RENEW: (frozenset({Status.IN_PROGRESS}), Status.IN_PROGRESS),
    Verb.SETTLE: (UNFINISHED, Status.COMPLETED),
    Verb.FAIL: (frozenset({Status.IN_PROGRESS}), Status.FAILED),
    Verb.RELEASE: (frozenset({Status.IN_PROGRESS}), Status.FAILED),
    Verb.DOUBT: (frozenset({Status.IN_PROGRESS}), Status.IN_DOUBT),
    # Or failed, if the claim may be repeated.
    Verb.ABANDON: (frozenset({Status.IN_PROGRESS}), Status.IN_DOUBT),
    Verb.ABANDON_DEAD: (frozenset({Status.IN_PROGRESS}), Status.IN_DOUBT),
    Verb.UPHOLD: (frozenset({Status.IN_DOUBT}), Status.COMPLETED),
    Verb.OVERTURN: (frozenset({Status.IN_DOUBT}), Status.FAILED),
}

ABANDONS = frozenset({Verb.ABANDON, Verb.ABANDON_DEAD})


@record(frozen=True, slots=True)
class Begin:
    """Ask for the key. `dead` names a version whose holder was proved dead; its lease counts as lapsed."""

    scope: str
    key: str
    write_id: str
    fingerprint: str
    holder: str
    repeatable: bool
    lease: int
    retain: int
    user_id: str = ""
    endpoint: str = ""
    dead: int = 0


@record(frozen=True, slots=True)
class Move:
    """Change a claimed entry, guarded by the version its holder was given.

    `retain` is counted from now for what the move finishes; a release has none, so that it reads as absent at once.
    """

    scope: str
    key: str
    write_id: str
    verb: Verb
    version: int
    lease: int = 0
    retain: int = 0
    outcome: Outcome = NOTHING
    note: str = ""


@record(frozen=True, slots=True)
class Append:
    """Add chunks under a held claim. `seq` numbers the first of them, counting from 1."""

    scope: str
    key: str
    write_id: str
    version: int
    seq: int
    chunks: tuple[bytes, ...]


Write: TypeAlias = Begin | Move | Append


@record(frozen=True, slots=True)
class Answer:
    """What became of a write. `entry` is what is there now, whether the write was applied or refused.

    `before` is the status an applied write found (`Entry.found_as`; None: absent). `locked` says that the guard held but another
    transaction has the row locked, so nothing was decided; its holder is alive.
    """

    applied: bool
    entry: Entry | None
    now: int
    before: Status | None = None
    locked: bool = False


def mints(entry: Entry | None, write: Write, now: int) -> bool:
    """Whether applying this write takes a new version."""
    there = None if entry is None or entry.absent(now) else entry
    return isinstance(write, Begin) and not _goes_in_doubt(there, write, now)


def apply(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    """The entry after the write, or None when it is refused. `version` is used only if the write mints one."""
    if entry is not None and entry.absent(now):
        entry = None
    match write:
        case Begin():
            return _begin(entry, write, now, version)
        case Move():
            return _move(entry, write, now)
        case Append():
            return _append(entry, write)
        case _:
            assert_never(write)


def _begin(entry: Entry | None, write: Begin, now: int, version: int) -> Entry | None:
    if entry is None:
        return _held(write, now, version, attempt=1, created_at=now, note="")
    if entry.fingerprint != write.fingerprint:
        return None
    if entry.status is Status.FAILED and not entry.abandoned:
        return _held(write, now, version, entry.attempt + 1, entry.created_at, entry.note)
    if not _may_take(entry, write, now):
        return None
    if _goes_in_doubt(entry, write, now):
        return replace(entry, status=Status.IN_DOUBT, write_id=write.write_id, expires_at=None)
    return _held(write, now, version, entry.attempt + 1, entry.created_at, entry.note)


def _may_take(entry: Entry, write: Begin, now: int) -> bool:
    if entry.status is Status.IN_PROGRESS:
        return entry.lease_until <= now or entry.version == write.dead
    return entry.abandoned


def _goes_in_doubt(entry: Entry | None, write: Begin, now: int) -> bool:
    return entry is not None and _may_take(entry, write, now) and not (entry.repeatable and write.repeatable)


def _held(write: Begin, now: int, version: int, attempt: int, created_at: int, note: str) -> Entry:
    lease_until = now + write.lease
    return Entry(
        write.scope,
        write.key,
        write.fingerprint,
        Status.IN_PROGRESS,
        version,
        attempt,
        write.write_id,
        write.holder,
        write.repeatable,
        lease_until,
        lease_until + write.retain if write.repeatable else None,
        created_at,
        None,
        write.user_id,
        write.endpoint,
        note,
        NOTHING,
        now,
    )


def _move(entry: Entry | None, write: Move, now: int) -> Entry | None:
    accepted, status = MOVES[write.verb]
    if entry is None or entry.version != write.version or entry.status not in accepted:
        return None
    match status:
        case Status.IN_PROGRESS:
            lease_until = now + write.lease
            expires_at = lease_until + write.retain if entry.repeatable else None
            return _changed(
                entry, write, status, lease_until, expires_at, entry.completed_at, entry.note, entry.outcome
            )
        case Status.IN_DOUBT:
            if write.verb is not Verb.DOUBT:
                return _abandon(entry, write, now)
            return _changed(entry, write, status, entry.lease_until, None, None, write.note, entry.outcome)
        case Status.COMPLETED | Status.FAILED:
            expires_at = now + write.retain
            return _changed(entry, write, status, entry.lease_until, expires_at, now, write.note, write.outcome)
        case _:
            assert_never(status)


def _abandon(entry: Entry, write: Move, now: int) -> Entry | None:
    """End a claim for its holder. Without a note of its own, the one of the entry stays, as with a `begin`."""
    if write.verb is Verb.ABANDON and entry.lease_until > now:
        return None
    note = write.note or entry.note
    if entry.repeatable:
        # Without the time of its end: its holder never said how it ended, and the next attempt has to know that.
        return _changed(entry, write, Status.FAILED, entry.lease_until, now + write.retain, None, note, NOTHING)
    return _changed(entry, write, Status.IN_DOUBT, entry.lease_until, None, None, note, entry.outcome)


def _changed(
    entry: Entry,
    write: Write,
    status: Status,
    lease_until: int,
    expires_at: int | None,
    completed_at: int | None,
    note: str,
    outcome: Outcome,
) -> Entry:
    """As `dataclasses.replace`, which costs several times as much on the busiest path there is."""
    return Entry(
        entry.scope,
        entry.key,
        entry.fingerprint,
        status,
        entry.version,
        entry.attempt,
        write.write_id,
        entry.holder,
        entry.repeatable,
        lease_until,
        expires_at,
        entry.created_at,
        completed_at,
        entry.user_id,
        entry.endpoint,
        note,
        outcome,
        entry.claimed_at,
    )


def _append(entry: Entry | None, write: Append) -> Entry | None:
    if entry is None or entry.status is not Status.IN_PROGRESS or entry.version != write.version:
        return None
    if entry.outcome.chunks + 1 != write.seq:
        return None
    outcome = replace(entry.outcome, chunks=entry.outcome.chunks + len(write.chunks))
    return replace(entry, write_id=write.write_id, outcome=outcome)


# What a `begin` found, as values. Every caller handles all five.


@record(frozen=True, slots=True)
class Claim:
    """The key is yours: run the effect, then settle with this version."""

    entry: Entry
    before: Status | None

    @property
    def version(self) -> int:
        return self.entry.version

    @property
    def attempt(self) -> int:
        return self.entry.attempt

    @property
    def took_over(self) -> bool:
        """An earlier attempt may have done something: its holder vanished without a word."""
        return self.before is Status.IN_PROGRESS


@record(frozen=True, slots=True)
class Replay:
    """It has happened already; `entry.outcome` is what everyone gets."""

    entry: Entry


@record(frozen=True, slots=True)
class Busy:
    """Someone else holds the key. `retry_after` is the span until the lease lapses, if nobody renews it."""

    entry: Entry
    retry_after: int
    locked: bool = False


@record(frozen=True, slots=True)
class Mismatch:
    """The key belongs to another call."""

    entry: Entry


@record(frozen=True, slots=True)
class InDoubt:
    """It may have happened, and it may not be repeated."""

    entry: Entry


Found: TypeAlias = Claim | Replay | Busy | Mismatch | InDoubt


def found(write: Begin, answer: Answer) -> Found:
    """What the answer to a `begin` means. A refused answer that shows our own write id is our own earlier commit."""
    entry = answer.entry
    if entry is None:
        raise AssertionError("a store answered a begin without an entry")
    if entry.status is Status.IN_PROGRESS and entry.write_id == write.write_id:
        # Without the first answer nobody knows what was there before; a later attempt must assume a takeover.
        before = answer.before if answer.applied else (Status.IN_PROGRESS if entry.attempt > 1 else None)
        return Claim(entry, before)
    if entry.absent(answer.now):
        return Busy(entry, 0, locked=True)
    if entry.fingerprint != write.fingerprint:
        return Mismatch(entry)
    match entry.status:
        case Status.IN_PROGRESS:
            return Busy(entry, max(0, entry.lease_until - answer.now), answer.locked)
        case Status.IN_DOUBT:
            return InDoubt(entry)
        case Status.COMPLETED:
            return Replay(entry)
        case Status.FAILED:
            return Busy(entry, 0, locked=True)
        case _:
            assert_never(entry.status)


def doubted(write: Write, answer: Answer) -> bool:
    """Whether it was this write that put the entry in doubt: now, or by an earlier try whose answer was lost."""
    entry = answer.entry
    return entry is not None and entry.status is Status.IN_DOUBT and entry.write_id == write.write_id


def committed(write: Move | Append, answer: Answer) -> bool:
    """Whether the write is in the entry: now, or by an earlier try whose answer was lost."""
    if answer.applied:
        return True
    entry = answer.entry
    if entry is None or entry.version != write.version:
        return False
    if entry.write_id == write.write_id:
        return True
    # A renewal may have come after an append whose answer was lost; only the holder appends, so the count tells.
    return isinstance(write, Append) and entry.outcome.chunks == write.seq - 1 + len(write.chunks)
