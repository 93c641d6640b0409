"""The claim state machine: the effect of each write on one entry.

THEORY OF OPERATION

A key stands for one piece of work. The store has at most one entry for each key, and an entry is in one of five states:

    absent      The key was never claimed, its claim was released, or its retention is over.
    held        A process has the claim and may be running the effect. Stored as `in_progress`.
    in_doubt    The effect may or may not have happened, and it must not be repeated. Only a verdict, or the result
                of the holder itself, ends this state.
    settled     The effect happened, and its outcome is recorded. Stored as `completed`. Every caller gets a replay.
    failed      An attempt ended, and the effect may be attempted again.

Every change is one write: a `Begin`, a `Move` (its verb says which) or an `Append`. This module is pure. `apply` takes
the entry, the write and the time, and returns the new entry, or None if the entry refuses the write. A store does the
rest: it supplies the clock and new versions, and makes compare and change one atomic step. The SQL and Lua of the
stores implement the same table, and tests compare them with `apply`.

              begin                        settle
    absent ----------> held ----------------------------------> settled
                       ^  |                                        ^
                       |  |-- doubt ----------------> in_doubt ----'
                       |  |   abandon, begin (1)          |   settle (late receipt),
           begin:      |  |                               |   uphold
           attempt + 1,|  |                               | overturn
           new version |  |                               v
                       |  '-- fail -----------------> failed
                       |      abandon (2)                 |
                       '----------------------------------'

    (1) once lapsed or proved dead, not repeatable      (2) once lapsed or proved dead, repeatable

    Not drawn: `renew` and `append` leave a claim held. A begin that finds (2) takes over: held -> held under a new
    version. `release` makes a held claim absent. Settled and failed entries become absent when their retention is over.

Permissions. Anyone may begin. Only the holder renews, appends, settles, fails, releases or doubts its claim, with one
exception: `Ledger.abandon` with `force` is a `doubt` by an operator. Anyone may abandon a claim whose lease has lapsed
or whose holder is proved dead. An operator or a reconcile hook resolves a doubt: `uphold` for "committed", `overturn`
for "not committed".

Versions are fencing tokens. Every begin that gets the claim takes a new version, and the versions of one key only
increase, even across release, expiry and purge. Each move and append names the version of its claim, and an entry with
any other version refuses it. So a holder that was suspended while another one took over cannot change anything any
more: its writes are refused, and their results show that the claim is lost. An effect can pass its version to another
system, which then refuses older ones.

Leases decide when a silent holder may be replaced. `lease_until` is a time of the store's clock, which is the only one
that counts. While the effect runs, its process renews the claim. A lapsed claim stays held until someone takes it over
or abandons it, so a late renewal or settle still succeeds if it comes first. A holder proved dead need not be waited
for: `Begin.dead` and `abandon_dead` name the version that it held, and its lease then counts as lapsed.

Takeover depends on what repeating the effect would do. If the entry and the new begin both say "repeatable", the begin
gets the claim under a new version, with `before` = in progress, so that the caller knows that something may have been
done. Otherwise the begin moves the entry to in_doubt and takes no new version. The version stays that of the silent
holder, so its settle is still accepted, as a late receipt. It is better evidence than any guess.

Abandon ends a claim without claiming the key. The lease is checked inside the write, so a holder that renews at the
same time wins. A claim that is not repeatable goes in doubt. The background purge does that to every such claim that
has lapsed, so that the doubt is visible before someone asks for the key. A repeatable claim becomes failed, but without
`completed_at`: the next begin treats it like a lapsed claim, because its holder may have done something.

Write ids make it safe to send a write again. An entry stores the id of the last write that it accepted. If the result
of a write was lost, the caller sends the same write again. If the first one was applied, the entry refuses the second
one (except a renewal, which may be applied twice) but shows the write's own id: `found`, `committed` and `doubted`
recognise that as success.

Deletion belongs to purge alone. In a store, absent means no row, or a completed or failed row past its `expires_at`.
Release leaves such a row behind. Only purge deletes rows, so that a new version is never below one that was seen.

GUIDE TO THE TABLE

Rows are writes and columns are states. A cell is the new state, or what the caller gets if the write is refused. "lost"
is a refusal that tells a holder that it no longer has the claim. Moves and appends name a version, and the cells assume
that it is the entry's; otherwise the write is refused. An append must also continue the chunks without a gap. A begin
with another fingerprint gets `Mismatch` in every state but absent. In the code, `_begin`, `_may_take` and
`_goes_in_doubt` are the first row, `_append` is the third, and `MOVES` has the others.

    write          absent         held                             in_doubt       settled    failed
    begin          held; Claim    Busy; (a) if lapsed or dead      InDoubt        Replay     held; Claim (b)
    renew          lost           held                             lost           lost       lost
    append         lost           held                             lost           lost       lost
    settle         lost           settled                          settled        lost       lost
    fail           lost           failed                           lost           lost       lost
    release        lost           absent                           lost           lost       lost
    doubt          lost           in_doubt                         lost           lost       lost
    abandon        refused        refused; (c) if lapsed           refused        refused    refused
    abandon_dead   refused        (c)                              refused        refused    refused
    uphold         refused        refused                          settled        refused    refused
    overturn       refused        refused                          failed         refused    refused

    (a) If both are repeatable: held, with a new version and attempt + 1; Claim. Otherwise: in_doubt; InDoubt.
    (b) With attempt + 1 and a new version. An abandoned entry instead follows (a).
    (c) If the claim is repeatable: failed, without `completed_at`. Otherwise: in_doubt.

Times are whole microseconds since 1970 by the store's clock. Durations are microseconds too.
"""

