"""Performance goals of the ledger, and whether a run reached them.

Goals are ratios, because absolute figures depend on the machine. The exception is a replay: it never waits for the disk,
so its ratio to commits would measure the disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench import names
from bench.contest import Figures
from bench.load import Mode, Scenario

FRESH_ONE = Scenario(Mode.FRESH, 1)
FRESH_MANY = Scenario(Mode.FRESH, 64)
REPLAY_ONE = Scenario(Mode.REPLAY, 1)

REPLAYS_PER_SECOND = 5_000


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal and its result. `found` is None if this run did not measure it; `close` means that little is missing."""

    what: str
    wanted: str
    found: str | None
    reached: bool | None
    close: bool = False

    @property
    def verdict(self) -> str:
        if self.reached is None:
            return "" if self.found else "not measured"
        return "reached" if self.reached else "close" if self.close else "**not reached**"


def judge(figures: Figures) -> list[Goal]:
    """Judge the goals. One caller uses the blocking API, as by hand and in DBOS; many are tasks of one event loop."""
    one, replayed, raw = (names.BLOCKING, FRESH_ONE), (names.BLOCKING, REPLAY_ONE), (names.BY_HAND, FRESH_ONE)
    rollback, bare = (names.BY_HAND_ROLLBACK, FRESH_ONE), (names.BY_HAND_LEDGER, FRESH_ONE)
    ours_many, ours_one = (names.AWAITED, FRESH_MANY), (names.AWAITED, FRESH_ONE)
    ratio = figures.ratio
    return [
        # The goal assumes a baseline of 800 calls/s: on our machines, SQLite's default mode (docs/decisions/0013).
        at_least(
            f"fresh, SQLite, one caller ÷ two commits by hand, SQLite's default mode ({_rate(figures, names.SQLITE, rollback)})",
            ratio(names.SQLITE, one, rollback),
            0.8,
        ),
        shown(
            f"the same ÷ two commits by hand in WAL mode, as in Onceward ({_rate(figures, names.SQLITE, raw)})",
            ratio(names.SQLITE, one, raw),
        ),
        shown(
            "the ledger's statements by hand, without Onceward's Python ÷ two commits by hand in WAL mode",
            ratio(names.SQLITE, bare, raw),
        ),
        shown(
            f"fresh, one caller ÷ two commits by hand, syncs slowed until by hand reaches {_rate(figures, names.SQLITE_SLOW, raw)}",
            ratio(names.SQLITE_SLOW, one, raw),
        ),
        at_least("fresh, SQLite, one caller ÷ DBOS", ratio(names.SQLITE, one, (names.DBOS, FRESH_ONE)), 5),
        at_least("fresh, SQLite, 64 callers ÷ one caller", ratio(names.SQLITE, ours_many, ours_one), 5),
        at_least("replays per second, SQLite, one caller", figures.median(names.SQLITE, *replayed), REPLAYS_PER_SECOND),
        at_least("replay, SQLite, one caller ÷ DBOS", ratio(names.SQLITE, replayed, (names.DBOS, REPLAY_ONE)), 10),
        at_least(
            "claim + settle, PostgreSQL, 64 callers ÷ one statement per call on one connection",
            ratio(names.POSTGRES, ours_many, (names.ONE_EACH, FRESH_MANY)),
            8,
        ),
        shown(
            "the same ÷ one statement per call on 16 connections (Onceward has one)",
            ratio(names.POSTGRES, ours_many, (names.ONE_EACH_POOLED, FRESH_MANY)),
        ),
        shown(
            "the same ÷ Onceward with a commit for each write: the gain from shared batches",
            ratio(names.POSTGRES, ours_many, (names.UNSHARED, FRESH_MANY)),
        ),
        *[_round_trips(store, figures) for store in (names.SQLITE, names.POSTGRES, names.REDIS_ALWAYS)],
    ]


def at_least(what: str, found: float | None, wanted: float, tolerance: float = 0.0) -> Goal:
    """Return a goal. A figure that misses it by at most this fraction is close."""
    if found is None:
        return Goal(what, f"≥ {_text(wanted)}", None, None)
    close = found >= wanted * (1 - tolerance)
    return Goal(what, f"≥ {_text(wanted)}", _found(found), found >= wanted, close)


def at_most(what: str, found: float | None, wanted: float, tolerance: float = 0.0) -> Goal:
    if found is None:
        return Goal(what, f"≤ {_text(wanted)}", None, None)
    close = found <= wanted * (1 + tolerance)
    return Goal(what, f"≤ {_text(wanted)}", _found(found), found <= wanted, close)


def _text(figure: float, small: str = "g") -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:{small}}"  # 100 and more are rates, not ratios


def _found(figure: float) -> str:
    return _text(figure, ".2f" if figure >= 0.1 else ".3f")


def _rate(figures: Figures, store: str, raw: tuple[str, Scenario]) -> str:
    found = figures.median(store, *raw)
    return "800/s" if found is None else f"{found:,.0f}/s"


def shown(what: str, found: float | None) -> Goal:
    return Goal(what, "", None if found is None else f"{found:.2f}", None)


def _round_trips(store: str, figures: Figures) -> Goal:
    found = figures.trips.get((store, names.BLOCKING))
    text = None if found is None else f"{found[0]:g} / {found[1]:g}"
    reached = None if found is None else found == (2, 1)
    return Goal(f"round trips, {store}, fresh / replay", "2 / 1", text, reached)
