"""Table of the middleware, and the verdicts on its goals."""

from __future__ import annotations

from bench import names
from bench.contest import Figures
from bench.goals import Goal, at_least, shown
from bench.http.load import REPLAY_KEYS, Mode
from bench.table import Notes, cell, goal_rows, heading, peers_text

_ABOUT = """\
Requests per second on one uvicorn worker (httptools, asyncio, no access log) with {connections} connections, each of which waits for
its response: the median of {rounds} rounds of {seconds:g} s. In brackets: the ratio to the same application without the library,
which gets the same requests right before and after, as the median of the ratios of each round. The load comes from a
separate process. All responses are checked: the status, the mark of a replay, and the number of runs of the handler.

* **FastAPI**: a route that parses a JSON body into a model and returns a small dict. Every request carries a token.
  **ASGI function**: the same as one function without a framework. *A dict by hand* is the minimal cost of a replay: a
  fingerprint and a dict in the process, without a store.
* **fresh**: a random key for each request. **replay**: {replay_keys} completed keys for each connection. **one key**: all connections
  replay the same key. **no key**: the library is installed but not used by the request.
* **Peers**: released versions in a separate environment, set up as in their manuals, each on a store that it supports:
  fastapi-idempotency does not support Redis, the others do not support SQLite. {peers}.
  Powertools runs its function in the event loop, which was faster than in threads. Its check of the payload is off,
  because on Redis it refuses every replay.
* **The server** and the framework are the same for all: {server}.
"""
_PAIRS = {
    names.MIDDLEWARE: names.BARE,
    names.PLAIN_MIDDLEWARE: names.PLAIN_BARE,
    names.PLAIN_DICT: names.PLAIN_BARE,
    names.PLAIN_BARE: names.PLAIN_BARE,
}


def render(
    figures: Figures,
    versions: dict[str, str],
    server: dict[str, str],
    *,
    connections: int,
    rounds: int,
    seconds: float,
) -> str:
    about = _ABOUT.format(
        connections=connections,
        replay_keys=REPLAY_KEYS,
        rounds=rounds,
        seconds=seconds,
        peers=peers_text(versions),
        server=peers_text(server),
    )
    notes = Notes("h")
    rows = heading(["store", "contestant"], [str(mode) for mode in Mode])
    for store, contestants in figures.stores.items():
        rows += [_row(figures, store, name, notes) for name in contestants]
    return "\n".join(["# Cost of the middleware", "", about, *rows, "", *notes.lines(), *goal_rows(judge(figures)), ""])


def _row(figures: Figures, store: str, name: str, notes: Notes) -> str:
    bare = _PAIRS.get(name, names.BARE)
    cells = [cell(figures, store, (name, mode), (bare, mode), notes) for mode in Mode]
    text = f"**{name}**" if name in {names.MIDDLEWARE, names.PLAIN_MIDDLEWARE} else name
    return f"| {store} | {text} | {' | '.join(cells)} |"


def judge(figures: Figures) -> list[Goal]:
    return [goal for store in names.HTTP_STORES for goal in _judge_store(figures, store)]


def _judge_store(figures: Figures, store: str) -> list[Goal]:
    def to_bare(mode: Mode) -> float | None:
        return figures.ratio(store, (names.MIDDLEWARE, mode), (names.BARE, mode))

    return [
        at_least(f"replay ÷ the route alone, {store}", to_bare(Mode.REPLAY), 0.8),
        at_least(f"fresh ÷ the route alone, {store}", to_bare(Mode.FRESH), 0.5),
        at_least(f"no key ÷ the route alone, {store}", to_bare(Mode.NO_KEY), 0.97),
        *[_to_best_peer(figures, store, mode) for mode in (Mode.REPLAY, Mode.FRESH)],
        shown(
            f"replay ÷ the ASGI function alone, {store}",
            figures.ratio(store, (names.PLAIN_MIDDLEWARE, Mode.REPLAY), (names.PLAIN_BARE, Mode.REPLAY)),
        ),
    ]


def _to_best_peer(figures: Figures, store: str, mode: Mode) -> Goal:
    """Compare with the fastest peer: being ahead of it means being ahead of all."""
    ratios = {peer: figures.ratio(store, (names.MIDDLEWARE, mode), (peer, mode)) for peer in names.HTTP_PEERS}
    found = {peer: ratio for peer, ratio in ratios.items() if ratio is not None}
    if not found:
        return at_least(f"{mode} ÷ the fastest peer, {store}", None, 1)
    peer = min(found, key=lambda name: found[name])
    return at_least(f"{mode} ÷ the fastest peer ({peer.removeprefix('FastAPI, ')}), {store}", found[peer], 1)
