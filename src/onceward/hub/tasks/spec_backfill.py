"""Backfill of spec attachments: one attachment for each task's `spec_id`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from sqlalchemy import text

from onceward.errors import InvalidInput, NotFound
from onceward.hub.db.engine import Database
from onceward.hub.db.request_key import RequestKey, request_key
from onceward.hub.tasks.link import create_link_attachment
from onceward.hub.tasks.validation import TITLE_BYTES_MAX, NewTaskAttachment
from onceward.hub.web_url import is_web_url

_PAGE_SIZE = 200
_COUNT = text("SELECT count(*) FROM tasks WHERE spec_id IS NOT NULL")
_PAGE = text("SELECT id, spec_id FROM tasks WHERE spec_id IS NOT NULL AND id > :after ORDER BY id LIMIT :limit")


@dataclass(frozen=True, slots=True)
class Backfilled:
    task_count: int
    added_count: int
    skipped_count: int
    failed: tuple[tuple[str, str], ...]

    def json(self) -> dict[str, object]:
        return asdict(self)


def spec_total(database: Database) -> int:
    """Return the number of tasks with a `spec_id`."""
    with database.read() as tx:
        return int(tx.execute(_COUNT).scalar_one())


def backfill_spec_attachments(database: Database, progress: Callable[[int], None] = lambda _: None) -> Backfilled:
    """Add a link of kind `spec` for each `spec_id`: to a URL if it is one, else to a path in the repository.

    A second run adds nothing. A `spec_id` that is neither a valid URL nor a valid path is listed in `failed` with the
    reason.
    """
    seen = added = skipped = 0
    failed: list[tuple[str, str]] = []
    after = ""
    while True:
        with database.read() as tx:
            rows = tx.execute(_PAGE, {"after": after, "limit": _PAGE_SIZE}).all()
        if not rows:
            return Backfilled(seen, added, skipped, tuple(failed))
        for task_id, spec_id in rows:
            seen += 1
            try:
                if _attach(database, task_id, spec_id):
                    added += 1
                else:
                    skipped += 1
            except NotFound:
                # The task was deleted meanwhile.
                skipped += 1
            except InvalidInput as error:
                failed.append((task_id, str(error)))
        progress(len(rows))
        after = rows[-1][0]


def _attach(database: Database, task_id: str, spec_id: str) -> bool:
    link = {"external_url": spec_id} if is_web_url(spec_id) else {"repo_path": spec_id}
    with database.write() as tx:
        # A spec may be longer than a title. Then the title is left out; the link has the whole text.
        new = NewTaskAttachment(kind="spec", title=spec_id if len(spec_id.encode()) <= TITLE_BYTES_MAX else None)
        return create_link_attachment(tx, task_id, new, **link, request=_mark(task_id, spec_id)).is_new


def _mark(task_id: str, spec_id: str) -> RequestKey | None:
    """Return a request key that never ends, so that every later run finds the row."""
    mark = request_key("backfill-spec-attachments", f"{task_id}\0{spec_id}", 0)
    return None if mark is None else RequestKey(mark.digest, "")
