"""All interleavings of a few callers on one key, step by step, over the claim machine alone.

Each caller begins, runs its effect, and settles, fails, releases or gives up; it may crash at any point, lose any
result and send the same write again. One copy of a write may stay in flight and arrive at any later time. Leases lapse,
outcomes expire and their keys may be refused for a while, entries are purged, holders are proved dead, and an operator
resolves doubts correctly.

Each state leaves out what cannot matter (`states.py`). So the number of steps needs no bound, only the number of
times that a caller begins: visiting every state covers every schedule of any length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from tests.core.states import (
    NOW,
    OPERATOR,
    Caller,
    SentWrite,
    State,
    StoredEntry,
    canonical,
    entry_of,
    freed,
    fresh_id,
    gone,
    newest,
    older,
    put,
    stored_of,
    write_of,
)

from onceward.core import claim as machine
from onceward.core.claim import Begin, Claim, Entry, Expired, Found, Mark, Move, Status, Verb, Write, WriteResult
from onceward.core.outcome import NOTHING

Apply: TypeAlias = Callable[[Entry | None, Write, int, int], Entry | None]
Step: TypeAlias = tuple[str, State]


class Violation(AssertionError):
    """An invariant does not hold; the message tells the schedule."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The explored machine. Mutants replace a part of it."""

    apply: Apply = machine.apply
    found: Callable[[Begin, WriteResult], Found] = machine.found
    committed: Callable[[Move | Mark, WriteResult], bool] = machine.committed
    purgeable: Callable[[Entry, int], bool] = Entry.purgeable
    droppable: Callable[[Entry, int], bool] = Entry.droppable


def explore(callers: tuple[Caller, ...], rules: Machine, *, late_copies: bool) -> int:
    """Visit every state that these callers can reach; the number of states, or a `Violation`.

    `late_copies` says whether a write may stay under way; it makes the world some ten times larger.
    """
    start = State(None, callers)
    world = World(rules, late_copies=late_copies)
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    # Two of three steps lead to a state that another step has reached already. Its canonical form is not computed again.
    seen: set[State] = set()
    queue = deque([start])
    while queue:
        state = queue.popleft()
        try:
            for label, after in world.steps(state):
                if after in seen:
                    continue
                seen.add(after)
                following = canonical(after)
                if following not in came_from:
                    came_from[following] = state, label
                    queue.append(following)
        except Violation as violation:
            raise Violation(f"{violation}; schedule: {' · '.join(schedule(came_from, state))}") from None
    return len(came_from)


