"""The claim state machine: the effect of each write on one entry.

THEORY OF OPERATION

A key stands for one piece of work. The store has at most one entry for each key, and an entry is in one of five states:

    absent      The key was never claimed, its claim was released, or its retention is over.
    held        A process has the claim and may be running the effect. Stored as `in_progress`.
    in_doubt    The effect may or may not have happened, and it must not be repeated. Only a verdict, or the result
                of the holder itself, ends this state.
    settled     The effect happened, and its outcome is recorded. Stored as `completed`. Every caller gets a replay.
    failed      An attempt ended, and the effect may be attempted again.

Every change is one write: a `Begin`, a `Move` (its verb says which), an `Append` or a `Mark`. This module is pure. `apply` takes
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
                       |  '-- fail, not_done -------> failed
                       |      abandon (2)                 |
                       '----------------------------------'

    (1) once lapsed or proved dead, not repeatable      (2) once lapsed or proved dead, repeatable

    Not drawn: `renew`, `append` and `mark` do not change the state. A begin that finds (2) takes over: held -> held under a new
    version. `release` makes a held claim absent, and `forget` a settled entry. Settled and failed entries become absent
    when their retention is over, unless their key is refused after that.

Permissions. Anyone may begin. Only the holder renews, appends, marks, settles, fails, releases or doubts its claim, with one
exception: `Ledger.abandon` with `force` is a `doubt` by an operator. Anyone may abandon a claim whose lease has lapsed
or whose holder is proved dead. An operator or a reconcile hook resolves a doubt: `uphold` for "committed", `overturn`
for "not committed". Only an operator forgets: the effect happened, and the next begin runs it again.

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

Recovery points. A holder marks what it must not forget, such as the id that a provider gave to its request. The value
belongs to the key, not to the attempt: it survives takeover, failure and doubt, and the next holder and the reconcile
hook read it. A verdict of "not committed" drops it, and so does the end of the entry. Holders number their marks, and
each continues after the number that it found, so that a mark that arrives late never replaces a newer one. A mark is
accepted in doubt as well, because the holder may still be at work and knows more than anyone else. There it leaves the
write id as it is, by which the process that found the doubt recognises it. The number itself shows whether a mark was
applied.

Attempts that did nothing are counted: those that ended in `not_done`, and those that a verdict overturned. Every other
end leaves the count as it is. `key_for` derives keys for providers from it, so that a key changes only when a provider
has certainly not acted on it. A holder whose attempt did nothing therefore writes `fail` if an earlier attempt had no
known end: that attempt used the same key, and may have reached the provider.

After the retention, a settled entry usually reads as absent. With `refuse`, which is fixed when the outcome is recorded,
it stays until `refuse_until`, and a begin gets `Expired`. Purge then drops only the result and the recovery point, and
moves `expires_at` to `refuse_until`, so that it does not read the entry again before it deletes it. With `EVER`, the
entry has no `expires_at` and is never deleted. Its `refuse_until` is then the time after which purge drops the result,
and sets it to none. Later begins get a `Replay` whose outcome was not kept.

Write ids make it safe to send a write again. An entry stores the id of the last write that it accepted. If the result
of a write was lost, the caller sends the same write again. If the first one was applied, the entry refuses the second
one (except a renewal, which may be applied twice) but shows the write's own id: `found`, `committed` and `doubted`
recognise that as success.

Deletion belongs to purge alone. In a store, absent means no row, or a completed or failed row past its `expires_at` and
its `refuse_until`.
Release and forget leave such a row behind. Only purge deletes rows, so that a new version is never below one that was seen.

GUIDE TO THE TABLE

Rows are writes and columns are states. A cell is the new state, or what the caller gets if the write is refused. "lost"
is a refusal that tells a holder that it no longer has the claim. Moves and appends name a version, and the cells assume
that it is the entry's; otherwise the write is refused. An append must also continue the chunks without a gap. A begin
with another fingerprint gets `Mismatch` in every state but absent. A mark must have a greater number than the last one.
In the code, `_begin`, `_may_take` and `_goes_in_doubt` are the first row, `_append` and `_mark` are the third and the
fourth, and `MOVES` has the others. The last column is what a write that is applied does to the recovery point.

    write          absent         held                             in_doubt    settled       failed            recovery
    begin          held; Claim    Busy; (a) if lapsed or dead      InDoubt     Replay (d)    held; Claim (b)   stays
    renew          lost           held                             lost        lost          lost              stays
    append         lost           held                             lost        lost          lost              stays
    mark           lost           held                             in_doubt    lost          lost              is set
    settle         lost           settled                          settled     lost          lost              stays
    fail           lost           failed                           lost        lost          lost              stays
    not_done       lost           failed                           lost        lost          lost              stays
    release        lost           absent                           lost        lost          lost              -
    doubt          lost           in_doubt                         lost        lost          lost              stays
    abandon        refused        refused; (c) if lapsed           refused     refused       refused           stays
    abandon_dead   refused        (c)                              refused     refused       refused           stays
    uphold         refused        refused                          settled     refused       refused           stays
    overturn       refused        refused                          failed      refused       refused           is dropped
    forget         refused        refused                          refused     absent        refused           -

    (a) If both are repeatable: held, with a new version and attempt + 1; Claim. Otherwise: in_doubt; InDoubt.
    (b) With attempt + 1 and a new version. An abandoned entry instead follows (a).
    (c) If the claim is repeatable: failed, without `completed_at`. Otherwise: in_doubt.
    (d) Expired, if its retention is over and its key is refused.

Times are whole microseconds since 1970 by the store's clock. Durations are microseconds too.
"""

