"""A process of its own that uploads and collects, to be raced and killed: `python -m tests.tasks.worker ORDER …`.

die DATABASE BLOBS SPOOLS                   at each point of an upload and of a collection, a fork that is killed there
same DATABASE BLOBS SPOOLS SIZE COUNT       so many forks upload the same SIZE bytes at once
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn

from tests.tasks.meddling import at_statement, meddled
from tests.tasks.vault import RULES, Vault

from onceward import tasks
from onceward.blobs import BlobStore
from onceward.blobs.open import open_blobs
from onceward.db.engine import open_database
from onceward.tasks import NewAttachment

Point = Callable[[Vault, bytes], None]


@contextmanager
def opened(database_url: str, blobs_url: str, spools: str) -> Iterator[Vault]:
    with closing(open_database(database_url, pool_size=5)) as database:
        store = open_blobs(blobs_url, spool_folder=Path(spools))
        yield Vault(database, store, database_url, blobs_url, Path(spools))


def content_of(point: str) -> bytes:
    return point.encode() * 1000


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def _upload(vault: Vault, content: bytes, *, written: bool = False, store: BlobStore | None = None) -> None:
    with vault.store.spool() as spool:
        spool.write(content)
        if written:
            die()
        spool.finish()
        if store is None:
            die()
        new = NewAttachment("artifact")
        tasks.create_managed_attachment(vault.database, store, "t1", spool, new, RULES)


def _upload_until(moment: str) -> Point:
    return lambda vault, content: _upload(vault, content, store=meddled(vault.store, **{moment: die}))


def _upload_until_commit(vault: Vault, content: bytes) -> None:
    with at_statement(vault.database, "INSERT INTO events", die):
        _upload(vault, content, store=vault.store)


def _collect_until(moment: str) -> Point:
    def point(vault: Vault, content: bytes) -> None:
        vault.delete(vault.attach(content).id)
        vault.collect(store=meddled(vault.store, **{moment: die}), orphan_seconds=3600)

    return point


def _collect_until_commit(vault: Vault, content: bytes) -> None:
    vault.delete(vault.attach(content).id)
    with at_statement(vault.database, "DELETE FROM blobs", die):
        vault.collect(orphan_seconds=3600)


UPLOADS: dict[str, Point] = {
    "written": lambda vault, content: _upload(vault, content, written=True),
    "finished": _upload,
    "put": _upload_until("after_put"),
    "in the guard": _upload_until("inside_guarded"),
    "ensured": _upload_until("after_ensure"),
    "inserted": _upload_until_commit,
    "committed": _upload_until("outside_guarded"),
}
COLLECTIONS: dict[str, Point] = {
    "row deleted": _collect_until_commit,
    "row deleted and committed": _collect_until("before_discard"),
    "discarded": _collect_until("after_discard"),
    "collected": _collect_until("outside_guarded"),
}


def run_die(*where: str) -> None:
    for name, point in {**UPLOADS, **COLLECTIONS}.items():
        if (child := os.fork()) == 0:
            with opened(*where) as vault:
                point(vault, content_of(name))
            os._exit(0)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            sys.exit(f"it was not killed at {name!r}")


def run_same(database_url: str, blobs_url: str, spools: str, size: str, count: str) -> None:
    waiting, go = os.pipe()
    children = []
    for _ in range(int(count)):
        if (child := os.fork()) == 0:
            os.close(go)
            with opened(database_url, blobs_url, spools) as vault:
                # Ends for all of them at once, when the last holder of the other end closes it.
                os.read(waiting, 1)
                vault.attach(b"x" * int(size))
            os._exit(0)
        children.append(child)
    os.close(go)
    ended = [os.waitpid(child, 0)[1] for child in children]
    if any(ended):
        sys.exit("an upload failed")


if __name__ == "__main__":
    orders: dict[str, Callable[..., None]] = {"die": run_die, "same": run_same}
    orders[sys.argv[1]](*sys.argv[2:])