def schedule(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    labels: list[str] = []
    while (step := came_from[state]) is not None:
        state, label = step
        labels.append(label)
    return labels[::-1]


class World:
    """The steps from one state to the next, with the invariants checked on each."""

    def __init__(self, rules: Machine, *, late_copies: bool) -> None:
        self.rules = rules
        self.late_copies = late_copies
        self.applied = cache(self._apply)
        self.accepts = cache(self._accepts)

    def steps(self, state: State) -> Iterator[Step]:
        self.check_holders(state)
        yield from self.nature(state)
        seen: set[Caller] = set()
        for number, caller in enumerate(state.callers):
            # Two callers in the same place have the same steps.
            if caller not in seen:
                seen.add(caller)
                for label, after in self.caller_steps(state, number, caller):
                    yield f"{number} {label}", after

    def nature(self, state: State) -> Iterator[Step]:
        stored = state.stored
        if state.under_way is not None:
            alone = state._replace(under_way=None)
            yield "late copy is lost", alone
            yield "late copy arrives", self.store(alone, state.under_way)[0]
        if stored is None:
            return
        yield "tick", state._replace(stored=older(stored))
        for verb in (Verb.ABANDON, Verb.ABANDON_DEAD) if proved_dead(state) else (Verb.ABANDON,):
            abandoned, result = self.store(state, SentWrite(False, verb, stored.version, 0))
            if result.applied:
                yield verb.value, abandoned
        if self.rules.purgeable(entry_of(stored), NOW):
            unknown = stored.status is Status.IN_DOUBT or (
                stored.status is Status.IN_PROGRESS and not stored.repeatable
            )
            require(not unknown, "purge takes what nobody knows the outcome of")
            require(not entry_of(stored).expired(NOW), "purge takes a key that is still refused")
            yield "purge", freed(state)._replace(stored=None)
        if self.rules.droppable(entry_of(stored), NOW):
            require(entry_of(stored).expired(NOW), "purge drops a result within its retention")
            yield "purge drops the result", state._replace(stored=stored_of(entry_of(stored).without_result()))
        if stored.status is Status.IN_DOUBT:
            if state.lost_once or state.lost_repeatable:
                yield "upheld", self.store(state, SentWrite(False, Verb.UPHOLD, stored.version, 0))[0]
            elif not any(caller.version == stored.version for caller in state.callers):
                yield "overturned", self.store(state, SentWrite(False, Verb.OVERTURN, stored.version, 0))[0]

    def caller_steps(self, state: State, number: int, caller: Caller) -> Iterator[Step]:
        if caller.phase == "idle":
            if caller.begins_left:
                begun = caller._replace(begins_left=caller.begins_left - 1)
                yield from self.send(state, number, begun, None)
                if proved_dead(state):
                    yield from self.send(state, number, begun, None, dead=state.stored.version if state.stored else 0)
            return
        yield "crashes", gone(state, number)
        if caller.sent is not None:
            yield from self.send(state, number, caller, caller.sent.verb, again=True)
            return
        if caller.phase == "running" and caller.marks_left:
            marking = caller._replace(marks_left=caller.marks_left - 1, seq=caller.seq + 1)
            yield from self.send(state, number, marking, None, mark=True)
        renewed, result = self.store(state, SentWrite(caller.repeatable, Verb.RENEW, caller.version, 0))
        if result.applied:
            yield "renews", renewed
        if caller.phase == "holding":
            check_start(state, number)
            yield "starts its effect", put(state, number, caller._replace(phase="running"))
            yield from self.send(state, number, caller, Verb.RELEASE)
        else:
            yield from self.send(state, number, caller, Verb.SETTLE)
            yield from self.send(state, number, caller, Verb.FAIL)
            yield from self.send(state, number, caller, Verb.DOUBT)

    def send(
        self, state: State, number: int, caller: Caller, verb: Verb | None, *, dead: int = 0, again: bool = False,
        mark: bool = False,
    ) -> Iterator[Step]:  # fmt: skip
        """The three results of a write: an answer, a lost answer, and a write that is still under way."""
        mark |= again and caller.sent is not None and caller.sent.seq > 0
        name = "mark" if mark else verb or "begin"
        if again and caller.sent is not None:
            sent = caller.sent
        else:
            version = dead if verb is None and not mark else caller.version
            refuses = caller.refuses and verb is Verb.SETTLE
            sent = SentWrite(caller.repeatable, verb, version, fresh_id(state), caller.seq if mark else 0, refuses)
        waiting = caller._replace(phase=name, sent=sent)
        asked = put(state, number, waiting)
        if self.late_copies and state.under_way is None and not again:
            yield f"{name} stays under way", asked._replace(under_way=sent)
        after, result = self.store(asked, sent)
        applied_last = waiting.applied_last or result.applied
        yield f"{name}, answer lost", put(after, number, after.callers[number]._replace(applied_last=applied_last))
        yield name, self.receive(after, number, sent, result, applied_last=applied_last)

    def receive(self, state: State, number: int, sent: SentWrite, result: WriteResult, *, applied_last: bool) -> State:
        """Let the caller process a write result."""
        write, entry = write_of(sent), result.entry
        caller = state.callers[number]
        if isinstance(write, Begin):
            found = self.rules.found(write, result)
            own = entry is not None and entry.status is Status.IN_PROGRESS and entry.write_id == write.write_id
            require(
                isinstance(found, Claim) == own, "a caller takes another's claim for its own, or its own for another's"
            )
            is_refused = entry is not None and entry.expired(NOW)
            require(isinstance(found, Expired) == is_refused, "a caller does not learn that its key is refused")
            if isinstance(found, Claim):
                seq = found.entry.recovery_seq
                claim = Caller(
                    caller.repeatable,
                    caller.begins_left,
                    "holding",
                    found.version,
                    marks_left=caller.marks_left,
                    seq=seq,
                    refuses=caller.refuses,
                )
                return put(state, number, claim)
            return gone(state, number)
        if isinstance(write, Mark):
            return self.receive_mark(state, number, write, result, applied_last=applied_last)
        assert isinstance(write, Move)
        if self.rules.committed(write, result):
            recorded = entry is not None and entry.status is Status.COMPLETED and (
                entry.outcome == write.outcome or dropped(entry)
            )  # fmt: skip
            require(recorded or write.verb is not Verb.SETTLE, "a caller believes in an outcome that is not recorded")
        elif applied_last and entry is not None and not entry.absent(NOW) and entry.version == write.version:
            # Only a doubt may have been ended by somebody else in the meantime.
            require(write.verb is Verb.DOUBT, "a caller does not recognise its own commit")
        return gone(state, number)

    def receive_mark(self, state: State, number: int, write: Mark, result: WriteResult, *, applied_last: bool) -> State:
        entry = result.entry
        if self.rules.committed(write, result):
            require(
                entry is not None and entry.recovery_seq >= write.seq, "a caller believes in a mark that is not stored"
            )
            running = state.callers[number]._replace(phase="running", sent=None, applied_last=False)
            return put(state, number, running)
        if applied_last and entry is not None and not entry.absent(NOW) and entry.version == write.version:
            require(entry.recovery_seq == 0, "a caller does not recognise its own mark")
        return gone(state, number)

    def store(self, state: State, sent: SentWrite) -> tuple[State, WriteResult]:
        """Apply one write as a store does."""
        stored, result, frees = self.applied(state.stored, sent, newest(state) + 1)
        if not result.applied:
            return state, result
        return (freed(state) if frees else state)._replace(stored=stored), result

    def _apply(
        self, stored: StoredEntry | None, sent: SentWrite, version: int
    ) -> tuple[StoredEntry | None, WriteResult, bool]:
        before = None if stored is None else entry_of(stored)
        write = write_of(sent)
        after = self.rules.apply(before, write, NOW, version)
        if after is None:
            return stored, WriteResult(applied=False, entry=before, now=NOW), False
        check_change(before, write, after, version)
        aged = before is not None and before.absent(NOW)
        status = before.found_as(NOW) if before is not None else None
        frees = aged and before is not None and before.status is Status.COMPLETED
        return stored_of(after), WriteResult(applied=True, entry=after, now=NOW, before=status), frees

    def check_holders(self, state: State) -> None:
        """Only the holder of the entry's own version can do anything, and nobody shares a version."""
        held = [caller.version for caller in state.callers if caller.version]
        require(len(held) == len(set(held)), "two callers hold one version")
        for version in held:
            if state.stored is None or version != state.stored.version:
                require(not self.accepts(state.stored, version), "a verb of a lost claim is accepted")

    def _accepts(self, stored: StoredEntry | None, version: int) -> bool:
        entry = None if stored is None else entry_of(stored)
        verbs = (Verb.RENEW, Verb.SETTLE, Verb.FAIL, Verb.RELEASE, Verb.DOUBT)
        writes = [write_of(SentWrite(True, verb, version, 0)) for verb in verbs]
        writes.append(write_of(SentWrite(True, None, version, 0, seq=99)))
        return any(self.rules.apply(entry, write, NOW, OPERATOR) is not None for write in writes)


def check_change(before: Entry | None, write: Write, after: Entry, version: int) -> None:
    """Check the allowed transitions, whatever the callers do."""
    claimed = isinstance(write, Begin) and after.status is Status.IN_PROGRESS
    if claimed or before is None:
        require(claimed and after.version == version, "a claim without a version of its own")
    else:
        require(after.version == before.version, "a version without a claim")
    if before is None or before.absent(NOW):
        return
    require(before.status is not Status.COMPLETED, "an outcome changes before its time")
    if not (isinstance(write, Move) and write.verb is Verb.OVERTURN):
        require(after.recovery_seq >= before.recovery_seq, "a recovery point is lost")
    if isinstance(write, Mark):
        require(after.recovery_seq == write.seq > before.recovery_seq, "an old mark replaces a newer one")
        require(after.status is before.status, "a mark changes the state")
    if before.status is Status.IN_DOUBT and not isinstance(write, Mark):
        ends = isinstance(write, Move) and write.verb in (Verb.SETTLE, Verb.UPHOLD, Verb.OVERTURN)
        require(ends, "doubt goes away by itself")
    if before.status is Status.IN_PROGRESS and isinstance(write, Begin):
        require(before.lapsed(NOW) or write.dead == before.version, "a live claim is taken over")
    if (before.status is Status.IN_PROGRESS or before.abandoned) and isinstance(write, Begin):
        both = before.repeatable and write.repeatable
        require(claimed == both, "work that may not be repeated is taken over")
    if before.status is Status.IN_PROGRESS and isinstance(write, Move) and write.verb is Verb.ABANDON:
        require(before.lapsed(NOW), "a live claim is abandoned")
        require((after.status is Status.FAILED) == before.repeatable, "what may not be repeated is abandoned as failed")


def dropped(entry: Entry) -> bool:
    """Return whether purge has dropped the result of an entry whose key is or was refused."""
    return entry.refuse_until is not None and entry.expires_at == entry.refuse_until and entry.outcome == NOTHING


def check_start(state: State, number: int) -> None:
    """After an irreversible effect that did not provably fail, no later claim starts another effect."""
    caller = state.callers[number]
    if caller.stale:
        return
    others = [
        other.version
        for index, other in enumerate(state.callers)
        if index != number and other.unproven and not other.repeatable
    ]
    others += [state.lost_once] if state.lost_once else []
    # A holder of repeatable work who was frozen wakes up late; that was declared harmless.
    clash = any(version < caller.version or not caller.repeatable for version in others)
    require(not clash, "an effect that may not be repeated is repeated")


def proved_dead(state: State) -> bool:
    """Return whether the holder's process is gone, so that a process on its host may prove it dead."""
    stored = state.stored
    if stored is None or stored.status is not Status.IN_PROGRESS:
        return False
    mine = (
        caller.version == stored.version or (caller.sent and caller.sent.write_id == stored.write_id)
        for caller in state.callers
    )
    return not any(mine)


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)
