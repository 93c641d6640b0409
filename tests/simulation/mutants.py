"""Planted bugs. Each changes production behaviour in one narrow way while it is planted; the simulator must notice.

They are mistakes that are typical of once-only code, and some that this code once had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation import dispatcher as dispatcher_module
from tests.simulation.dispatcher import SimDispatcher
from tests.simulation.faults import Fault
from tests.simulation.scenario import Focus
from tests.simulation.world import World

from onceward import errors
from onceward.core import claim as machine
from onceward.core.claim import Begin, Claim, Entry, Mark, Move, Status, Verb, Write, WriteResult
from onceward.core.verdict import Final, NotCommitted, Open, Verdict
from onceward.ledger import Ledger
from onceward.ledger import ledger as ledger_module
from onceward.ledger import run as run_module
from onceward.ledger.terms import Effect
from onceward.store import memory
from onceward.store.dispatch import queue
from onceward.store.dispatch.renewal import Renewal
from onceward.store.memory import MemoryStore
from onceward.store.write_id import write_id


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug. `swaps` are the replaced attributes: owner, name, replacement. A rare one has a focus."""

    name: str
    swaps: tuple[tuple[Any, str, Any], ...]
    focus: Focus | None = None

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, replacement in self.swaps:
                stack.callback(setattr, owner, name, owner.__dict__[name])
                setattr(owner, name, replacement)
            yield


_apply = machine.apply


