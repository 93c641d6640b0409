"""Tables of the hub under load, and the verdicts on its goals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bench import names
from bench.goals import Goal, at_least, at_most, shown
from bench.hub.contest import BARE, LoadFigures, Round, Summary
from bench.hub.memory import Memory
from bench.hub.peers import DBOS, DBOS_WAL, POCKETBASE
from bench.hub.rows import BARE_GET, BARE_POST, CHAT, DUPLICATE, HEALTH, INSERT, NEW, NEW_KEYED, ROWS, TITLES, UPLOAD
from bench.table import Notes, goal_rows, heading, peers_text

HUBS = (names.HUB_ONE, names.HUB_TWO)
EMPTY = "empty"
# Multiples of the bare route.
RATES = {
    NEW: {names.SQLITE: 0.33, names.POSTGRES: 0.27},
    NEW_KEYED: {names.SQLITE: 0.2, names.POSTGRES: 0.15},
    DUPLICATE: {names.SQLITE: 0.5, names.POSTGRES: 0.33},
    CHAT: {names.SQLITE: 0.08, names.POSTGRES: 0.04},
    INSERT: {names.SQLITE: 0.28, names.POSTGRES: 0.2},
    UPLOAD: {names.SQLITE: 0.08, names.POSTGRES: 0.06},
    HEALTH: {names.SQLITE: 0.65},
}
SPREAD_MAX = 8
SLOWEST_SECONDS_MAX = 1
# CPU time per request with two workers, as a multiple of one worker: two cores cannot show scaling.
TWO_WORKERS_CPU_MAX = 1.15
POCKETBASE_RATES = {NEW: 0.45, DUPLICATE: 0.65}
DBOS_RATE = 3
GROWN_RATE = 0.9
MEMORY_MAX = 1.05
# A goal missed by up to a tenth is close enough if a profile shows the ceiling.
TOLERANCE = 0.1

_TITLES = {**TITLES, BARE_POST: "POST, the JSON of an attachment as a model", BARE_GET: "GET"}
_ABOUT = """\
{connections} keep-alive connections, each of which waits for its response, to `onceward serve` with the durability of its default
settings: every commit is synced. Medians of {rounds} rounds of {seconds:g} s, in which all servers take turns. The load comes from a
separate process on the same machine. All responses are checked: the status, whether the request was new or a duplicate,
and that the response belongs to its request.

* **÷ bare**: the ratio to a bare FastAPI route on the same uvicorn, httptools and event loop, measured right before and
  after. The POST route takes the JSON of an attachment as a model and returns a small dict; `/healthz` is compared with a
  GET.
* **p50**, **p99**: milliseconds of a request. **Slowest**: the slowest request of all rounds.
* **CPU**: microseconds per request of all processes of the server, and of the processes of PostgreSQL.
* **Turns**: one session for each connection, and a brain that answers at once.
* **Peers**: {peers}. PocketBase has a collection
  with the same fields and a unique index. Its SQLite has `synchronous=NORMAL`, which syncs only at checkpoints. DBOS runs
  a workflow with one step for each call, from {connections} threads of its process, without HTTP.
