"""One scenario for each seed: processes, calls and faults; then a quiet period in which everything must end."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tests.simulation import jobs as work
from tests.simulation.faults import GENTLE, Fault, Script, Storm
from tests.simulation.jobs import Job
from tests.simulation.process import Process
from tests.simulation.report import Report
from tests.simulation.violation import Violation
from tests.simulation.world import World

from onceward import errors
from onceward.core.claim import SECOND
from onceward.ledger.terms import Effect

# No faults any more after this.
STORM = 12 * SECOND
# How often the doubts of the storm are settled until there must be no more.
ROUNDS = 4
LEASE_SECONDS = 3.0
RETAIN_SECONDS = (8.0, 60.0, 86_400.0)
WAIT_SECONDS = (0.5, 4.0, 10.0)


@dataclass(frozen=True, slots=True)
class Story:
    """Random choices that a seed makes in advance."""

    jobs: tuple[Job, ...]
    processes: int
    callers: int
    retain_seconds: float
    wait_seconds: float
    gentle: bool = False
    janitors: bool = True
    restarts: bool = True


@dataclass(frozen=True, slots=True)
class Focus:
    """A focus: only these faults, and every job changed in this way."""

    faults: tuple[Fault, ...]
    job: Mapping[str, object]


def simulate(seed: int, *, trace: bool = False, focus: Focus | None = None) -> Report:
    """Run one seed."""
    rng = random.Random(seed)
    luck = rng.random()
    if luck < 0.06:
        kinds: Sequence[Fault] = ()
    elif luck < 0.16:
        kinds = tuple(sorted(GENTLE))
    else:
        # Some seeds have all weathers, most have few: a rare pair of faults must meet without the others in between.
        kinds = [kind for kind in Fault if rng.random() < 0.35] or [rng.choice(tuple(Fault))]
    if focus is not None:
        kinds = focus.faults
    gentle = GENTLE.issuperset(kinds)
    jobs = tuple(_job(rng, number, gentle=gentle) for number in range(1, rng.randint(1, 3) + 1))
    story = Story(
        jobs=jobs if focus is None else tuple(replace(job, **focus.job) for job in jobs),  # type: ignore[arg-type]
        processes=rng.randint(3, 5),
        callers=rng.randint(4, 8),
        retain_seconds=rng.choice(RETAIN_SECONDS),
        wait_seconds=rng.choice(WAIT_SECONDS),
        gentle=gentle,
        restarts=rng.random() < 0.7,
    )
    world = World(rng, Storm(rng, kinds, rng.choice((6.0, 20.0, 60.0)), gentle=gentle), trace=trace)
    world.note(None, f"seed {seed}: {', '.join(kinds) or 'nothing'} may go wrong; {story}")
    return run_scenario(world, story, seed)


def replay(story: Story, script: Script) -> Report:
    """Run the same scenario with exactly these faults."""
    return run_scenario(World(random.Random(0), script), story, seed=0)


def run_scenario(world: World, story: Story, seed: int) -> Report:
    world.gentle = story.gentle
    try:
        _ScenarioRun(world, story).run()
    except Violation as violation:
        broken: str | None = str(violation)
    else:
        broken = None
    finally:
        for process in world.processes:
            # Close unfinished coroutines now, not in the garbage collector during another test.
            process.on_crash = None
            process.crash()
    return Report(seed, broken, tuple(world.trace or ()))


class _ScenarioRun:
    def __init__(self, world: World, story: Story) -> None:
        self._world = world
        self._story = story
        self._jobs = {job.key: job for job in story.jobs}

    def run(self) -> None:
        world = self._world
        processes = [self._process() for _ in range(self._story.processes)]
        for number in range(self._story.callers):
            self._ask(processes[number % len(processes)], world.rng.choice(self._story.jobs))
        if self._story.janitors:
            self._janitors(processes)
        world.run(STORM)
        world.faults.stop()
        world.at_rest = True
        world.note(None, "peace")
        self._everyone_gets_an_answer()

    def _everyone_gets_an_answer(self) -> None:
        """Check that every retrying caller ends with a value or `InDoubt`, and that each doubt can be resolved."""
        world = self._world
        # Requests that were given up long ago may still arrive and claim a key once more.
        for _ in range(ROUNDS):
            results = self._ask_all()
            for job in self._story.jobs:
                if job.key not in results:
                    world.fail(f"{job.key}: a caller that keeps asking gets no answer")
            doubts = [key for key, result in results.items() if isinstance(result, errors.InDoubt)]
            if not doubts:
                break
            operator = self._process()
            self._operate(operator)
            world.run()
        else:
            world.fail(f"{doubts[0]}: in doubt, and cannot be resolved")
        if world.gentle and not any(job.moody for job in self._story.jobs):
            world.outside.check_once()

    def _ask_all(self) -> dict[str, object]:
        world, results = self._world, dict[str, object]()
        process = self._process()
        for job in self._story.jobs:
            blocking = world.rng.random() < 0.5
            process.start(work.ask(world, process, job, tries=60, plain=blocking, results=results), blocking=blocking)
        world.run()
        if world.open_callers:
            world.fail("a caller waits forever")
        return results

    def _process(self) -> Process:
        process = Process(
            self._world,
            lease_seconds=LEASE_SECONDS,
            retain_seconds=self._story.retain_seconds,
            wait_seconds=self._story.wait_seconds,
            exact_clock=self._story.gentle,
        )
        if self._story.restarts:
            process.on_crash = self._restart
        return process

    def _restart(self, _crashed: Process) -> None:
        world = self._world
        if not world.at_rest and len(world.processes) < 9:
            world.at(world.rng.choice((10_000, SECOND, 5 * SECOND)), None, self._begin_again)

    def _begin_again(self) -> None:
        process = self._process()
        self._world.note(process, "is started in the place of another")
        self._ask(process, self._world.rng.choice(self._story.jobs))

    def _ask(self, process: Process, job: Job) -> None:
        world, rng = self._world, self._world.rng
        blocking = rng.random() < 0.4
        # A thread cannot await, and a plain function on a loop blocks all other tasks of the loop.
        plain = blocking or rng.random() < 0.2

        def begin() -> None:
            process.start(
                work.ask(world, process, job, tries=rng.randint(1, 4), plain=plain, results={}), blocking=blocking
            )

        process.at(rng.choice((0, 0, 2_000, SECOND, 4 * SECOND)), begin)

    def _janitors(self, processes: list[Process]) -> None:
        rng = self._world.rng
        for process in processes:
            if rng.random() < 0.3:
                process.at(rng.randrange(STORM), lambda one: one.start(work.purge(one), blocking=False), process)
            if rng.random() < 0.3:
                process.at(rng.randrange(STORM), self._operate, process)
            if rng.random() < 0.3:
                process.at(
                    rng.randrange(STORM), lambda one: one.start(work.surface_doubts(one), blocking=False), process
                )
            if rng.random() < 0.3:
                process.at(rng.randrange(STORM), lambda one: one.start(work.abandon(one), blocking=False), process)

    def _operate(self, process: Process) -> None:
        process.start(work.settle_doubts(self._world, process, self._jobs), blocking=self._world.rng.random() < 0.5)


def _job(rng: random.Random, number: int, *, gentle: bool) -> Job:
    kind = rng.choice(tuple(Effect))
    mixed = rng.random() < 0.12
    return Job(
        key=f"K{number}",
        kinds=(Effect.PURE, Effect.IRREVERSIBLE) if mixed else (kind,),
        fingerprints=("same", "other") if rng.random() < 0.15 else ("same",),
        reconciled=rng.random() < 0.4,
        large=rng.random() < 0.04,
        moody=not gentle and rng.random() < 0.5,
        undo_fails=not gentle and kind is Effect.COMPENSATABLE and not mixed and rng.random() < 0.3,
        marks=rng.choice((0, 0, 1, 2)),
        refused=rng.random() < 0.2,
        max_run_seconds=2.0 if not gentle and rng.random() < 0.1 else 3600.0,
    )