def _applying(change: Callable[[Entry, Write], tuple[Entry, Write]]) -> tuple[Any, str, Any]:
    """A bug: the store decides for a changed entry or a changed write."""

    def mutated(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
        if entry is not None:
            entry, write = change(entry, write)
        return _apply(entry, write, now, version)

    return memory, "apply", mutated


def _resulting(change: Callable[[Entry, Write], Entry]) -> tuple[Any, str, Any]:
    """A bug: the store keeps a changed entry."""

    def mutated(entry: Entry | None, write: Write, now: int, version: int) -> Entry | None:
        after = _apply(entry, write, now, version)
        return None if after is None else change(after, write)

    return memory, "apply", mutated


def _is(write: Write, *verbs: Verb) -> bool:
    return isinstance(write, Move) and write.verb in verbs


def _any_version(entry: Entry, write: Write) -> Write:
    return replace(write, version=entry.version) if isinstance(write, Move) else write


def _no_fence(entry: Entry, write: Write) -> tuple[Entry, Write]:
    if not _is(write, Verb.SETTLE):
        return entry, write
    return replace(entry, status=Status.IN_PROGRESS), _any_version(entry, write)


def _settle_by_key(entry: Entry, write: Write) -> tuple[Entry, Write]:
    return entry, _any_version(entry, write) if _is(write, Verb.SETTLE) else write


def _fail_by_key(entry: Entry, write: Write) -> tuple[Entry, Write]:
    return entry, _any_version(entry, write) if _is(write, Verb.FAIL) else write


def _settles_any_doubt(entry: Entry, write: Write) -> tuple[Entry, Write]:
    in_doubt = entry.status is Status.IN_DOUBT and _is(write, Verb.SETTLE)
    return entry, _any_version(entry, write) if in_doubt else write


def _release_by_key(entry: Entry, write: Write) -> tuple[Entry, Write]:
    return entry, _any_version(entry, write) if _is(write, Verb.RELEASE) else write


def _resolve_by_key(entry: Entry, write: Write) -> tuple[Entry, Write]:
    return entry, _any_version(entry, write) if _is(write, Verb.UPHOLD, Verb.OVERTURN) else write


def _renew_by_key(entry: Entry, write: Write) -> tuple[Entry, Write]:
    return entry, _any_version(entry, write) if _is(write, Verb.RENEW) else write


def _death_is_proof(entry: Entry, write: Write) -> tuple[Entry, Write]:
    if isinstance(write, Begin) and write.dead == entry.version:
        return replace(entry, repeatable=True), replace(write, repeatable=True)
    return entry, write


def _repeats_irreversible(entry: Entry, write: Write) -> tuple[Entry, Write]:
    if isinstance(write, Begin):
        return replace(entry, repeatable=True), replace(write, repeatable=True)
    return entry, write


def _loosens(entry: Entry, write: Write) -> tuple[Entry, Write]:
    if isinstance(write, Begin):
        return replace(entry, repeatable=entry.repeatable or write.repeatable), write
    return entry, write


def _retains_from_claim(entry: Entry, write: Write) -> Entry:
    if entry.status in machine.FINISHED and isinstance(write, Move):
        return replace(entry, expires_at=entry.created_at + write.retain)
    return entry


def _held_expires(entry: Entry, write: Write) -> Entry:
    if entry.status is Status.IN_PROGRESS and isinstance(write, Begin):
        return replace(entry, expires_at=entry.lease_until + write.retain)
    return entry


def _abandons_live(entry: Entry, write: Write) -> tuple[Entry, Write]:
    if isinstance(write, Move) and write.verb is Verb.ABANDON:
        return entry, replace(write, verb=Verb.ABANDON_DEAD)
    return entry, write


def _repeats_abandoned(entry: Entry, write: Write) -> tuple[Entry, Write]:
    return (replace(entry, repeatable=True), write) if _is(write, Verb.ABANDON, Verb.ABANDON_DEAD) else (entry, write)


def _marks_in_any_order(entry: Entry, write: Write) -> tuple[Entry, Write]:
    return (replace(entry, recovery_seq=0), write) if isinstance(write, Mark) else (entry, write)


def _marks_by_key(entry: Entry, write: Write) -> tuple[Entry, Write]:
    return entry, replace(write, version=entry.version) if isinstance(write, Mark) else write


def _loses_marks_in_doubt(entry: Entry, write: Write) -> Entry:
    if entry.status is Status.IN_DOUBT and not isinstance(write, Mark):
        return replace(entry, recovery=None, recovery_seq=0)
    return entry


def _forgets_to_refuse(entry: Entry, write: Write) -> Entry:
    return entry if isinstance(write, Begin) else replace(entry, refuse_until=None)


def _callers_clock(world: World) -> int:
    wrong = 0 if world.sender is None else world.sender.wall_offset
    return world.true_store_clock() + wrong


_purge = MemoryStore.purge


def _purges_doubt(store: MemoryStore, limit: int) -> int:
    for ref, entry in list(store._entries.items()):
        if entry.status is Status.IN_DOUBT:
            del store._entries[ref]
    return _purge(store, limit)


def _purges_refused(store: MemoryStore, limit: int) -> int:
    for ref, entry in list(store._entries.items()):
        if entry.expired(store._clock()):
            del store._entries[ref]
    return _purge(store, limit)


def _forgets_versions(store: MemoryStore, limit: int) -> int:
    purged = _purge(store, limit)
    store._last_version = max((entry.version for entry in store._entries.values()), default=0)
    return purged


_proved_dead = SimDispatcher.proved_dead


def _frozen_is_dead(dispatcher: SimDispatcher, holder: str) -> bool:
    world = dispatcher._world
    frozen = any(one.holder == holder and one.frozen_until > world.now for one in world.processes)
    return frozen or _proved_dead(dispatcher, holder)


_found = machine.found


def _does_not_know_itself(write: Begin, result: WriteResult) -> machine.Found:
    if result.entry is not None and not result.applied:
        result = replace(result, entry=replace(result.entry, write_id="another"))
    return _found(write, result)


_reconcile = run_module._reconcile


async def _unknown_is_no(terms: Any, entry: Entry) -> Verdict:
    verdict = await _reconcile(terms, entry)
    return NotCommitted(Final.PROVIDER_FINAL) if verdict is Open.UNKNOWN else verdict


_begin = Ledger.begin


async def _fails_open(ledger: Ledger, scope: str, key: str, *args: Any, **options: Any) -> Any:
    try:
        return await _begin(ledger, scope, key, *args, **options)
    except errors.StoreUnavailable:
        entry = Entry(
            scope, key, "", Status.IN_PROGRESS, 0, 1, write_id(), "", repeatable=True, lease_until=0, expires_at=None,
            created_at=0,
        )  # fmt: skip
        return Claim(entry, None)


_settle = Ledger.settle


async def _settles_without_answer(ledger: Ledger, *args: Any) -> bool:
    try:
        return await _settle(ledger, *args)
    except errors.StoreUnavailable:
        return True


async def _settles_anyway(ledger: Ledger, *args: Any) -> bool:
    await _settle(ledger, *args)
    return True


_undo = run_module._undo


async def _undo_always_succeeds(*args: Any) -> None:
    with suppress(Exception):
        await _undo(*args)


async def _does_not_undo(*_: Any) -> None:
    pass


_recorded_value_of = run_module._recorded_value


async def _any_outcome(ledger: Ledger, claim: Claim, terms: Any) -> object:
    entry = await ledger._read_ref(claim.entry.ref)
    if entry is not None:
        claim = Claim(replace(claim.entry, fingerprint=entry.fingerprint), claim.before)
    return await _recorded_value_of(ledger, claim, terms)


def _releases_takeover(write: Write, result: WriteResult) -> Move | None:
    entry = result.entry
    if not isinstance(write, Begin) or not result.applied or entry is None or entry.status is not Status.IN_PROGRESS:
        return None
    return Move(write.scope, write.key, write_id(), Verb.RELEASE, entry.version)


def _does_not_renew(dispatcher: SimDispatcher, entry: Entry, lease: int, retain: int, _seconds: float) -> Renewal:
    return Renewal(entry, lease, retain, every=1.0, next_at=0.0, until=dispatcher.monotonic())


MUTANTS = (
    Mutant("no fence: a settle is always taken", (_applying(_no_fence),)),
    Mutant("a settle goes by key, not by version", (_applying(_settle_by_key),)),
    Mutant("a failure goes by key, not by version", (_applying(_fail_by_key),)),
    Mutant(
        "a settle of any version ends a doubt",
        (_applying(_settles_any_doubt),),
        Focus((Fault.FREEZE, Fault.CLOCK_FORWARD), {"kinds": (Effect.COMPENSATABLE,), "undo_fails": True}),
    ),
    Mutant(
        "a verdict on any version ends a doubt",
        (_applying(_resolve_by_key),),
        Focus((Fault.FREEZE, Fault.CRASH), {"kinds": (Effect.IRREVERSIBLE,), "reconciled": True, "moody": True}),
    ),
    Mutant(
        "release goes by key, not by version",
        (_applying(_release_by_key),),
        Focus((Fault.FREEZE, Fault.CANCEL, Fault.HANG), {}),
    ),
    Mutant("renewal goes by key, not by version", (_applying(_renew_by_key),)),
    Mutant("the clock is the caller's", ((World, "store_clock", _callers_clock),)),
    Mutant("retention counts from the claim", (_resulting(_retains_from_claim),)),
    Mutant(
        "an abandoned irreversible claim expires",
        (_resulting(_held_expires),),
        Focus((Fault.FREEZE, Fault.CRASH, Fault.CLOCK_FORWARD), {"kinds": (Effect.IRREVERSIBLE,)}),
    ),
    Mutant("what is in doubt is purged", ((MemoryStore, "purge", _purges_doubt),)),
    Mutant("versions are forgotten with what is purged", ((MemoryStore, "purge", _forgets_versions),)),
    Mutant("a claim is abandoned while its lease runs", (_applying(_abandons_live),)),
    Mutant("what was abandoned may be repeated", (_applying(_repeats_abandoned),)),
    Mutant(
        "an old mark replaces a new one",
        (_applying(_marks_in_any_order),),
        Focus((Fault.LINGER, Fault.DUPLICATE, Fault.LOSE_ANSWER), {"marks": 2}),
    ),
    Mutant("a mark is taken after a takeover", (_applying(_marks_by_key),)),
    Mutant("a mark is lost when its claim goes in doubt", (_resulting(_loses_marks_in_doubt),)),
    Mutant(
        "a refused key runs again",
        (_resulting(_forgets_to_refuse),),
        Focus((Fault.FREEZE, Fault.CLOCK_FORWARD), {"refused": True}),
    ),
    Mutant(
        "a refused key is purged",
        ((MemoryStore, "purge", _purges_refused),),
        Focus((Fault.FREEZE, Fault.CLOCK_FORWARD), {"refused": True}),
    ),
    Mutant("a dead holder has done nothing", (_applying(_death_is_proof),)),
    Mutant("a frozen holder counts as dead", ((SimDispatcher, "proved_dead", _frozen_is_dead),)),
    Mutant("a lapsed irreversible effect is repeated", (_applying(_repeats_irreversible),)),
    Mutant("a later caller may be less strict", (_applying(_loosens),)),
    Mutant("unknown is taken for no", ((run_module, "_reconcile", _unknown_is_no),)),
    Mutant("an exception means that nothing happened", ((run_module, "_did_nothing", lambda *_: True),)),
    Mutant("other arguments are the same call", ((ledger_module, "fingerprint_of", lambda _: "0" * 64),)),
    Mutant(
        "a lost answer counts as not applied",
        ((machine, "found", _does_not_know_itself),),
        Focus((Fault.LOSE_ANSWER,), {"kinds": (Effect.IRREVERSIBLE,)}),
    ),
    Mutant("no answer to a claim counts as one", ((Ledger, "begin", _fails_open),)),
    Mutant("no answer to a settle counts as done", ((Ledger, "settle", _settles_without_answer),)),
    Mutant("a late worker returns its own value", ((Ledger, "settle", _settles_anyway),)),
    Mutant(
        "a late worker takes any outcome",
        ((run_module, "_recorded_value", _any_outcome),),
        Focus((Fault.FREEZE, Fault.CLOCK_FORWARD), {"kinds": (Effect.PURE,), "fingerprints": ("same", "other")}),
    ),
    Mutant("claims are not renewed", ((SimDispatcher, "start_renewal", _does_not_renew),)),
    Mutant("what a silent holder did is not undone", ((run_module, "_undo", _does_not_undo),)),
    Mutant(
        "a failed undo counts as done",
        ((run_module, "_undo", _undo_always_succeeds),),
        Focus((Fault.FREEZE, Fault.CLOCK_FORWARD), {"kinds": (Effect.COMPENSATABLE,), "undo_fails": True}),
    ),
    Mutant(
        "an abandoned takeover is released",
        ((queue, "release_for", _releases_takeover), (dispatcher_module, "release_for", _releases_takeover)),
        Focus((Fault.CRASH, Fault.CANCEL, Fault.CLOCK_FORWARD), {"kinds": (Effect.COMPENSATABLE,)}),
    ),
)
