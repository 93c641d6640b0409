"""Storage: garbage collection as a plan that is then applied, and the check of all stored bytes."""

from __future__ import annotations

from starlette.responses import Response

from onceward.core.json_text import refused
from onceward.hub.audit.actor import actor_of
from onceward.hub.audit.recorder import record_action_blocking
from onceward.hub.console.forms import Form
from onceward.hub.console.visit import Visit
from onceward.hub.db_threads import in_thread
from onceward.hub.tasks import Collected, Damage, check_blobs, gc_blobs


async def show(visit: Visit) -> Response:
    """Show what can be done."""
    return await _page(visit)


async def act(visit: Visit, form: Form) -> Response:
    """Plan a run of gc, apply it, or run fsck."""
    match form.text("action"):
        case "plan":
            return await _page(visit, collected=await _run_gc(visit, dry_run=True))
        case "apply":
            return await _page(visit, collected=await _run_gc(visit, dry_run=False))
        case "check":
            return await _page(visit, damaged=await _run_fsck(visit))
        case _:
            raise refused("action", "must be plan, apply or check")


async def _page(visit: Visit, *, collected: Collected | None = None, damaged: list[Damage] | None = None) -> Response:
    settings = visit.hub.config.attachments
    return await visit.page(
        "storage.html",
        collected=collected,
        damaged=damaged,
        grace_hours=settings.gc_grace / 3600,
        blobs=visit.hub.config.hub.blobs or "a folder of the hub",
    )


async def _run_gc(visit: Visit, *, dry_run: bool) -> Collected:
    hub, settings, actor = visit.hub, visit.hub.config.attachments, actor_of(visit.request.scope, "console")

    def run() -> Collected:
        details = {"dry_run": dry_run, "grace_seconds": settings.gc_grace}
        with record_action_blocking(hub.database, actor, "blobs.gc", None, details) as audit:
            found = gc_blobs(
                hub.database,
                hub.blobs,
                dry_run=dry_run,
                batch_size=settings.gc_batch_size,
                grace_seconds=settings.gc_grace,
            )
            audit.details = found.json()
            return found

    found = await in_thread(run)
    hub.feed.notify()
    return found


async def _run_fsck(visit: Visit) -> list[Damage]:
    hub, actor = visit.hub, actor_of(visit.request.scope, "console")

    def run() -> list[Damage]:
        with record_action_blocking(hub.database, actor, "blobs.fsck", None, {"quarantine": False}) as audit:
            found = list(check_blobs(hub.database, hub.blobs, quarantine=False))
            audit.details = {"damaged": [damage.blob_id for damage in found]}
            return found

    return await in_thread(run)