"""


@dataclass(slots=True)
class HubLoad:
    """Figures by database, empty for parts that a run left out. `grown` has a contestant for each number of rows."""

    contests: dict[str, LoadFigures] = field(default_factory=dict)
    grown: dict[str, LoadFigures] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    memory: dict[str, Memory] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def size_name(count: int) -> str:
    """Return the name of a hub with this many rows: 10⁴, or the number if it is not a power of ten."""
    exponent = len(str(count)) - 1
    if count != 10**exponent:
        return f"{count:,}"
    return "10" + str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def render(load: HubLoad, *, connections: int, rounds: int, seconds: float) -> str:
    notes = Notes("l")
    about = _ABOUT.format(connections=connections, rounds=rounds, seconds=seconds, peers=peers_text(load.versions))
    figures = ["per second", "÷ bare", "p50", "p99", "p99 ÷ p50", "slowest", "CPU", "CPU, database"]
    rows = heading(["database", "server", "route"], figures)
    for store, found in load.contests.items():
        rows += _rows(store, found, notes)
    parts = ["# The hub under load", "", about, *rows, ""]
    if load.grown:
        parts += [*_grown(load), ""]
    if load.memory:
        parts += [*_memory(load), ""]
    return "\n".join([*parts, *notes.lines(), *goal_rows(judge(load)), ""])


def _rows(store: str, figures: LoadFigures, notes: Notes) -> Iterator[str]:
    there = {*figures.rounds, *figures.unable}
    order = [*HUBS, POCKETBASE, DBOS, DBOS_WAL, BARE]
    for name, row in sorted(there, key=lambda one: (order.index(one[0]), [*_TITLES].index(one[1]))):
        summary = figures.summary(name, row)
        cells = [notes.dash(figures.unable[name, row]), *[""] * 7] if summary is None else _cells(summary)
        server = f"**{name}**" if name in HUBS else name
        yield f"| {store} | {server} | {_TITLES[row]} | {' | '.join(cells)} |"


def _cells(summary: Summary) -> list[str]:
    database = summary.database_cpu
    return [
        f"{summary.rate:,.0f}",
        "" if summary.ratio is None else f"{summary.ratio:.3f}",
        _figure(summary.p50 * 1e3, ".1f"),
        _figure(summary.p99 * 1e3, ".1f"),
        _figure(summary.spread, ".1f"),
        _figure(summary.slowest * 1e3, ",.0f"),
        _figure(summary.cpu * 1e6, ",.0f"),
        _figure(database * 1e6, ",.0f") if database else "",
    ]


def _figure(figure: float, form: str) -> str:
    return "" if math.isnan(figure) else f"{figure:{form}}"


def _grown(load: HubLoad) -> Iterator[str]:
    yield "Rates with this many attachments, events, turns, entries and files, as a multiple of the empty hub:"
    yield ""
    yield from heading(["database", "route"], [size_name(size) for size in load.sizes])
    for store, figures in load.grown.items():
        for row in ROWS:
            ratios = [figures.ratio(row, size_name(size), EMPTY, _rate) for size in load.sizes]
            if any(ratio is not None for ratio in ratios):
                cells = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
                yield f"| {store} | {_TITLES[row]} | {' | '.join(cells)} |"


def _memory(load: HubLoad) -> Iterator[str]:
    yield from heading(["database", "memory of a hub, new and duplicate attachments"], ["before", "after"])
    for store, memory in load.memory.items():
        before, after = (f"{size / 2**20:,.1f} MiB" for size in (memory.before, memory.after))
        yield f"| {store} | {memory.requests:,} requests | {before} | {after} |"


def _rate(one: Round) -> float:
    return one.rate


def _cpu(one: Round) -> float:
    return one.cpu


def judge(load: HubLoad) -> list[Goal]:
    return [goal for store in names.DATABASES for goal in _judge_store(load, store)]


def _judge_store(load: HubLoad, store: str) -> Iterator[Goal]:
    figures = load.contests.get(store, LoadFigures())
    for row, wanted in RATES.items():
        if store in wanted:
            summary = figures.summary(names.HUB_ONE, row)
            ratio = None if summary is None else summary.ratio
            yield at_least(f"{_TITLES[row]} ÷ bare route, {store}", ratio, wanted[store], TOLERANCE)
    row, spread = _worst(figures, lambda summary: summary.spread)
    yield at_most(f"p99 ÷ p50, the worst row{row}, {store}", spread, SPREAD_MAX, TOLERANCE)
    row, slowest = _worst(figures, lambda summary: summary.slowest)
    if store == names.SQLITE:
        yield at_most(f"seconds of the slowest request{row}, {store}", slowest, SLOWEST_SECONDS_MAX, TOLERANCE)
    else:
        yield shown(f"seconds of the slowest request{row}, {store}", slowest)
    row, cpu = _extreme(max, lambda row: figures.ratio(row, names.HUB_TWO, names.HUB_ONE, _cpu))
    yield at_most(
        f"CPU per request, two workers ÷ one, the worst row{row}, {store}", cpu, TWO_WORKERS_CPU_MAX, TOLERANCE
    )
    if store == names.SQLITE:
        for row, rate in POCKETBASE_RATES.items():
            ratio = figures.ratio(row, names.HUB_ONE, POCKETBASE, _rate)
            yield at_least(f"{_TITLES[row]} ÷ {POCKETBASE}, {store}", ratio, rate, TOLERANCE)
    to_dbos = figures.ratio(CHAT, names.HUB_ONE, DBOS, _rate)
    yield at_least(f"a turn ÷ {DBOS}, {store}", to_dbos, DBOS_RATE, TOLERANCE)
    if store == names.SQLITE:
        yield shown(f"a turn ÷ {DBOS_WAL}, {store}", figures.ratio(CHAT, names.HUB_ONE, DBOS_WAL, _rate))
    yield _judge_growth(load, store)
    memory = load.memory.get(store)
    ratio = None if memory is None else memory.after / memory.before
    yield at_most(f"memory after many requests ÷ before, {store}", ratio, MEMORY_MAX)


def _judge_growth(load: HubLoad, store: str) -> Goal:
    size = size_name(load.sizes[-1]) if load.sizes else "many"
    figures = load.grown.get(store, LoadFigures())
    row, ratio = _extreme(min, lambda row: figures.ratio(row, size, EMPTY, _rate))
    return at_least(f"rate with {size} rows ÷ empty, the worst row{row}, {store}", ratio, GROWN_RATE, TOLERANCE)


def _worst(figures: LoadFigures, of: Callable[[Summary], float]) -> tuple[str, float | None]:
    """Return the largest figure of all rows of the hubs, after the words that say which row it is."""
    found = [
        (of(summary), f" ({_TITLES[row]}, {name.partition(', ')[2]})")
        for name, row in figures.rounds
        if name in HUBS and (summary := figures.summary(name, row)) is not None
    ]
    figure, row = max(found, default=(None, ""))
    return row, figure


def _extreme(
    pick: Callable[..., tuple[float | None, str]], of: Callable[[str], float | None]
) -> tuple[str, float | None]:
    """Return the figure of one row, after the words that say which row it is. `pick` is `min` or `max`."""
    found = [(figure, f" ({_TITLES[row]})") for row in ROWS if (figure := of(row)) is not None]
    figure, row = pick(found, default=(None, ""))
    return row, figure
