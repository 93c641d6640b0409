"""Admin routes: garbage collection, integrity checks and usage of the stored blobs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from onceward.errors import InvalidInput
from onceward.hub import tasks
from onceward.hub.audit.actor import actor_of
from onceward.hub.audit.log import Details
from onceward.hub.audit.recorder import StartedAction, record_action_blocking
from onceward.hub.routes.progress import MEDIA_TYPE, Report, long_response, running_total
from onceward.hub.state import hub_of
from onceward.hub.web.json_body import StrictBody, StrictRoute
from onceward.hub.web.pagination import LIMIT_DEFAULT, After, Limit, PageShown, paged

router = APIRouter(prefix="/v1/admin", route_class=StrictRoute, tags=["admin"])


class GcSent(StrictBody):
    dry_run: bool = Field(default=True, description="Count what would be deleted, and delete nothing.")
    batch_size: int | None = Field(None, ge=1, le=10_000)
    grace_seconds: float | None = Field(None, ge=0, le=365 * 86_400, description="Overrides `attachments.gc_grace`.")


LINES: dict[int | str, dict[str, Any]] = {
    200: {"content": {MEDIA_TYPE: {}}, "description": "The result, or lines with progress and the result."}
}

# A request without a body is a dry run.
_COUNT = GcSent.model_validate({})


class CheckSent(StrictBody):
    quarantine: bool = Field(default=True, description="Move damaged blobs to quarantine, and correct wrong counters.")


_CHECK = CheckSent()


class GcShown(BaseModel):
    candidate_count: int
    deleted_count: int
    failed_count: int
    reclaimed_bytes: int = Field(description="Bytes of blobs and orphans. In a dry run: the bytes that would be freed.")
    dry_run: bool
    expired_count: int
    orphan_count: int = Field(description="Blobs without a row, and temp files of uploads whose process died.")


class DamageShown(BaseModel):
    blob_id: str
    sha256: str
    blob_key: str
    problem: str
    attachments: list[str]
    quarantined: bool


class WrongCounterShown(BaseModel):
    principal: str
    counted_bytes: int
    stored_bytes: int = Field(description="The sum of the sizes of the principal's attachments.")
    counted_attachments: int
    attachment_count: int
    corrected: bool


class CheckShown(BaseModel):
    damaged: list[DamageShown]
    wrong_counters: list[WrongCounterShown] = Field(description="Counters of stored bytes that were not correct.")


class UsageShown(BaseModel):
    principal: str
    stored_bytes: int = Field(description="The sum of the sizes of the principal's attachments.")
    attachment_count: int


class UsageList(PageShown):
    usage: list[UsageShown]
    max_bytes_per_principal: int = Field(description="The quota, `attachments.max_bytes_per_principal`. 0: none.")


class BackfillShown(BaseModel):
    task_count: int
    added_count: int
    skipped_count: int
    failed: list[list[str]]


@router.post(
    "/gc-blobs", response_model=GcShown, responses=LINES, summary="Delete expired attachments and unreferenced blobs"
)
def collect(
    request: Request,
    sent: GcSent = _COUNT,
    x_confirm: Annotated[
        Literal["true"] | None, Header(alias="X-Confirm", description="Required if `dry_run` is false.")
    ] = None,
) -> Response:
    """With `Accept: application/x-ndjson`, the response is lines of JSON that begin with the progress."""
    hub = hub_of(request)
    if not sent.dry_run and x_confirm is None:
        raise InvalidInput("deletion needs the header X-Confirm: true", (("X-Confirm", "must be true"),))
    settings = hub.config.attachments
    grace_seconds = settings.gc_grace if sent.grace_seconds is None else sent.grace_seconds
    batch_size = sent.batch_size or settings.gc_batch_size
    audited = _record_action(request, "blobs.gc", {"dry_run": sent.dry_run, "grace_seconds": grace_seconds})

    def work(report: Report) -> dict[str, object]:
        with audited as audit:
            collected = tasks.gc_blobs(
                hub.database,
                hub.blobs,
                dry_run=sent.dry_run,
                batch_size=batch_size,
                grace_seconds=grace_seconds,
                progress=running_total(report, tasks.blob_totals(hub.database)[0]),
            )
            audit.details = collected.json()
        hub.feed.notify()
        return collected.json()

    return long_response(request, "files", work)


@router.post("/fsck", response_model=CheckShown, responses=LINES, summary="Verify the bytes of every blob")
def check(request: Request, sent: CheckSent = _CHECK) -> Response:
    """With `Accept: application/x-ndjson`, the response is lines of JSON that begin with the progress."""
    hub = hub_of(request)
    audited = _record_action(request, "blobs.fsck", {"quarantine": sent.quarantine})

    def work(report: Report) -> dict[str, object]:
        with audited as audit:
            progress = running_total(report, tasks.blob_totals(hub.database)[1])
            # Read here: the blobs are checked one by one, as the results are taken.
            found = list(tasks.check_blobs(hub.database, hub.blobs, quarantine=sent.quarantine, progress=progress))
            counters = tasks.quota.check_counters(hub.database, correct=sent.quarantine)
            audit.details = {
                "damaged": [damage.blob_id for damage in found],
                "wrong_counters": [counter.principal for counter in counters],
            }
        return {
            "damaged": [damage.json() for damage in found],
            "wrong_counters": [counter.json() for counter in counters],
        }

    return long_response(request, "bytes", work)


@router.get("/usage", response_model=UsageList, summary="List the stored bytes of each principal")
def usage(request: Request, limit: Limit = LIMIT_DEFAULT, after: After = "") -> Response:
    hub = hub_of(request)
    with hub.database.read() as tx:
        page = tasks.quota.usage_page(tx, limit, after)
    shown = {"usage": [one.json() for one in page.items], **paged(page)}
    return JSONResponse({**shown, "max_bytes_per_principal": hub.config.attachments.max_bytes_per_principal})


@router.post(
    "/backfill-spec-attachments",
    response_model=BackfillShown,
    responses=LINES,
    summary="Create an attachment for each task's spec_id",
)
def backfill(request: Request) -> Response:
    """With `Accept: application/x-ndjson`, the response is lines of JSON that begin with the progress."""
    hub = hub_of(request)
    audited = _record_action(request, "tasks.backfill_spec_attachments", {})

    def work(report: Report) -> dict[str, object]:
        with audited as audit:
            progress = running_total(report, tasks.spec_total(hub.database))
            done = tasks.backfill_spec_attachments(hub.database, progress)
            audit.details = {"added_count": done.added_count}
        hub.feed.notify()
        return done.json()

    return long_response(request, "tasks", work)


def _record_action(request: Request, action: str, details: Details) -> AbstractContextManager[StartedAction]:
    """Write the audit rows of an action around the block."""
    return record_action_blocking(hub_of(request).database, actor_of(request.scope), action, None, details)
