"""The simulated outside world: it counts effects, can refuse old versions, and can be queried."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceward.core.verdict import Committed, Final, NotCommitted, Open, Verdict
from onceward.errors import NotDone
from onceward.ledger.terms import Effect

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(slots=True)
class Run:
    """One run of an effect's code."""

    number: int
    key: str
    fingerprint: object
    kind: Effect
    version: int
    attempt: int
    generation: int
    value: str
    acted: bool = False
    undone: bool = False
    # Begun after its claim was lost; later callers could not know of it.
    late: bool = False
    did_nothing: bool = False


class Outside:
    """Counts what really happened, and knows what cannot have happened."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.runs: list[Run] = []
        self._by_value: dict[object, Run] = {}
        self._fences: dict[str, int] = {}

    def enter(self, key: str, fingerprint: object, kind: Effect, version: int, value: str) -> Run:
        """Begin an effect. An earlier attempt of a compensatable one must have been undone by now."""
        world = self._world
        claim = world.checker.of_call(key).claims.get(version)
        if claim is None:
            world.fail(f"{key}: an effect runs under version {version}, which nobody was ever given")
        generation, attempt, entered = claim
        number = len(self.runs) + 1
        late = version != world.checker.of_call(key).version
        run = Run(number, key, fingerprint, kind, version, attempt, generation, f"{key}#{number}{value}", late=late)
        if kind is Effect.COMPENSATABLE:
            # Only runs that began before this claim: a frozen one may begin later, and cannot be known.
            for other in self.runs[:entered]:
                mine = other.key == key and other.generation == generation and not other.late
                if mine and not other.undone and not other.did_nothing:
                    world.fail(f"{key}: attempt {attempt} runs, and attempt {other.attempt} was never undone")
        if any(other.version == version for other in self._of(key, generation)):
            world.fail(f"{key}: two effects run under version {version}")
        self.runs.append(run)
        self._by_value[run.value] = run
        return run

    def act(self, run: Run) -> None:
        """Have the effect, or refuse it because its version was fenced off."""
        if run.version <= self._fences.get(run.key, 0):
            run.did_nothing = True
            raise NotDone("this version was fenced off")
        for other in self._of(run.key, run.generation):
            # A repeatable attempt that was given up before may still come late; its class allows that.
            again = run.kind is Effect.IRREVERSIBLE or run.version > other.version
            if other.acted and other is not run and other.kind is Effect.IRREVERSIBLE and again:
                self._world.fail(f"{run.key}: the irreversible effect of version {other.version} happened again")
        run.acted = True

    def undo(self, key: str) -> None:
        """Undo the earlier runs of the key."""
        for run in self.runs:
            if run.key == key:
                run.undone = True

    def ask(self, key: str, version: int, rng: random.Random, *, decisive: bool) -> Verdict:
        """Answer as a provider about a key, up to this version: it says that nothing happened only if nothing can
        happen any more.
        """
        generation = self._world.checker.of_call(key).generation
        for run in self._of(key, generation):
            if run.version <= version and run.acted and not run.undone:
                return Committed(run.value) if decisive or rng.random() < 0.6 else Open.UNKNOWN
        if decisive or rng.random() < 0.4:
            self._fences[key] = max(version, self._fences.get(key, 0))
            for run in self._of(key, generation):
                run.did_nothing |= run.version <= version and not run.acted
            return NotCommitted(Final.FENCED)
        return rng.choice((Open.PENDING, Open.UNKNOWN))

    def check_recorded(self, key: str, value: object, generation: int) -> None:
        run = self._by_value.get(value)
        if run is None or run.key != key or not run.acted:
            self._world.fail(f"{key}: {_short(value)} was recorded, which no effect that happened has returned")
        if run.generation != generation:
            self._world.fail(f"{key}: {_short(value)} was recorded long after its time")

    def check_seen(self, key: str, fingerprint: object, value: object, generation: int) -> None:
        """Check a value that a caller got; `generation` is the one that was current when it called."""
        account, run = self._world.checker.of_call(key), self._by_value[value]
        # The caller that ran an effect still gets a result that could not be stored.
        recorded = account.outcomes.get(value, run.generation if run.version in account.unkept else None)
        if recorded is None:
            self._world.fail(f"{key}: a caller was given {_short(value)}, which was never recorded")
        if recorded < generation:
            self._world.fail(f"{key}: a caller was given {_short(value)}, whose time was over")
        if run.fingerprint != fingerprint:
            self._world.fail(f"{key}: a caller was given the outcome of another call")

    def check_once(self) -> None:
        """Check that nothing ran twice if no fault occurred."""
        seen: dict[tuple[str, int], Run] = {}
        for run in self.runs:
            if (run.key, run.generation) in seen:
                self._world.fail(f"{run.key}: nothing went wrong, and yet the effect ran twice")
            seen[run.key, run.generation] = run

    def _of(self, key: str, generation: int) -> list[Run]:
        return [run for run in self.runs if run.key == key and run.generation == generation]


def _short(value: object) -> str:
    return repr(value)[:16]
