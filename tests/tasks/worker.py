"""A process of its own that uploads and collects, to be raced and killed: `python -m tests.tasks.worker ORDER …`.

die DATABASE BLOBS SPOOLS                   at each point of a collection and of an upload, a fork that is killed there
die-and-collect DATABASE BLOBS SPOOLS       the same, with a whole collection after each, and a look at what it leaves
same DATABASE BLOBS SPOOLS SIZE COUNT       so many forks upload the same SIZE bytes at once
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn, cast

from tests.tasks.meddling import Act, Meddling, at_statement, meddled
from tests.tasks.vault import RULES, SOUND, Vault

from onceward import tasks
from onceward.blobs import BlobStore
from onceward.blobs.open import open_blobs
from onceward.db.engine import open_database
from onceward.tasks import NewAttachment

Point = Callable[[Vault, bytes], None]

LONG_AGO = "2020-01-01T00:00:00.000000Z"
# What only the sweep for orphans asks.
ORPHANS = "UNION SELECT blob_key FROM artifacts"


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


def _expire_until(words: str, moment: str) -> Point:
    def point(vault: Vault, content: bytes) -> None:
        vault.attach(content, expires_at="2999-01-01")
        vault.write(
            "UPDATE attachments SET created_at = :then, expires_at = :then WHERE expires_at > ''", then=LONG_AGO
        )
        with at_statement(vault.database, words, die, moment=moment):
            vault.collect(orphan_seconds=3600)

    return point


def _sweep_until(moment: str) -> Point:
    """Not before the sweep for orphans has looked for rows: what comes earlier takes the same steps."""

    def point(vault: Vault, content: bytes) -> None:
        _orphan(vault, content)
        moments: dict[str, Act] = {}
        with at_statement(vault.database, ORPHANS, lambda: moments.update({moment: die})):
            vault.collect(store=cast("BlobStore", Meddling(vault.store, moments)))

    return point


def _sweep_until_found(vault: Vault, content: bytes) -> None:
    _orphan(vault, content)
    with at_statement(vault.database, ORPHANS, die):
        vault.collect()


def _orphan(vault: Vault, content: bytes) -> None:
    with vault.store.spool() as spool:
        spool.write(content)
        spool.finish()
        vault.store.put(spool, "bl-orphan00")


def _collect_inside(method: str, step: str) -> Point:
    """Right after the first such step that the method takes on the disk; after the method where it takes none."""

    def arm() -> None:
        taken = getattr(os, step)

        def last(*arguments: object, **named: object) -> NoReturn:
            taken(*arguments, **named)
            die()

        setattr(os, step, last)

    def point(vault: Vault, content: bytes) -> None:
        vault.delete(vault.attach(content).id)
        for number in range(2):
            (temporary_folder(vault) / f"{number}.part").touch()
        vault.collect(store=meddled(vault.store, **{f"before_{method}": arm, f"after_{method}": die}))

    return point


def temporary_folder(vault: Vault) -> Path:
    return vault.spools if vault.store.backend == "s3" else vault.blobs_folder / "tmp"


def left_over(vault: Vault) -> list[Path]:
    """Temporary files, and what lies in the trash."""
    folders = [temporary_folder(vault)]
    if vault.store.backend != "s3":
        folders.append(vault.blobs_folder / "trash")
    return [file for folder in folders for file in folder.iterdir()]


COLLECTIONS: dict[str, Point] = {
    # The first of all: later there is an owner.
    "owner linked": _collect_inside("owner", "link"),
    "expired deleted": _expire_until("DELETE FROM attachments", "after"),
    "expired deleted and committed": _expire_until("SELECT id, blob_key, size_bytes FROM blobs", "before"),
    "row deleted": _collect_until_commit,
    "row deleted and committed": _collect_until("before_discard"),
    "discarded": _collect_until("after_discard"),
    "collected": _collect_until("outside_guarded"),
    "orphan found": _sweep_until_found,
    "orphan in the guard": _sweep_until("inside_guarded"),
    "orphan discarded": _sweep_until("after_discard"),
    "orphans swept": _sweep_until("outside_guarded"),
    "one temporary file removed": _collect_inside("sweep_temporary", "unlink"),
    "one blob of the trash removed": _collect_inside("empty_trash", "unlink"),
}
UPLOADS: dict[str, Point] = {
    "written": lambda vault, content: _upload(vault, content, written=True),
    "finished": _upload,
    "put": _upload_until("after_put"),
    "in the guard": _upload_until("inside_guarded"),
    "ensured": _upload_until("after_ensure"),
    "inserted": _upload_until_commit,
    "committed": _upload_until("outside_guarded"),
}
POINTS = {**COLLECTIONS, **UPLOADS}


def run_die(*where: str) -> None:
    for name in POINTS:
        _die_at(name, *where)


def run_die_and_collect(*where: str) -> None:
    for name in POINTS:
        _die_at(name, *where)
        # In a process of its own: the children inherit no connections.
        if (child := os.fork()) == 0:
            with opened(*where) as vault:
                broken = vault.audit().broken
                vault.collect()
                found = (broken, vault.audit(), len(vault.keys()) - vault.count("blobs"), left_over(vault))
            if found != ([], SOUND, 0, []):
                sys.stderr.write(f"after {name!r}: {found}\n")
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"a later run did not clean up after {name!r}")


def _die_at(name: str, *where: str) -> None:
    if (child := os.fork()) == 0:
        with opened(*where) as vault:
            POINTS[name](vault, content_of(name))
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
    orders: dict[str, Callable[..., None]] = {"die": run_die, "die-and-collect": run_die_and_collect, "same": run_same}
    orders[sys.argv[1]](*sys.argv[2:])
