"""What only an admin may ask for: the collection of garbage, and the check of what is stored."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from onceward import tasks
from onceward.errors import InvalidInput
from onceward.hub.body import Sent, StrictRoute
from onceward.hub.state import hub_of

router = APIRouter(prefix="/v1/admin", route_class=StrictRoute, tags=["admin"])


class GcSent(Sent):
    dry_run: bool = Field(default=True, description="Only count.")
    batch_size: int | None = Field(None, ge=1, le=10_000)
    grace_seconds: float | None = Field(None, ge=0, le=365 * 86_400, description="Instead of attachments.gc_grace.")


# Without a body it only counts.
_COUNT = GcSent.model_validate({})


class CheckSent(Sent):
    quarantine: bool = Field(default=True, description="Put damaged bytes aside.")


_CHECK = CheckSent()


class GcShown(BaseModel):
    candidate_count: int
    deleted_count: int
    failed_count: int
    reclaimed_bytes: int = Field(description="Of blobs and orphans together; in a dry run: what would be.")
    dry_run: bool
    expired_count: int
    orphan_count: int = Field(description="Bytes without a row, and temporary files of uploads whose process died.")


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


@router.post("/gc-blobs", response_model=GcShown, summary="Collect what nothing needs any more")
def collect(
    request: Request,
    sent: GcSent = _COUNT,
    x_confirm: Annotated[
        Literal["true"] | None, Header(alias="X-Confirm", description="Required when `dry_run` is false.")
    ] = None,
) -> Response:
    hub = hub_of(request)
    if not sent.dry_run and x_confirm is None:
        raise InvalidInput("deleting needs the header X-Confirm: true", (("X-Confirm", "must be true"),))
    settings = hub.config.attachments
    collected = tasks.gc_blobs(
        hub.database,
        hub.blobs,
        dry_run=sent.dry_run,
        batch_size=sent.batch_size or settings.gc_batch_size,
        grace_seconds=settings.gc_grace if sent.grace_seconds is None else sent.grace_seconds,
    )
    hub.feed.hint()
    return JSONResponse(collected.shown())


@router.post("/fsck", response_model=CheckShown, summary="Look whether all bytes are there and what they should be")
def check(request: Request, sent: CheckSent = _CHECK) -> Response:
    hub = hub_of(request)
    found = tasks.check_blobs(hub.database, hub.blobs, quarantine=sent.quarantine)
    return JSONResponse({"damaged": [damage.shown() for damage in found]})


@router.post(
    "/backfill-spec-attachments", response_model=BackfillShown, summary="Make an attachment of each task's spec_id"
)
def backfill(request: Request) -> Response:
    hub = hub_of(request)
    done = tasks.backfill_spec_attachments(hub.database)
    hub.feed.hint()
    return JSONResponse(done.shown())
