"""Callers of a simulated process: they run effects of every class, maintain the ledger, and resolve doubts."""

from __future__ import annotations

import asyncio
import enum
import functools
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from onceward import errors
from onceward.core.claim import Entry
from onceward.core.verdict import Committed, NotCommitted, Open, Verdict
from onceward.ledger.run import SCOPE, current_claim, run
from onceward.ledger.terms import Effect, Terms

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

Pause: TypeAlias = Callable[[float], Awaitable[None]]

# Larger than an entry can hold, so that the result is stored in chunks.
LARGE = "." * 70_000


class Mood(enum.Enum):
    """The course of one run of an effect."""

    WELL = enum.auto()
    RAISES_BEFORE = enum.auto()
    RAISES_AFTER = enum.auto()
    NOT_DONE = enum.auto()
    STRAYS = enum.auto()  # it raises now and happens later


class EffectFailed(Exception):
    """The error that simulated effects raise."""


class UndoFailed(Exception):
    """The error that simulated undos raise; some effects declare that it means "not done"."""


@dataclass(frozen=True, slots=True)
class Job:
    """One key, and how it is called."""

    key: str
    kinds: tuple[Effect, ...]
    fingerprints: tuple[str, ...] = ("same",)
    reconciled: bool = False
    large: bool = False
    # How its effect goes while anything goes wrong: as it pleases if moody, otherwise always like this.
    moody: bool = False
    mood: Mood = Mood.WELL
    undo_fails: bool = False
    # The number of recovery points that its effect records; a plain function cannot, in simulated time.
    marks: int = 0
    # Whether its key is refused after the retention.
    refused: bool = False
    max_run_seconds: float = 3600.0


class Work:
    """The effect, undo and reconcile hook of one call."""

    def __init__(
        self, world: World, process: Process, job: Job, kind: Effect, fingerprint: str, *, plain: bool
    ) -> None:
        self._world = world
        self._process = process
        self._job = job
        self._kind = kind
        self._fingerprint = fingerprint
        self._plain = plain

    def terms(self) -> Terms:
        job = self._job
        return Terms(
            effect=self._kind,
            undo=self._either(self._undo) if self._kind is Effect.COMPENSATABLE else None,
            reconcile=self._reconcile_either() if job.reconciled else None,
            not_done=(UndoFailed,) if job.undo_fails else (),
            max_run_seconds=job.max_run_seconds,
            after_retention="refuse" if job.refused else "run",
        )

    def effect(self) -> Callable[[], Any]:
        return self._either(self._effect)

    def _reconcile_either(self) -> Callable[[Entry], Any]:
        return lambda entry: self._either(functools.partial(self._reconcile, entry))()

    def _either(self, work: Callable[[Pause], Coroutine[Any, Any, Any]]) -> Callable[[], Any]:
        """Return the work as an `async def`, or as a `def` that blocks its thread."""
        if not self._plain:
            return lambda: work(asyncio.sleep)

        def plain() -> object:
            try:
                work(self._block).send(None)
            except StopIteration as stop:
                return stop.value
            raise AssertionError("a plain function does not wait")

        return plain

    async def _block(self, seconds: float) -> None:
        self._world.block(round(seconds * 1_000_000))

    async def _effect(self, pause: Pause) -> str:
        world, process, job = self._world, self._process, self._job
        large = LARGE if job.large else ""
        started = world.outside.enter(job.key, self._fingerprint, self._kind, current_claim().version, large)
        mood = self._mood()
        world.note(process, f"effect {started.number} of {job.key} v{started.version} begins ({mood.name.lower()})")
        process.point()
        if mood is Mood.NOT_DONE:
            started.did_nothing = True
            raise errors.NotDone("nothing was done")
        if mood is Mood.RAISES_BEFORE:
            raise EffectFailed("before")
        for number in range(0 if self._plain else job.marks):
            text = f"run {started.number}, {number}"
            await current_claim().recovery_point(text)
            if f'"{text}"' not in world.checker.of_call(job.key).marked:
                world.fail(f"{job.key}: {text} was to be recorded, and is not")
            process.point()
        await pause(self._span())
        if mood is Mood.STRAYS:
            world.at(world.rng.choice((1_000, 5_000_000, 50_000_000)), None, _late, world, started)
            raise EffectFailed("sent, and no answer")
        world.outside.act(started)
        world.note(process, f"effect {started.number} of {job.key} v{started.version} has happened")
        process.point()
        await pause(self._span())
        if mood is Mood.RAISES_AFTER:
            raise EffectFailed("after")
        return started.value

    async def _undo(self, pause: Pause) -> None:
        world, process, job = self._world, self._process, self._job
        process.point()
        await pause(self._span())
        if job.undo_fails and not world.at_rest and world.rng.random() < 0.3:
            world.note(process, f"undo of {job.key} fails")
            raise UndoFailed
        world.outside.undo(job.key)
        world.note(process, f"{job.key} is undone")
        process.point()

    async def _reconcile(self, entry: Entry, pause: Pause) -> Verdict:
        world, process, job = self._world, self._process, self._job
        process.point()
        await pause(self._span())
        verdict = world.outside.ask(job.key, entry.version, world.rng, decisive=False)
        world.note(process, f"the provider says of {job.key} v{entry.version}: {_word(verdict)}")
        process.point()
        return verdict

    def _mood(self) -> Mood:
        world, job = self._world, self._job
        if world.at_rest:
            return Mood.WELL
        if not job.moody or world.rng.random() < 0.5:
            return job.mood
        mood = world.rng.choice(tuple(Mood))
        # A request that arrives after its caller gave up is what irreversible effects are guarded against.
        return Mood.RAISES_AFTER if mood is Mood.STRAYS and self._kind is not Effect.IRREVERSIBLE else mood

    def _span(self) -> float:
        return self._world.rng.choice((0.0, 0.001, 0.3, 0.3 if self._plain else 4.0))


