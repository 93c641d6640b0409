"""Admin routes: garbage collection, and integrity checks of the stored blobs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from onceward.errors import InvalidInput
from onceward.hub import tasks
from onceward.hub.audit.actor import actor_of
from onceward.hub.audit.log import Details
from onceward.hub.audit.recorder import StartedAction, recorded_blocking
from onceward.hub.state import hub_of
from onceward.hub.web.json_body import StrictBody, StrictRoute

router = APIRouter(prefix="/v1/admin", route_class=StrictRoute, tags=["admin"])


class GcSent(StrictBody):
    dry_run: bool = Field(default=True, description="Count what would be deleted, and delete nothing.")
    batch_size: int | None = Field(None, ge=1, le=10_000)
    grace_seconds: float | None = Field(None, ge=0, le=365 * 86_400, description="Overrides `attachments.gc_grace`.")


# A request without a body is a dry run.
_COUNT = GcSent.model_validate({})


class CheckSent(StrictBody):
    quarantine: bool = Field(default=True, description="Move damaged blobs to quarantine.")


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


class CheckShown(BaseModel):
    damaged: list[DamageShown]


class BackfillShown(BaseModel):
    task_count: int
    added_count: int
    skipped_count: int
    failed: list[list[str]]


@router.post("/gc-blobs", response_model=GcShown, summary="Delete expired attachments and unreferenced blobs")
def collect(
    request: Request,
    sent: GcSent = _COUNT,
    x_confirm: Annotated[
        Literal["true"] | None, Header(alias="X-Confirm", description="Required if `dry_run` is false.")
    ] = None,
) -> Response:
    hub = hub_of(request)
    if not sent.dry_run and x_confirm is None:
        raise InvalidInput("deletion needs the header X-Confirm: true", (("X-Confirm", "must be true"),))
    settings = hub.config.attachments
    grace_seconds = settings.gc_grace if sent.grace_seconds is None else sent.grace_seconds
    with _recorded(request, "blobs.gc", {"dry_run": sent.dry_run, "grace_seconds": grace_seconds}) as audit:
        collected = tasks.gc_blobs(
            hub.database,
            hub.blobs,
            dry_run=sent.dry_run,
            batch_size=sent.batch_size or settings.gc_batch_size,
            grace_seconds=grace_seconds,
        )
        audit.details = collected.shown()
    hub.feed.notify()
    return JSONResponse(collected.shown())


@router.post("/fsck", response_model=CheckShown, summary="Verify the bytes of every blob")
def check(request: Request, sent: CheckSent = _CHECK) -> Response:
    hub = hub_of(request)
    with _recorded(request, "blobs.fsck", {"quarantine": sent.quarantine}) as audit:
        # Read here: the blobs are checked one by one, as the results are taken.
        found = list(tasks.check_blobs(hub.database, hub.blobs, quarantine=sent.quarantine))
        audit.details = {"damaged": [damage.blob_id for damage in found]}
    return JSONResponse({"damaged": [damage.shown() for damage in found]})


@router.post(
    "/backfill-spec-attachments", response_model=BackfillShown, summary="Create an attachment for each task's spec_id"
)
def backfill(request: Request) -> Response:
    hub = hub_of(request)
    with _recorded(request, "tasks.backfill_spec_attachments", {}) as audit:
        done = tasks.backfill_spec_attachments(hub.database)
        audit.details = {"added_count": done.added_count}
    hub.feed.notify()
    return JSONResponse(done.shown())


def _recorded(request: Request, action: str, details: Details) -> AbstractContextManager[StartedAction]:
    """Write the audit rows of an action around the block."""
    return recorded_blocking(hub_of(request).database, actor_of(request.scope), action, None, details)