from __future__ import annotations

import enum
from dataclasses import field, replace
from typing import TypeAlias, assert_never

from onceward.core.entry import FINISHED, SECOND, UNFINISHED, Entry, Ref, Status
from onceward.core.outcome import NOTHING, Outcome
from onceward.core.record import record

__all__ = [
    "ABANDONS", "CHECK_STATUS", "FINISHED", "MOVES", "SECOND", "UNFINISHED", "Append", "Begin", "Busy", "Claim", "Entry", "Found",
    "InDoubt", "Mismatch", "Move", "Ref", "Replay", "Status", "Verb", "Write", "WriteResult", "apply", "committed", "doubted",
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


# The states that each verb accepts (with the right version), and the new state. Resolve is `uphold` or `overturn`.
MOVES: dict[Verb, tuple[frozenset[Status], Status]] = {
    Verb.RENEW: (frozenset({Status.IN_PROGRESS}), Status.IN_PROGRESS),
    Verb.SETTLE: (UNFINISHED, Status.COMPLETED),
    Verb.FAIL: (frozenset({Status.IN_PROGRESS}), Status.FAILED),
    Verb.RELEASE: (frozenset({Status.IN_PROGRESS}), Status.FAILED),
    Verb.DOUBT: (frozenset({Status.IN_PROGRESS}), Status.IN_DOUBT),
    # Or failed, if the claim is repeatable.
    Verb.ABANDON: (frozenset({Status.IN_PROGRESS}), Status.IN_DOUBT),
    Verb.ABANDON_DEAD: (frozenset({Status.IN_PROGRESS}), Status.IN_DOUBT),
    Verb.UPHOLD: (frozenset({Status.IN_DOUBT}), Status.COMPLETED),
    Verb.OVERTURN: (frozenset({Status.IN_DOUBT}), Status.FAILED),
}

ABANDONS = frozenset({Verb.ABANDON, Verb.ABANDON_DEAD})


@record(frozen=True, slots=True)
class Begin:
    """A request for the key. `dead` is a version whose holder was proved dead: its lease counts as lapsed."""

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
    """A change of a claimed entry, guarded by the version that its holder was given.

    When the move finishes an entry, `retain` counts from now. A release has no retention, so the entry reads as absent
    at once.
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
    """Chunks to add under a held claim. `seq` is the number of the first of them, counting from 1."""

    scope: str
    key: str
    write_id: str
    version: int
    seq: int
    chunks: tuple[bytes, ...]


Write: TypeAlias = Begin | Move | Append


@record(frozen=True, slots=True)
class WriteResult:
    """The result of one write.

    Attributes:
        applied: Whether the write was applied. Otherwise it was refused.
        entry: The current entry, after the write or as it refused the write.
        now: The time of the store's clock at which the write was decided.
        before: The status that an applied write found (see `Entry.found_as`), or None for absent.
        locked: Whether the entry would accept the write, but another transaction has locked the row. Nothing was
            decided then, and the holder is alive.
    """

    applied: bool
    entry: Entry | None
    now: int
    before: Status | None = None
    locked: bool = False


# The name of `WriteResult` in 0.1, for stores written by users.
Answer = WriteResult


def mints(entry: Entry | None, write: Write, now: int) -> bool:
    """Return whether applying this write takes a new version."""
    present = None if entry is None or entry.absent(now) else entry
    return isinstance(write, Begin) and not _goes_in_doubt(present, write, now)


def apply(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
    """Return the entry after the write, or None if it is refused. `version` is for a write that takes a new one."""
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
    """End a claim in place of its holder. If the write has no note, the entry keeps its own, as with a `begin`."""
    if write.verb is Verb.ABANDON and entry.lease_until > now:
        return None
    note = write.note or entry.note
    if entry.repeatable:
        # Without `completed_at`: the holder never reported how it ended, and the next attempt has to know that.
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
    """Copy an entry with changes. `dataclasses.replace` is several times slower, and this is the busiest path."""
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


# The five results of a `begin`. Every caller handles all of them.


@record(frozen=True, slots=True)
class Claim:
    """The caller has the claim: run the effect, then settle with this version.

    Attributes:
        entry: The entry as claimed.
        before: The status that the begin found, or None for absent.
    """

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
        """True if an earlier holder disappeared without a result, so its attempt may have done something."""
        return self.before is Status.IN_PROGRESS


@record(frozen=True, slots=True)
class Replay:
    """The effect has already happened. Every caller gets the recorded `entry.outcome`.

    Attributes:
        entry: The settled entry.
    """

    entry: Entry


@record(frozen=True, slots=True)
class Busy:
    """Another caller holds the key.

    Attributes:
        entry: The held entry.
        retry_after: The microseconds until the lease lapses, unless it is renewed.
        locked: Whether another transaction has locked the entry, so that nothing was decided. Try again shortly.
    """

    entry: Entry
    retry_after: int
    locked: bool = False


@record(frozen=True, slots=True)
class Mismatch:
    """The key was used with another fingerprint, so it belongs to another call.

    Attributes:
        entry: The entry of that call.
    """

    entry: Entry


@record(frozen=True, slots=True)
class InDoubt:
    """The effect may have happened, and it must not be repeated.

    Attributes:
        entry: The entry in doubt.
        now: The time of the store's clock at which the doubt was found, or 0.
    """

    entry: Entry
    now: int = field(default=0, compare=False)


Found: TypeAlias = Claim | Replay | Busy | Mismatch | InDoubt

# The names of these results in metrics, logs and `IdempotencyStatus`.
CHECK_STATUS: dict[type[Found], str] = {
    Claim: "processing_started",
    Busy: "duplicate_processing",
    Replay: "duplicate_completed",
    Mismatch: "fingerprint_mismatch",
    InDoubt: "in_doubt",
}


def found(write: Begin, result: WriteResult) -> Found:
    """Interpret the result of a `begin`. A refusal that shows this write's own id is an earlier commit of it."""
    entry = result.entry
    if entry is None:
        raise AssertionError("the store returned no entry for a begin")
    if entry.status is Status.IN_PROGRESS and entry.write_id == write.write_id:
        # The first result is lost, so the earlier status is unknown. An attempt after the first must assume a takeover.
        before = result.before if result.applied else (Status.IN_PROGRESS if entry.attempt > 1 else None)
        return Claim(entry, before)
    if entry.absent(result.now):
        return Busy(entry, 0, locked=True)
    if entry.fingerprint != write.fingerprint:
        return Mismatch(entry)
    match entry.status:
        case Status.IN_PROGRESS:
            return Busy(entry, max(0, entry.lease_until - result.now), result.locked)
        case Status.IN_DOUBT:
            return InDoubt(entry, result.now)
        case Status.COMPLETED:
            return Replay(entry)
        case Status.FAILED:
            return Busy(entry, 0, locked=True)
        case _:
            assert_never(entry.status)


def doubted(write: Write, result: WriteResult) -> bool:
    """Return whether this write put the entry in doubt, now or in an earlier try whose result was lost."""
    entry = result.entry
    return entry is not None and entry.status is Status.IN_DOUBT and entry.write_id == write.write_id


def committed(write: Move | Append, result: WriteResult) -> bool:
    """Return whether the write was applied, now or in an earlier try whose result was lost."""
    if result.applied:
        return True
    entry = result.entry
    if entry is None or entry.version != write.version:
        return False
    if entry.write_id == write.write_id:
        return True
    # A renewal may have followed an append whose result was lost. Only the holder appends, so the count is proof.
    return isinstance(write, Append) and entry.outcome.chunks == write.seq - 1 + len(write.chunks)
