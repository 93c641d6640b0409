"""The contest: each round measures all contestants of a store in turn, so that all run under the same conditions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from bench.load import SCENARIOS, Scenario

Trips: TypeAlias = tuple[float, float]
"""Round trips to the store of a fresh and of a replayed call."""


class Unable(Exception):
    """The contestant cannot do this. The message is the reason and becomes a footnote."""


class Contestant(Protocol):
    """A library or baseline to measure. Only `warm` and `rate` may raise `Unable`."""

    @property
    def name(self) -> str: ...

    def warm(self) -> None:
        """Connect, and settle the keys that will be replayed."""
        ...

    def rate(self, scenario: Scenario, seconds: float) -> float:
        """Return the calls per second."""
        ...

    def close(self) -> None: ...


Key: TypeAlias = tuple[str, str, Hashable]
"""Store, contestant and scenario."""


@dataclass(slots=True)
class Figures:
    """Measured rates: one per round for each store, contestant and scenario, or the reason why it has none."""

    stores: dict[str, list[str]]
    rates: dict[Key, list[float]]
    unable: dict[Key, str]
    trips: dict[tuple[str, str], Trips]

    @classmethod
    def empty(cls) -> Figures:
        return cls({}, {}, {}, {})

    def median(self, store: str, name: str, scenario: Hashable) -> float | None:
        rates = self.rates.get((store, name, scenario))
        return statistics.median(rates) if rates else None

    def ratio(self, store: str, above: tuple[str, Hashable], below: tuple[str, Hashable]) -> float | None:
        """Return the median of the ratios of each round, whose two sides were measured within seconds of each other."""
        tops = self.rates.get((store, *above), [])
        bottoms = self.rates.get((store, *below), [])
        ratios = [top / bottom for top, bottom in zip(tops, bottoms, strict=False) if bottom]
        return statistics.median(ratios) if ratios else None

    def merge(self, other: Figures) -> None:
        self.stores |= other.stores
        self.rates |= other.rates
        self.unable |= other.unable
        self.trips |= other.trips


def compete(
    store: str,
    contestants: Sequence[Contestant],
    rounds: int,
    seconds: float,
    report: Callable[[str], None],
    scenarios: Sequence[Scenario] = SCENARIOS,
) -> Figures:
    """Measure all contestants in each round. The contestant that is first in one round is last in the next."""
    figures = Figures.empty()
    figures.stores[store] = [contestant.name for contestant in contestants]
    ready = [contestant for contestant in contestants if _warm(store, contestant, figures, scenarios)]
    for number in range(rounds):
        report(f"{store}: round {number + 1} of {rounds}")
        turn = number % len(ready) if ready else 0
        for scenario in scenarios:
            for contestant in ready[turn:] + ready[:turn]:
                _measure(store, contestant, scenario, seconds, figures)
    return figures


def _warm(store: str, contestant: Contestant, figures: Figures, scenarios: Sequence[Scenario]) -> bool:
    try:
        contestant.warm()
    except Unable as reason:
        figures.unable |= {(store, contestant.name, scenario): str(reason) for scenario in scenarios}
        return False
    return True


def _measure(store: str, contestant: Contestant, scenario: Scenario, seconds: float, figures: Figures) -> None:
    key = (store, contestant.name, scenario)
    if key in figures.unable:
        return
    try:
        figures.rates.setdefault(key, []).append(contestant.rate(scenario, seconds))
    except Unable as reason:
        figures.unable[key] = str(reason)
        figures.rates.pop(key, None)
