"""The part `load` of `make bench`: the hub under load, on both databases, beside its peers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.hub import load_table, memory
from bench.hub.contest import CONNECTIONS, Contestant, compete
from bench.hub.grown import make_base
from bench.hub.load_table import EMPTY, HubLoad, size_name
from bench.hub.peers import peers
from bench.hub.rows import ROWS
from bench.hub.servers import Ground, HubData, bare_server, ground, hubs


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Sizes and durations of a run."""

    rounds: int = 5
    # Long enough that each of the connections sends many requests, also of the slowest row.
    seconds: float = 1.5
    connections: int = CONNECTIONS
    warm_up: int = 10_000
    requests: int = 100_000
    # A hub that has served all rows has a larger heap, in which growth would not show.
    fresh_hub_for_memory: bool = True
    workers: tuple[int, ...] = (1, 2)
    # Rows in each table of a grown hub; empty leaves the growth out.
    grown: tuple[int, ...] = ()


def measure(plan: LoadPlan, stores: Sequence[str], python: Path | None, report: Callable[[str], None]) -> str:
    """Measure everything, and return the tables."""
    load = HubLoad(sizes=plan.grown)
    for store in stores:
        with ground(store) as on:
            _measure_contest(load, store, on, plan, python, functools.partial(_report, report, f"{store}, load"))
        if plan.grown:
            with ground(store) as on:
                _measure_growth(load, store, on, plan, functools.partial(_report, report, f"{store}, growth"))
    return load_table.render(load, connections=plan.connections, rounds=plan.rounds, seconds=plan.seconds)


def _measure_contest(
    load: HubLoad, store: str, on: Ground, plan: LoadPlan, python: Path | None, report: Callable[[str], None]
) -> None:
    with ExitStack() as stack:
        data = [
            HubData(load_table.HUBS[workers - 1], on.folder / f"hub-{workers}", on.database(), workers)
            for workers in plan.workers
        ]
        servers = stack.enter_context(hubs(on, data))
        contestants: list[Contestant] = [*servers]
        if python is not None:
            others, versions = stack.enter_context(peers(on, python))
            contestants += others
            load.versions |= versions
        load.contests[store] = compete(
            stack.enter_context(bare_server()),
            contestants,
            ROWS,
            rounds=plan.rounds,
            seconds=plan.seconds,
            connections=plan.connections,
            report=report,
        )
        if not plan.fresh_hub_for_memory:
            load.memory[store] = memory.measure(servers[0], plan.warm_up, plan.requests, plan.connections)
    if plan.fresh_hub_for_memory:
        report(f"memory, {plan.requests:,} requests")
        with hubs(on, [HubData("memory", on.folder / "hub-memory", on.database())]) as (server,):
            load.memory[store] = memory.measure(server, plan.warm_up, plan.requests, plan.connections)


def _measure_growth(load: HubLoad, store: str, on: Ground, plan: LoadPlan, report: Callable[[str], None]) -> None:
    report("filling the tables")
    base = make_base(on)
    data = [base.copy(EMPTY, 0), *(base.copy(size_name(size), size) for size in plan.grown)]
    with hubs(on, data) as servers, bare_server() as bare:
        load.grown[store] = compete(
            bare,
            servers,
            ROWS,
            rounds=plan.rounds,
            seconds=plan.seconds,
            connections=plan.connections,
            report=report,
        )


def _report(report: Callable[[str], None], where: str, text: str) -> None:
    report(f"{where}: {text}")
