"""The states of the exploration: what matters of an entry and its callers, and how a state is made canonical.

Time is counted from now and stops at "over"; versions and write ids are renumbered in their order; callers with the
same terms change places freely. Nothing else about them can matter.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from onceward.core.claim import UNFINISHED, Begin, Entry, Mark, Move, Status, Verb, Write
from onceward.core.outcome import NOTHING, Outcome

NOW = 0
LEASE = 1
RETAIN = 1
REFUSE = 1
# The version-like number of an outcome that an operator recorded.
OPERATOR = 255


class StoredEntry(NamedTuple):
    """The relevant part of an entry. Times are relative to now; 0 means over or irrelevant.

    A value names the version that settled it; `point` is the number of the recovery point. `refuse` is the time until
    which the key is refused after its retention.
    """

    status: Status
    version: int
    write_id: int
    repeatable: bool
    lease: int
    expires: int | None
    value: int
    abandoned: bool = False
    point: int = 0
    refuse: int | None = None


class SentWrite(NamedTuple):
    """A write that was sent: a mark (`seq` is above 0), a begin (`verb` is None; `version` is the holder it proved dead)
    or a move.
    """

    repeatable: bool
    verb: Verb | None
    version: int
    write_id: int
    seq: int = 0
    refuses: bool = False


class Caller(NamedTuple):
    """One caller and what it knows."""

    repeatable: bool
    begins_left: int
    phase: str = "idle"
    version: int = 0
    sent: SentWrite | None = None
    applied_last: bool = False  # its last write was applied, though its answer may have been lost
    stale: bool = False  # its claim is from before the key became free again by age
    marks_left: int = 0
    seq: int = 0  # of its last mark, or of the recovery point that it found
    refuses: bool = False  # it settles with a key that is refused after its retention

    @property
    def unproven(self) -> bool:
        """Return whether its effect may have happened or may still happen, and still matters."""
        return self.phase in ("running", "mark", Verb.SETTLE, Verb.DOUBT) and not self.stale


class State(NamedTuple):
    stored: StoredEntry | None
    callers: tuple[Caller, ...]
    under_way: SentWrite | None = None
    # The version of an effect whose caller is gone and which was not proved to have failed; for a repeatable one a
    # flag is enough.
    lost_once: int = 0
    lost_repeatable: bool = False


def put(state: State, number: int, caller: Caller) -> State:
    callers = (*state.callers[:number], caller, *state.callers[number + 1 :])
    return State(state.stored, callers, state.under_way, state.lost_once, state.lost_repeatable)


def gone(state: State, number: int) -> State:
    """Replace a caller that has its result or has died by a fresh one, which does not know of it."""
    caller = state.callers[number]
    fresh = Caller(caller.repeatable, caller.begins_left, marks_left=caller.marks_left, refuses=caller.refuses)
    after = put(state, number, fresh)
    if not caller.unproven:
        return after
    if caller.repeatable:
        return after._replace(lost_repeatable=True)
    return after._replace(lost_once=max(state.lost_once, caller.version))


def freed(state: State) -> State:
    """Return the state after the end of the retention: what happened before no longer matters."""
    callers = tuple(caller._replace(stale=caller.version > 0) for caller in state.callers)
    return state._replace(callers=callers, lost_once=0, lost_repeatable=False)


def older(stored: StoredEntry) -> StoredEntry:
    expires = None if stored.expires is None else max(0, stored.expires - 1)
    refuse = None if stored.refuse is None else max(0, stored.refuse - 1)
    return stored._replace(lease=max(0, stored.lease - 1), expires=expires, refuse=refuse)


def newest(state: State) -> int:
    return max(versions_in(state))


def versions_in(state: State) -> set[int]:
    versions = {0, state.lost_once}
    for caller in state.callers:
        versions.add(caller.version)
        if caller.sent is not None:
            versions.add(caller.sent.version)
    if state.under_way is not None:
        versions.add(state.under_way.version)
    if state.stored is not None:
        versions.add(state.stored.version)
        versions.add(state.stored.value)
    versions.discard(OPERATOR)
    return versions


def fresh_id(state: State) -> int:
    return max(ids_in(state) | {state.stored.write_id if state.stored is not None else 0}, default=0) + 1


def ids_in(state: State) -> set[int]:
    """Return the write ids that can still be sent."""
    ids = {caller.sent.write_id for caller in state.callers if caller.sent is not None}
    return ids | {state.under_way.write_id} if state.under_way is not None else ids


def canonical(state: State) -> State:
    """Renumber versions and write ids in their order, and sort the callers: nothing else about them matters."""
    versions, ids = versions_in(state), ids_in(state)
    known = state.stored is None or state.stored.write_id in ids or state.stored.write_id == 0
    if not known or len(versions) != max(versions) + 1 or len(ids) != max(ids, default=0):
        state = renumbered(state, sorted(versions), sorted(ids))
    callers = tuple(sorted(state.callers, key=order))
    return State(state.stored, callers, state.under_way, state.lost_once, state.lost_repeatable)


def renumbered(state: State, versions: list[int], ids: list[int]) -> State:
    version = {OPERATOR: OPERATOR} | {old: new for new, old in enumerate(versions)}
    write_id = {old: new for new, old in enumerate(ids, 1)}

    # Spelled out: `_replace` takes three times as long, and this is done a million times.
    def sent(one: SentWrite | None) -> SentWrite | None:
        if one is None:
            return None
        return SentWrite(
            one.repeatable, one.verb, version[one.version], write_id[one.write_id], one.seq, one.refuses
        )  # fmt: skip

    stored = state.stored and state.stored._replace(
        version=version[state.stored.version],
        write_id=write_id.get(state.stored.write_id, 0),
        value=version[state.stored.value],
    )
    callers = tuple(
        [
            Caller(
                one.repeatable,
                one.begins_left,
                one.phase,
                version[one.version],
                sent(one.sent),
                one.applied_last,
                one.stale,
                one.marks_left,
                one.seq,
                one.refuses,
            )
            for one in state.callers
        ]
    )
    return State(stored, callers, sent(state.under_way), version[state.lost_once], state.lost_repeatable)


def order(caller: Caller) -> tuple[object, ...]:
    sent = (0, 0, 0) if caller.sent is None else (caller.sent.version, caller.sent.write_id, caller.sent.seq)
    return (*caller[:4], *sent, *caller[5:])


@cache
def entry_of(stored: StoredEntry) -> Entry:
    outcome = NOTHING if stored.value == 0 else Outcome(body=bytes([stored.value]))
    return Entry(
        "s", "k", "print", stored.status, stored.version, 1, str(stored.write_id), "", stored.repeatable or stored.abandoned,
        stored.lease, stored.expires, NOW, None if stored.abandoned or stored.status in UNFINISHED else NOW, outcome=outcome,
        recovery=str(stored.point) if stored.point else None, recovery_seq=stored.point, refuse_until=stored.refuse,
    )  # fmt: skip


def stored_of(entry: Entry) -> StoredEntry:
    value = entry.outcome.body[0] if entry.outcome.body is not None else 0
    held = entry.status is Status.IN_PROGRESS
    return StoredEntry(
        entry.status,
        entry.version,
        int(entry.write_id),
        entry.repeatable and held,
        entry.lease_until if held else 0,
        entry.expires_at,
        value,
        entry.abandoned,
        entry.recovery_seq,
        entry.refuse_until,
    )


@cache
def write_of(sent: SentWrite) -> Write:
    write_id = str(sent.write_id)
    if sent.seq:
        return Mark("s", "k", write_id, sent.version, sent.seq, str(sent.seq))
    if sent.verb is None:
        return Begin("s", "k", write_id, "print", "", sent.repeatable, LEASE, RETAIN, dead=sent.version)
    values = {Verb.SETTLE: bytes([sent.version]), Verb.UPHOLD: bytes([OPERATOR])}
    retain = 0 if sent.verb is Verb.RELEASE else RETAIN
    outcome = Outcome(body=values.get(sent.verb))
    return Move("s", "k", write_id, sent.verb, sent.version, LEASE, retain, outcome, refuse=REFUSE * sent.refuses)
