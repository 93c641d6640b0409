"""A process that uploads and runs gc, to be raced and killed: `python -m tests.faults.tasks.attachment_process ORDER …`.

die DATABASE BLOBS SPOOLS                   at each point of gc and of an upload, a fork that is killed there
die-and-collect DATABASE BLOBS SPOOLS       the same, with a complete gc and an audit after each
same DATABASE BLOBS SPOOLS SIZE COUNT       this many forks upload the same SIZE bytes concurrently
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn, cast

from tests.hub.tasks.attachment_store import RULES, SOUND, AttachmentStore
from tests.hub.tasks.race_injection import Act, InterceptedStore, at_statement, intercepted

from onceward.hub import tasks
from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.open import open_blobs
from onceward.hub.db.engine import open_database
from onceward.hub.tasks import NewTaskAttachment

Point = Callable[[AttachmentStore, bytes], None]

LONG_AGO = "2020-01-01T00:00:00.000000Z"
# A query of the orphan sweep only.
ORPHANS = "UNION SELECT blob_key FROM artifacts"


@contextmanager
def opened(database_url: str, blobs_url: str, temp_folder: str) -> Iterator[AttachmentStore]:
    with closing(open_database(database_url, pool_size=5)) as database:
        store = open_blobs(blobs_url, temp_folder=Path(temp_folder))
        yield AttachmentStore(database, store, database_url, blobs_url, Path(temp_folder))


def content_of(point: str) -> bytes:
    return point.encode() * 1000


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def _upload(
    attachment_store: AttachmentStore, content: bytes, *, written: bool = False, store: BlobStore | None = None
) -> None:
    with attachment_store.store.temp_file() as temp_file:
        temp_file.write(content)
        if written:
            die()
        temp_file.finish()
        if store is None:
            die()
        new = NewTaskAttachment("artifact")
        tasks.create_managed_attachment(attachment_store.database, store, "t1", temp_file, new, RULES)


def _upload_until(point_name: str) -> Point:
    return lambda attachment_store, content: _upload(
        attachment_store, content, store=intercepted(attachment_store.store, **{point_name: die})
    )


def _upload_until_commit(attachment_store: AttachmentStore, content: bytes) -> None:
    with at_statement(attachment_store.database, "INSERT INTO events", die):
        _upload(attachment_store, content, store=attachment_store.store)


def _collect_until(point_name: str) -> Point:
    def point(attachment_store: AttachmentStore, content: bytes) -> None:
        attachment_store.delete(attachment_store.attach(content).id)
        attachment_store.collect(store=intercepted(attachment_store.store, **{point_name: die}), orphan_seconds=3600)

    return point


def _collect_until_commit(attachment_store: AttachmentStore, content: bytes) -> None:
    attachment_store.delete(attachment_store.attach(content).id)
    with at_statement(attachment_store.database, "DELETE FROM blobs", die):
        attachment_store.collect(orphan_seconds=3600)


def _expire_until(words: str, point_name: str) -> Point:
    def point(attachment_store: AttachmentStore, content: bytes) -> None:
        attachment_store.attach(content, expires_at="2999-01-01")
        attachment_store.write(
            "UPDATE attachments SET created_at = :then, expires_at = :then WHERE expires_at > ''", then=LONG_AGO
        )
        with at_statement(attachment_store.database, words, die, point=point_name):
            attachment_store.collect(orphan_seconds=3600)

    return point


def _sweep_until(point_name: str) -> Point:
    """Die after the orphan sweep has read the rows: earlier steps are the same."""

    def point(attachment_store: AttachmentStore, content: bytes) -> None:
        _orphan(attachment_store, content)
        points: dict[str, Act] = {}
        with at_statement(attachment_store.database, ORPHANS, lambda: points.update({point_name: die})):
            attachment_store.collect(store=cast("BlobStore", InterceptedStore(attachment_store.store, points)))

    return point


def _sweep_until_found(attachment_store: AttachmentStore, content: bytes) -> None:
    _orphan(attachment_store, content)
    with at_statement(attachment_store.database, ORPHANS, die):
        attachment_store.collect()


def _orphan(attachment_store: AttachmentStore, content: bytes) -> None:
    with attachment_store.store.temp_file() as temp_file:
        temp_file.write(content)
        temp_file.finish()
        attachment_store.store.put(temp_file, "bl-orphan00")


def _collect_inside(method: str, step: str) -> Point:
    """Die right after the first such call inside the method; after the method if it makes no such call."""

    def arm() -> None:
        taken = getattr(os, step)

        def last(*arguments: object, **named: object) -> NoReturn:
            taken(*arguments, **named)
            die()

        setattr(os, step, last)

    def point(attachment_store: AttachmentStore, content: bytes) -> None:
        attachment_store.delete(attachment_store.attach(content).id)
        for number in range(2):
            (temporary_folder(attachment_store) / f"{number}.part").touch()
        attachment_store.collect(
            store=intercepted(attachment_store.store, **{f"before_{method}": arm, f"after_{method}": die})
        )

    return point


def temporary_folder(attachment_store: AttachmentStore) -> Path:
    return (
        attachment_store.temp_folder
        if attachment_store.store.backend == "s3"
        else attachment_store.blobs_folder / "tmp"
    )


def left_over(attachment_store: AttachmentStore) -> list[Path]:
    """Return the temporary files and the contents of the trash."""
    folders = [temporary_folder(attachment_store)]
    if attachment_store.store.backend != "s3":
        folders.append(attachment_store.blobs_folder / "trash")
    return [file for folder in folders for file in folder.iterdir()]


COLLECTIONS: dict[str, Point] = {
    # The first of all: later there is an owner.
    "owner linked": _collect_inside("owner", "link"),
    "expired deleted": _expire_until("DELETE FROM attachments", "after"),
    "expired deleted and committed": _expire_until("SELECT id, blob_key, size_bytes FROM blobs", "before"),
    "row deleted": _collect_until_commit,
    "row deleted and committed": _collect_until("before_discard"),
    "discarded": _collect_until("after_discard"),
    "collected": _collect_until("outside_lock"),
    "orphan found": _sweep_until_found,
    "orphan in the guard": _sweep_until("inside_lock"),
    "orphan discarded": _sweep_until("after_discard"),
    "orphans swept": _sweep_until("outside_lock"),
    "one temporary file removed": _collect_inside("sweep_temporary", "unlink"),
    "one blob of the trash removed": _collect_inside("empty_trash", "unlink"),
}
UPLOADS: dict[str, Point] = {
    "written": lambda attachment_store, content: _upload(attachment_store, content, written=True),
    "finished": _upload,
    "put": _upload_until("after_put"),
    "in the guard": _upload_until("inside_lock"),
    "ensured": _upload_until("after_ensure"),
    "inserted": _upload_until_commit,
    "committed": _upload_until("outside_lock"),
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
            with opened(*where) as attachment_store:
                broken = attachment_store.audit().broken
                attachment_store.collect()
                found = (
                    broken,
                    attachment_store.audit(),
                    len(attachment_store.keys()) - attachment_store.count("blobs"),
                    left_over(attachment_store),
                )
            if found != ([], SOUND, 0, []):
                sys.stderr.write(f"after {name!r}: {found}\n")
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"a later run did not clean up after {name!r}")


def _die_at(name: str, *where: str) -> None:
    if (child := os.fork()) == 0:
        with opened(*where) as attachment_store:
            POINTS[name](attachment_store, content_of(name))
        os._exit(0)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        sys.exit(f"it was not killed at {name!r}")


def run_same(database_url: str, blobs_url: str, temp_folder: str, size: str, count: str) -> None:
    waiting, go = os.pipe()
    children = []
    for _ in range(int(count)):
        if (child := os.fork()) == 0:
            os.close(go)
            with opened(database_url, blobs_url, temp_folder) as attachment_store:
                # Ends for all of them at once, when the last holder of the other end closes it.
                os.read(waiting, 1)
                attachment_store.attach(b"x" * int(size))
            os._exit(0)
        children.append(child)
    os.close(go)
    ended = [os.waitpid(child, 0)[1] for child in children]
    if any(ended):
        sys.exit("an upload failed")


if __name__ == "__main__":
    orders: dict[str, Callable[..., None]] = {"die": run_die, "die-and-collect": run_die_and_collect, "same": run_same}
    orders[sys.argv[1]](*sys.argv[2:])
