"""gc against four uploaders of the same contents, for three seconds; `make soak-blobs` runs longer."""

from __future__ import annotations

from tests.faults.tasks.gc_race import collect_bytes_first, prove, run
from tests.hub.tasks.attachment_store import AttachmentStore

# Thirty times as long as the wrong order takes to delete bytes that are needed.
SECONDS = 3.0
COLLECTED_MIN = 11
# It takes a tenth of a second; on a busy machine longer.
BREAKING_SECONDS_MAX = 20.0


def test_gc_never_deletes_bytes_that_an_upload_needs(attachment_store: AttachmentStore) -> None:
    figures = prove(attachment_store, SECONDS, seed=1, collected_min=COLLECTED_MIN)

    assert figures.uploads > 10, figures.line()
    assert figures.collected >= COLLECTED_MIN, figures.line()


def test_gc_in_the_wrong_order_does_delete_them(attachment_store: AttachmentStore) -> None:
    figures, _ = run(attachment_store, BREAKING_SECONDS_MAX, seed=1, collection=collect_bytes_first)

    assert figures.broken > 0, figures.line()
