"""The overview: what waits for a decision, the counters, and the state of the hub."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from starlette.responses import Response

from onceward.hub.claims.claims import claim_json
from onceward.hub.console.claims.query import ClaimQuery
from onceward.hub.console.claims.redaction import redact_claim
from onceward.hub.console.claims.search import find_doubts, find_unfinished, near_the_end
from onceward.hub.console.console import Console
from onceward.hub.console.counter_history import CounterView
from onceward.hub.console.sparkline import Sparkline, sparkline
from onceward.hub.console.visit import Visit
from onceward.hub.web.metrics import live_workers
from onceward.ledger.internals import dispatcher_of

# The first few are enough here: the pages of doubts and operations have all.
_DOUBTS_SHOWN = 3
_CLAIMS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter of the overview."""

    title: str
    about: str
    view: CounterView
    line: Sparkline
    tone: str


_COUNTERS = (
    ("processing_started", "New", "first request with its key, ran", "plain"),
    ("duplicate_completed", "Replayed", "got the stored response again", "good"),
    ("duplicate_processing", "Busy", "came while the first one ran: 409", "plain"),
    ("fingerprint_mismatch", "Mismatched", "same key, another request: 422", "warn"),
    ("in_doubt", "Refused in doubt", "outcome unknown, not repeated: 409", "bad"),
    ("store_failure", "Store failures", "the ledger did not respond: 503", "bad"),
)


async def show(visit: Visit) -> Response:
    """Show the overview."""
    console = visit.console
    doubts = await find_doubts(console.ledger, ClaimQuery())
    unfinished = await find_unfinished(console.ledger)
    near = near_the_end(unfinished)
    return await visit.page(
        "overview.html",
        doubts=[
            {
                **redact_claim(visit, claim_json(console.ledger, one, doubts.now)),
                "asks": False,
                "recovery_point": None,
                "verdict": None,
            }
            for one in doubts.entries[:_DOUBTS_SHOWN]
        ],
        doubt_count=_bounded(len(doubts.entries), more=bool(doubts.after)),
        counters=counters(console, _COUNTERS),
        near=[redact_claim(visit, claim_json(console.ledger, one, unfinished.now)) for one in near[:_CLAIMS_SHOWN]],
        near_count=len(near),
        running=_bounded(len(unfinished.entries) - len(near), more=bool(unfinished.after)),
        purge_is_behind=dispatcher_of(console.ledger).purge_is_behind,
        workers=live_workers() if console.hub is not None else [],
        workers_wanted=0 if console.hub is None else console.hub.config.hub.workers,
        pid=os.getpid(),
        version=version("onceward"),
        python=platform.python_version(),
        namespace=console.ledger.namespace,
    )


def counters(console: Console, shown_counters: Sequence[tuple[str, str, str, str]]) -> list[Counter]:
    """Return counters of the hub, with their history; none for the ledger of another application.

    Args:
        console: The console.
        shown_counters: For each counter its name, title, explanation, and the tone that it has unless it is 0.

    Returns:
        The counters, in this order.
    """
    if console.history is None:
        return []
    views = console.history.views([name for name, *_ in shown_counters])
    return [
        Counter(title, about, views[name], sparkline(views[name].steps), tone if views[name].last_hour else "plain")
        for name, title, about, tone in shown_counters
    ]


def _bounded(count: int, *, more: bool) -> str:
    return f"{count:,}+" if more else f"{count:,}"