from __future__ import annotations

import enum
from dataclasses import field, replace
from typing import TypeAlias, assert_never

from onceward.core.entry import (
    EXPIRED,
    FINISHED,
    SECOND,
    SECRET_UNIT,
    UNFINISHED,
    WIRE_STATUSES,
    Entry,
    Ref,
    Status,
    wire_status,
)
from onceward.core.outcome import NOTHING, Outcome
from onceward.core.record import record

__all__ = [
    "ABANDONS", "CHECK_STATUS", "EVER", "EXPIRED", "FINISHED", "MOVES", "SECOND", "SECRET_UNIT", "UNFINISHED", "WIRE_STATUSES", "Append",
    "Begin", "Busy", "Claim", "Entry", "Expired", "Found", "InDoubt", "Mark", "Mismatch", "Move", "Ref", "Replay", "Status", "Verb",
    "Write", "WriteResult", "apply", "committed", "doubted", "found", "mints", "wire_status",
]  # fmt: skip


class Verb(enum.StrEnum):
    RENEW = "renew"
    SETTLE = "settle"
    FAIL = "fail"
    NOT_DONE = "not_done"
    RELEASE = "release"
    DOUBT = "doubt"
    ABANDON = "abandon"
    ABANDON_DEAD = "abandon_dead"
    UPHOLD = "uphold"
    OVERTURN = "overturn"
    FORGET = "forget"


# The states that each verb accepts (with the right version), and the new state. Resolve is `uphold` or `overturn`.
MOVES: dict[Verb, tuple[frozenset[Status], Status]] = {
    Verb.RENEW: (frozenset({Status.IN_PROGRESS}), Status.IN_PROGRESS),
    Verb.SETTLE: (UNFINISHED, Status.COMPLETED),
    Verb.FAIL: (frozenset({Status.IN_PROGRESS}), Status.FAILED),
    Verb.NOT_DONE: (frozenset({Status.IN_PROGRESS}), Status.FAILED),
    Verb.RELEASE: (frozenset({Status.IN_PROGRESS}), Status.FAILED),
    Verb.DOUBT: (frozenset({Status.IN_PROGRESS}), Status.IN_DOUBT),
    # Or failed, if the claim is repeatable.
    Verb.ABANDON: (frozenset({Status.IN_PROGRESS}), Status.IN_DOUBT),
    Verb.ABANDON_DEAD: (frozenset({Status.IN_PROGRESS}), Status.IN_DOUBT),
    Verb.UPHOLD: (frozenset({Status.IN_DOUBT}), Status.COMPLETED),
    Verb.OVERTURN: (frozenset({Status.IN_DOUBT}), Status.FAILED),
    # Without retention, like a release: the entry reads as absent at once, and its row keeps versions increasing.
    Verb.FORGET: (frozenset({Status.COMPLETED}), Status.FAILED),
}