def _late(world: World, started: Any) -> None:
    try:
        world.outside.act(started)
    except errors.NotDone:
        world.note(None, f"effect {started.number} of {started.key} arrives and is refused")
    else:
        world.note(None, f"effect {started.number} of {started.key} happens after all")


async def ask(world: World, process: Process, job: Job, *, tries: int, plain: bool, results: dict[str, object]) -> None:
    """Call repeatedly, like a user who retries. The final result is stored in `results`."""
    rng = world.rng
    for _ in range(tries):
        kind, fingerprint = rng.choice(job.kinds), rng.choice(job.fingerprints)
        work = Work(world, process, job, kind, fingerprint, plain=plain)
        # A process may still repeat, after it thaws, what it learned before it froze.
        generation = 0 if process.frozen_until else world.checker.generation_now(job.key)
        try:
            value = await run(process.ledger, job.key, work.effect(), fingerprint=fingerprint, terms=work.terms())
        except (EffectFailed, UndoFailed, asyncio.CancelledError, KeyboardInterrupt) as error:
            world.note(process, f"{job.key}: {error!r}")
        except errors.OncewardError as error:
            world.note(process, f"{job.key}: {type(error).__name__}: {error}")
            if _is_final(world, job, error):
                results[job.key] = error
                return
        else:
            world.note(process, f"{job.key}: a caller is given {value[:12]}")
            world.outside.check_seen(job.key, fingerprint, value, generation)
            results[job.key] = value
            return
        try:
            await process.dispatcher.sleep(rng.choice((0.01, 0.5, 2.0)))
        except errors.StoreUnavailable:
            world.note(process, "wakes up after everyone lost patience")


def _is_final(world: World, job: Job, error: errors.OncewardError) -> bool:
    """Return whether a retry is useless, and check that this error is allowed."""
    match error:
        case errors.InDoubt():
            if world.gentle:
                world.fail(f"{job.key}: in doubt, though nothing went wrong")
            if Effect.IRREVERSIBLE not in job.kinds and not job.undo_fails:
                world.fail(f"{job.key}: in doubt, though it may be repeated")
            return True
        case errors.KeyReused():
            if len(job.fingerprints) == 1:
                world.fail(f"{job.key}: refused as another call, and there is none")
            return True
        case errors.Expired():
            if not job.refused:
                world.fail(f"{job.key}: refused after its retention, and nobody asked for that")
            return True
        case errors.OutcomeNotKept():
            if not world.checker.of_call(job.key).unkept:
                world.fail(f"{job.key}: a kept outcome is gone")
            return True
    if not isinstance(error, errors.Busy | errors.ClaimLost | errors.StoreUnavailable | errors.NotDone):
        world.fail(f"{job.key}: an unexpected {error!r}")
    return False


async def purge(process: Process) -> None:
    try:
        await process.ledger.purge()
    except errors.StoreUnavailable:
        return


async def surface_doubts(process: Process) -> None:
    """Do the work of the background purge besides purging."""
    try:
        await process.ledger.doubt_lapsed()
    except errors.StoreUnavailable:
        return


async def abandon(process: Process) -> None:
    """Abandon claims like an operator, without force, so that live holders keep theirs."""
    try:
        page = await process.ledger.scan(SCOPE, status="in_progress")
        for entry in page.entries:
            await process.ledger.abandon(SCOPE, entry.key, entry.version, note="took too long")
    except (errors.StoreUnavailable, asyncio.CancelledError, KeyboardInterrupt):
        return


async def settle_doubts(world: World, process: Process, jobs: dict[str, Job]) -> None:
    """Resolve doubts like an operator who knows what really happened."""
    try:
        page = await process.ledger.scan(status="in_doubt")
        for entry in page.entries:
            verdict = _judge(world, jobs[entry.key], entry)
            world.note(process, f"the operator says of {entry.key} v{entry.version}: {_word(verdict)}")
            if not isinstance(verdict, Open):
                await process.ledger.resolve(SCOPE, entry.key, entry.version, verdict, note="looked it up")
    except (errors.StoreUnavailable, asyncio.CancelledError, KeyboardInterrupt) as error:
        world.note(process, f"the operator gives up: {error!r}")


def _judge(world: World, job: Job, entry: Entry) -> Verdict:
    if Effect.COMPENSATABLE in job.kinds:
        world.outside.undo(job.key)
    return world.outside.ask(job.key, entry.version, world.rng, decisive=True)


def _word(verdict: Verdict) -> str:
    match verdict:
        case Committed():
            return "committed"
        case NotCommitted():
            return "not committed, and never will be"
        case Open():
            return verdict.value
