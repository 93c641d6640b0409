"""DBOS: a workflow with the key as its id and the effect as its step, called from threads. Default durability.

On SQLite, DBOS uses the default rollback journal. With `wal` as the second argument, the file is switched to WAL first,
which has the same durability with fewer syncs.
"""

from __future__ import annotations

import sqlite3
import sys

from dbos import DBOS, SetWorkflowID

from bench.load import Effects, with_threads
from bench.peers.speak import Peer, serve


def make(url: str) -> Peer:
    if sys.argv[2:] == ["wal"]:
        db = sqlite3.connect(url.removeprefix("sqlite:///"))
        db.execute("PRAGMA journal_mode=WAL")
        db.close()
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    effects = Effects()

    @DBOS.step()
    def pay(amount: int) -> dict[str, object]:  # noqa: ARG001  # an argument, as every real effect has
        return effects()

    @DBOS.workflow()
    def paying(amount: int) -> dict[str, object]:
        return pay(amount)

    DBOS.launch()

    def call(key: str) -> object:
        with SetWorkflowID(key):
            return paying(10)

    return Peer(
        "dbos", call, lambda callers, seconds, name: with_threads(call, callers, seconds, name), effects, DBOS.destroy
    )


if __name__ == "__main__":
    serve(make)
