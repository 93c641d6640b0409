"""The middleware in the simulated world: its own code, on a loop, a store and a network that fail by a seed.

`python -m tests.simulation.http_scenario --seeds 2000` runs many, `--seed N --trace` shows one.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from dataclasses import dataclass

from tests.simulation.faults import Fault, Storm
from tests.simulation.http_site import KEYS, Site
from tests.simulation.process import Process
from tests.simulation.report import Report
from tests.simulation.violation import Violation
from tests.simulation.world import World

from onceward.core.claim import SECOND

# No faults any more after this.
STORM = 15 * SECOND
LEASE_SECONDS = 3.0
# Beyond every jump of the clock: what is recorded here stays.
RETAIN_SECONDS = 50 * 365 * 86_400.0
PROCESSES_MAX = 9


def simulate(seed: int, *, trace: bool = False) -> Report:
    """Run one seed."""
    rng = random.Random(seed)
    kinds = [kind for kind in Fault if rng.random() < 0.35]
    world = World(rng, Storm(rng, kinds, rng.choice((6.0, 20.0, 60.0)), gentle=False), trace=trace)
    world.note(None, f"seed {seed}: {', '.join(kinds) or 'nothing'} may go wrong")
    try:
        HttpScenario(world).run()
    except Violation as violation:
        broken: str | None = str(violation)
    else:
        broken = None
    finally:
        for process in world.processes:
            process.on_crash = None
            process.crash()
    return Report(seed, broken, tuple(world.trace or ()))


@dataclass
class HttpScenario:
    """Clients send requests during faults; after the faults, all of them must get the same response."""

    world: World

    def run(self) -> None:
        world = self.world
        site = Site(world)
        for process in [self._process() for _ in range(world.rng.randint(2, 4))]:
            for _ in range(world.rng.randint(1, 3)):
                site.ask(process, world.rng.choice(KEYS), tries=world.rng.randint(1, 4))
        self._site = site
        world.run(STORM)
        world.faults.stop()
        world.at_rest = True
        world.note(None, "peace")
        last = self._process()
        for key in KEYS:
            site.ask(last, key, tries=100)
        world.run()
        if world.open_callers:
            world.fail("a caller waits forever")
        site.check_end()

    def _process(self) -> Process:
        process = Process(
            self.world,
            lease_seconds=LEASE_SECONDS,
            retain_seconds=RETAIN_SECONDS,
            wait_seconds=0.0,
            exact_clock=self.world.rng.random() < 0.5,
        )
        process.on_crash = self._restart
        return process

    def _restart(self, _crashed: Process) -> None:
        world = self.world
        if not world.at_rest and len(world.processes) < PROCESSES_MAX:
            world.at(world.rng.choice((10_000, SECOND, 4 * SECOND)), None, self._begin_again)

    def _begin_again(self) -> None:
        process = self._process()
        self.world.note(process, "is started in the place of another")
        self._site.ask(process, self.world.rng.choice(KEYS), tries=3)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.http_scenario", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    logging.disable()  # the logs of the middleware during faults do not matter
    broken = 0
    for seed in range(options.seeds) if options.seed is None else [options.seed]:
        report = simulate(seed, trace=options.trace)
        sys.stdout.writelines(f"{line}\n" for line in report.trace)
        if report.broken is not None:
            broken += 1
            sys.stdout.write(f"seed {seed}: {report.broken}\n")
    sys.stdout.write(f"{broken} broken\n")
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
