"""A checker of every result of the store. It is between the processes and the store, has its own account of every key,
and fails if a result breaks the rules.

It shares no code with the claim machine: a bug there must not be excused by the same bug here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from onceward.core.claim import Append, Begin, Entry, Mark, Move, Ref, Status, Verb, Write, WriteResult
from onceward.store import Page, Reading

if TYPE_CHECKING:
    from tests.simulation.world import World

# The scope of plain calls, with the default namespace before it.
CALLS = "onceward:call"
# Longer than a result takes to arrive.
MOMENT = 10_000


@dataclass(slots=True)
class Account:
    """One key. `status` is None without an entry. A generation lasts from a first claim to the end of the retention."""

    generation: int = 0
    turned_at: int = 0
    status: Status | None = None
    version: int = 0
    attempt: int = 0
    fingerprint: str = ""
    holder: str = ""
    repeatable: bool = True
    released: bool = False
    abandoned: bool = False
    lease_until: int = 0
    expires_at: int = 0
    # Until then, an expired key is refused.
    refuse_until: int = 0
    # The recovery point and its number, and every text ever marked.
    point: tuple[str | None, int] = (None, 0)
    marked: set[str] = field(default_factory=set)
    # Every value ever recorded, with its generation.
    outcomes: dict[object, int] = field(default_factory=dict)
    # The versions that were settled without a value.
    unkept: set[int] = field(default_factory=set)
    # The versions that went in doubt, and those whose doubt was reported to a process.
    doubted: set[int] = field(default_factory=set)
    reported: set[int] = field(default_factory=set)
    # Generation, attempt and the number of effects entered before it, for every version.
    claims: dict[int, tuple[int, int, int]] = field(default_factory=dict)


class StoreChecker:
    """A store whose results are checked from outside."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._accounts: dict[Ref, Account] = {}

    def account(self, ref: Ref) -> Account:
        account = self._accounts.get(ref)
        if account is None:
            account = self._accounts[ref] = Account()
        return account

    def of_call(self, key: str) -> Account:
        return self.account(Ref(CALLS, key))

    def generation_now(self, key: str) -> int:
        """Return the earliest generation whose outcome a new caller may get.

        A result that another caller of its process has just received is allowed too.
        """
        account = self.of_call(key)
        return account.generation - (self._world.now - account.turned_at <= MOMENT)

    def report_doubt(self, entry: Entry) -> None:
        """Check a reported doubt: it must exist, and be reported once."""
        account = self.account(entry.ref)
        if entry.version not in account.doubted:
            self._world.fail(f"{entry.key}: a process reported a doubt that does not exist")
        if entry.version in account.reported:
            self._world.fail(f"{entry.key}: a process heard of a doubt that was known")
        account.reported.add(entry.version)

    # The store's own methods.

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        results = self._world.store.commit(writes)
        for write, result in zip(writes, results, strict=True):
            self._check(write, result)
        return results

    def read(self, refs: Sequence[Ref]) -> Reading:
        return self._world.store.read(refs)

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        return self._world.store.scan(scope, status, after, limit)

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        return self._world.store.chunks(ref, version, after, limit)

    def lapsed(self, limit: int) -> Sequence[Entry]:
        return self._world.store.lapsed(limit)

    def purge(self, limit: int) -> int:
        refs = [ref for ref, account in self._accounts.items() if account.status is not None]
        purged = self._world.store.purge(limit)
        now = self._world.true_store_clock()
        for ref, entry in zip(refs, self._world.store.read(refs).entries, strict=True):
            if entry is None:
                self._check_purged(ref, self._accounts[ref], now)
        self._world.note(None, f"{purged} entries are purged")
        return purged

    def abandon(self) -> None:
        """Do nothing: no simulated process forks."""

    def close(self) -> None:
        """Do nothing: the world keeps its store."""

    # The rules.

    def _check(self, write: Write, result: WriteResult) -> None:
        now = self._world.true_store_clock()
        account = self.account(Ref(write.scope, write.key))
        there = account.status
        if there in {Status.COMPLETED, Status.FAILED} and max(account.expires_at, account.refuse_until) <= now:
            there = None
        entry = result.entry
        if self._world.trace is not None:
            self._world.note(None, _describe(write, result))
        if not result.applied:
            if isinstance(write, Begin):
                self._check_refused(account, there, write, now)
            return
        if entry is None:
            self._broken(write, "an applied write left nothing")
        match write:
            case Begin():
                self._check_begin(account, there, write, entry, now)
            case Move():
                self._check_move(account, there, write, entry, now)
            case Mark():
                self._check_mark(account, there, write)
            case Append():
                if (there, account.version) != (Status.IN_PROGRESS, write.version):
                    self._broken(write, f"chunks were taken from {write.version}, but {self._says(account)}")
        if (entry.recovery, entry.recovery_seq) != account.point:
            self._broken(write, f"its recovery point is {entry.recovery}, not {account.point[0]}")

    def _check_mark(self, account: Account, before: Status | None, write: Mark) -> None:
        if before not in {Status.IN_PROGRESS, Status.IN_DOUBT} or account.version != write.version:
            self._broken(write, f"version {write.version} set a recovery point, but {self._says(account)}")
        if write.seq <= account.point[1]:
            self._broken(write, f"recovery point {write.seq} was taken after {account.point[1]}")
        account.point = (write.text, write.seq)
        account.marked.add(write.text)

    def _check_begin(self, account: Account, before: Status | None, write: Begin, entry: Entry, now: int) -> None:
        if before is not None and account.fingerprint != write.fingerprint:
            self._broken(write, "the key was given to another call")
        if before in {Status.COMPLETED, Status.IN_DOUBT}:
            self._broken(write, f"claimed, but {self._says(account)}")
        if before is Status.IN_PROGRESS or (before is Status.FAILED and account.abandoned):
            dead = write.dead == account.version and self._world.is_dead(account.holder)
            if account.lease_until > now and not dead and not account.abandoned:
                self._broken(write, f"taken over {account.lease_until - now} us before its lease lapses")
            may_repeat = account.repeatable and write.repeatable
            if may_repeat != (entry.status is Status.IN_PROGRESS):
                self._broken(write, f"after a silent holder it became {entry.status}")
            if not may_repeat:
                account.status = Status.IN_DOUBT
                account.abandoned = False
                account.doubted.add(account.version)
                return
        if entry.version <= account.version:
            self._broken(write, f"version {entry.version} was given after {account.version}")
        if before is None and not account.released:
            # A claim that was given back was not the end of anything: what came before it still counts.
            account.generation += 1
            account.turned_at = self._world.now
        if before is None:
            account.point = (None, 0)
        account.attempt = 1 if before is None else account.attempt + 1
        if entry.attempt != account.attempt:
            self._broken(write, f"attempt {entry.attempt} is called number {account.attempt}")
        account.status = Status.IN_PROGRESS
        account.refuse_until = 0
        account.released = account.abandoned = False
        account.version = entry.version
        account.fingerprint = write.fingerprint
        account.holder = write.holder
        account.repeatable = write.repeatable
        account.lease_until = now + write.lease
        account.expires_at = now + write.lease + write.retain
        account.claims[entry.version] = (account.generation, account.attempt, len(self._world.outside.runs))

    def _check_move(self, account: Account, before: Status | None, write: Move, entry: Entry, now: int) -> None:
        wanted = (
            {Status.IN_DOUBT}
            if write.verb in {Verb.UPHOLD, Verb.OVERTURN}
            else {Status.COMPLETED}
            if write.verb is Verb.FORGET
            else {Status.IN_PROGRESS, Status.IN_DOUBT}
            if write.verb is Verb.SETTLE
            else {Status.IN_PROGRESS}
        )
        if before not in wanted or account.version != write.version:
            self._broken(write, f"{write.verb} of version {write.version} was applied, but {self._says(account)}")
        match write.verb:
            case Verb.RENEW:
                account.lease_until = now + write.lease
                account.expires_at = now + write.lease + write.retain
            case Verb.DOUBT:
                account.status = Status.IN_DOUBT
                account.doubted.add(account.version)
            case Verb.ABANDON | Verb.ABANDON_DEAD:
                self._check_abandoned(account, write, entry, now)
            case Verb.FAIL | Verb.NOT_DONE | Verb.RELEASE | Verb.OVERTURN | Verb.FORGET:
                account.status = Status.FAILED
                account.released = write.verb in {Verb.RELEASE, Verb.FORGET}
                account.expires_at = now + write.retain
                if write.verb is Verb.OVERTURN:
                    account.point = (None, 0)
            case Verb.SETTLE | Verb.UPHOLD:
                account.status = Status.COMPLETED
                account.expires_at = now + write.retain
                account.refuse_until = account.expires_at + write.refuse if write.refuse else 0
                value = self._value(entry)
                if value is None:
                    account.unkept.add(account.version)
                    return
                if write.scope == CALLS:
                    self._world.outside.check_recorded(write.key, value, account.generation)
                account.outcomes[value] = account.generation

    def _check_abandoned(self, account: Account, write: Move, entry: Entry, now: int) -> None:
        dead = write.verb is Verb.ABANDON_DEAD and self._world.is_dead(account.holder)
        if account.lease_until > now and not dead:
            self._broken(write, f"abandoned {account.lease_until - now} us before its lease lapses")
        if account.repeatable != (entry.status is Status.FAILED):
            self._broken(write, f"abandoned, it became {entry.status}")
        account.status = Status.FAILED if account.repeatable else Status.IN_DOUBT
        account.abandoned = account.repeatable
        account.expires_at = now + write.retain
        if not account.repeatable:
            account.doubted.add(account.version)

    def _check_refused(self, account: Account, there: Status | None, write: Begin, now: int) -> None:
        same = account.fingerprint == write.fingerprint
        free = there is None or (there is Status.FAILED and same)
        lapsed = account.status is Status.IN_PROGRESS and account.lease_until <= now and same
        if free or lapsed:
            self._broken(write, f"refused, though {self._says(account)} and nobody has a right to it")

    def _check_purged(self, ref: Ref, account: Account, now: int) -> None:
        abandoned = account.status is Status.IN_PROGRESS and account.repeatable
        finished = account.status in {Status.COMPLETED, Status.FAILED}
        if not (finished or abandoned) or max(account.expires_at, account.refuse_until) > now:
            self._world.fail(f"{ref.key} was purged, but {self._says(account)}")
        account.status = None

    def _value(self, entry: Entry) -> object:
        body = entry.outcome.body
        if body is None and entry.outcome.chunks:
            body = b"".join(self._world.store.chunks(entry.ref, entry.version, 0, 500))
        return body if body is None or entry.scope != CALLS else json.loads(body)

    @staticmethod
    def _says(account: Account) -> str:
        return f"it is {account.status or 'absent'} under version {account.version}"

    def _broken(self, write: Write, message: str) -> NoReturn:
        self._world.fail(f"{write.key}: {message}")


def _describe(write: Write, result: WriteResult) -> str:
    entry = result.entry
    what = write.verb if isinstance(write, Move) else type(write).__name__.lower()
    there = "nothing" if entry is None else f"{entry.status} v{entry.version} attempt {entry.attempt}"
    return f"store: {what} {write.key} is {'applied' if result.applied else 'refused'}: {there}"