ABANDONS = frozenset({Verb.ABANDON, Verb.ABANDON_DEAD})
# They count in `Entry.not_done_count`: the attempt certainly did nothing.
NOT_DONE = frozenset({Verb.NOT_DONE, Verb.OVERTURN})
# They record an outcome, so `Move.refuse` matters.
RECORDS = frozenset({Verb.SETTLE, Verb.UPHOLD})
# A value of `Move.refuse`: the entry never expires.
EVER = -1


@record(frozen=True, slots=True)
class Begin:
    """A request for the key.

    `dead` is a version whose holder was proved dead: its lease counts as lapsed. `key_basis` is that of a new entry.
    """

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
    key_basis: int = 0


@record(frozen=True, slots=True)
class Move:
    """A change of a claimed entry, guarded by the version that its holder was given.

    When the move finishes an entry, `retain` counts from now. A release or forget has no retention, so the entry reads
    as absent at once. If the move records an outcome, `refuse` says for how long the key is refused after the retention. With
    `EVER`, the entry never expires, and only its result is dropped after `retain`.
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
    refuse: int = 0


@record(frozen=True, slots=True)
class Append:
    """Chunks to add under a held claim. `seq` is the number of the first of them, counting from 1."""

    scope: str
    key: str
    write_id: str
    version: int
    seq: int
    chunks: tuple[bytes, ...]


@record(frozen=True, slots=True)
class Mark:
    """A recovery point of a held claim or a claim in doubt. `seq` is above that of the recovery point before it."""

    scope: str
    key: str
    write_id: str
    version: int
    seq: int
    text: str


Write: TypeAlias = Begin | Move | Append | Mark


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
        case Mark():
            return _mark(entry, write)
        case _:
            assert_never(write)


def _begin(entry: Entry | None, write: Begin, now: int, version: int) -> Entry | None:
    if entry is None:
        return _held(write, now, version, None)
    if entry.fingerprint != write.fingerprint:
        return None
    if entry.status is Status.FAILED and not entry.abandoned:
        return _held(write, now, version, entry)
    if not _may_take(entry, write, now):
        return None
    if _goes_in_doubt(entry, write, now):
        return replace(entry, status=Status.IN_DOUBT, write_id=write.write_id, expires_at=None)
    return _held(write, now, version, entry)


def _may_take(entry: Entry, write: Begin, now: int) -> bool:
    if entry.status is Status.IN_PROGRESS:
        return entry.lease_until <= now or entry.version == write.dead
    return entry.abandoned


def _goes_in_doubt(entry: Entry | None, write: Begin, now: int) -> bool:
    return entry is not None and _may_take(entry, write, now) and not (entry.repeatable and write.repeatable)


def _held(write: Begin, now: int, version: int, before: Entry | None) -> Entry:
    """Return a new claim. Fields that outlive an attempt come from the entry before it."""
    lease_until = now + write.lease
    attempt, created_at, note = (1, now, "") if before is None else (before.attempt + 1, before.created_at, before.note)
    recovery, recovery_seq, key_basis = (
        (None, 0, write.key_basis) if before is None else (before.recovery, before.recovery_seq, before.key_basis)
    )
    return Entry(
        write.scope, write.key, write.fingerprint, Status.IN_PROGRESS, version, attempt, write.write_id, write.holder,
        write.repeatable, lease_until, lease_until + write.retain if write.repeatable else None, created_at, None,
        write.user_id, write.endpoint, note, NOTHING, now, recovery, recovery_seq, None, key_basis,
    )  # fmt: skip


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
            after = _changed(entry, write, status, entry.lease_until, expires_at, now, write.note, write.outcome)
            return _counted(after, write) if write.verb in NOT_DONE else _refusing(after, write)
        case _:
            assert_never(status)


def _counted(entry: Entry, write: Move) -> Entry:
    """Count an attempt that did nothing. A verdict of "not committed" also drops the recovery point."""
    entry = replace(entry, key_basis=entry.key_basis + 1)
    return replace(entry, recovery=None, recovery_seq=0) if write.verb is Verb.OVERTURN else entry


def _refusing(entry: Entry, write: Move) -> Entry:
    """Fix what happens after the retention of a recorded outcome."""
    if not write.refuse or write.verb not in RECORDS or entry.expires_at is None:
        return entry
    if write.refuse == EVER:
        return replace(entry, expires_at=None, refuse_until=entry.expires_at)
    return replace(entry, refuse_until=entry.expires_at + write.refuse)


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
        entry.scope, entry.key, entry.fingerprint, status, entry.version, entry.attempt, write.write_id, entry.holder,
        entry.repeatable, lease_until, expires_at, entry.created_at, completed_at, entry.user_id, entry.endpoint, note,
        outcome, entry.claimed_at, entry.recovery, entry.recovery_seq, None, entry.key_basis,
    )  # fmt: skip


def _append(entry: Entry | None, write: Append) -> Entry | None:
    if entry is None or entry.status is not Status.IN_PROGRESS or entry.version != write.version:
        return None
    if entry.outcome.chunks + 1 != write.seq:
        return None
    outcome = replace(entry.outcome, chunks=entry.outcome.chunks + len(write.chunks))
    return replace(entry, write_id=write.write_id, outcome=outcome)


def _mark(entry: Entry | None, write: Mark) -> Entry | None:
    if entry is None or entry.status not in UNFINISHED or entry.version != write.version:
        return None
    if entry.recovery_seq >= write.seq:
        return None
    # The write that put the entry in doubt must still recognise itself.
    write_id = write.write_id if entry.status is Status.IN_PROGRESS else entry.write_id
    return replace(entry, write_id=write_id, recovery=write.text, recovery_seq=write.seq)


# The six results of a `begin`. Every caller handles all of them.


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
    def earlier_did_nothing(self) -> bool:
        """True if every earlier attempt certainly did nothing. Otherwise a `not_done` now would prove too much."""
        return self.entry.not_done_count == self.entry.attempt - 1

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


@record(frozen=True, slots=True)
class Expired:
    """The effect has happened, its outcome is no longer kept, and the key is refused until `entry.refuse_until`.

    Attributes:
        entry: The expired entry.
    """

    entry: Entry


Found: TypeAlias = Claim | Replay | Busy | Mismatch | InDoubt | Expired

# The names of these results in metrics, logs and `IdempotencyStatus`.
CHECK_STATUS: dict[type[Found], str] = {
    Claim: "processing_started",
    Busy: "duplicate_processing",
    Replay: "duplicate_completed",
    Mismatch: "fingerprint_mismatch",
    InDoubt: "in_doubt",
    Expired: "expired",
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
            return Expired(entry) if entry.expired(result.now) else Replay(entry)
        case Status.FAILED:
            return Busy(entry, 0, locked=True)
        case _:
            assert_never(entry.status)


def doubted(write: Write, result: WriteResult) -> bool:
    """Return whether this write put the entry in doubt, now or in an earlier try whose result was lost."""
    entry = result.entry
    return entry is not None and entry.status is Status.IN_DOUBT and entry.write_id == write.write_id


def committed(write: Move | Append | Mark, result: WriteResult) -> bool:
    """Return whether the write was applied, now or in an earlier try whose result was lost."""
    if result.applied:
        return True
    entry = result.entry
    if entry is None or entry.version != write.version:
        return False
    if isinstance(write, Mark):
        # Only the holder marks, in order, so the number is proof: this one was applied, or a later one replaced it.
        return entry.recovery_seq >= write.seq
    if entry.write_id == write.write_id:
        return True
    # A renewal may have followed an append whose result was lost. Only the holder appends, so the count is proof.
    return isinstance(write, Append) and entry.outcome.chunks == write.seq - 1 + len(write.chunks)
