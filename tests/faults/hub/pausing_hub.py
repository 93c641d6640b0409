"""A hub that pauses at a named point on request: `python -m tests.faults.hub.pausing_hub ORDERS …`.

ORDERS is the path of a file. While it contains the name of a point, a thread that reaches the point reports it and
stops, so that the process can be killed exactly there:

committed   the rows and the event are committed; no follower is notified, and the response is not in the ledger
settled     the response is in the ledger, and not yet sent
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onceward import Ledger
from onceward.hub.app import create_app
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, load
from onceward.hub.db import batch_thread
from onceward.hub.db.batch_thread import QueuedItem
from onceward.hub.db.lookup import Lookup
from onceward.hub.events.feed import Feed
from onceward.hub.server import serve as serving
from onceward.store.open import open_store
from onceward.testing import FaultyStore


def make(config: Config, orders: Path) -> Any:
    """The hub's own application with the pause points added."""

    def is_ordered(point: str) -> bool:
        return orders.is_file() and orders.read_text("utf-8") == point

    def report(point: str) -> None:
        sys.stdout.write(f"app: {os.getpid()} is at {point}\n")
        sys.stdout.flush()

    def reach(point: str) -> None:
        if is_ordered(point):
            report(point)
            threading.Event().wait()

    notify, wake = Feed.notify, batch_thread._wake

    def paused_notify(feed: Feed) -> None:
        if not is_ordered("committed"):
            notify(feed)

    def paused_wake(batch: Sequence[QueuedItem[Any]]) -> None:
        """Leave the callers of a committed batch waiting forever; the writer continues."""
        if isinstance(batch[0].work[0], Lookup) or not is_ordered("committed"):
            wake(batch)
            return
        for _ in batch:
            report("committed")

    # These three are all that is not the hub's own.
    setattr(Feed, "notify", paused_notify)  # noqa: B010  # not hidden: it is replaced
    setattr(batch_thread, "_wake", paused_wake)  # noqa: B010  # as above
    setattr(data_folder, "open_ledger", functools.partial(_open_ledger, reach))  # noqa: B010  # as above
    return create_app(config)


def _open_ledger(reach: Callable[[str], None], url: str, **options: Any) -> Ledger:
    store = FaultyStore(open_store(url))
    store.at("after-settle", functools.partial(reach, "settled"), sys.maxsize)
    return Ledger(store, **options)


if __name__ == "__main__":
    orders, *arguments = sys.argv[1:]
    flags = {("hub", flag[2:].replace("-", "_")): value for flag, value in zip(*[iter(arguments)] * 2, strict=True)}
    serving.serve(load(None, os.environ, flags), functools.partial(make, orders=Path(orders)))
