"""Routes about the hub itself: liveness, readiness, the pages, and the retry rules for agents."""

from __future__ import annotations

import asyncio
import functools
import importlib.resources
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse
from pydantic import BaseModel, Field

from onceward.errors import OncewardError, StoreUnavailable
from onceward.hub.events import log
from onceward.hub.state import HubState, hub_of
from onceward.hub.web.json_body import StrictRoute
from onceward.store.failure_log import report

router = APIRouter(route_class=StrictRoute, tags=["hub"])

# Shorter than the usual timeout of a load balancer's health check.
READY_SECONDS = 3.0
OK = "ok"


class Health(BaseModel):
    status: str


class Readiness(BaseModel):
    status: Annotated[str, Field(description="`ok`, or `unavailable` if a check failed.")]
    checks: Annotated[
        dict[str, str], Field(description="For each store: `ok`, the code of the failure, or `no answer`.")
    ]


@router.get("/healthz", response_model=Health, summary="Liveness")
async def healthz() -> Response:
    return JSONResponse({"status": OK})


@router.get(
    "/readyz",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "A store is unavailable."}},
    summary="Readiness",
)
async def readyz(request: Request) -> Response:
    hub = hub_of(request)
    names = ("database", "ledger", "blobs")
    checks = dict(zip(names, await asyncio.gather(_database(hub), _ledger(hub), _blobs(hub)), strict=True))
    ready = all(result == OK for result in checks.values())
    return JSONResponse({"status": OK if ready else "unavailable", "checks": checks}, 200 if ready else 503)


async def _database(hub: HubState) -> str:
    def read() -> None:
        with hub.database.read() as tx:
            log.extent(tx)

    with anyio.move_on_after(READY_SECONDS):
        try:
            await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
        except OncewardError as error:
            report(error)
            return error.code
        return OK
    return "no answer"


async def _ledger(hub: HubState) -> str:
    with anyio.move_on_after(READY_SECONDS):
        try:
            await hub.ledger.read("hub", "readyz")
        except OncewardError as error:
            report(error)
            return error.code
        return OK
    return "no answer"


async def _blobs(hub: HubState) -> str:
    def probe() -> None:
        if not hub.blobs_probe_lock.acquire(timeout=READY_SECONDS):
            raise StoreUnavailable("an earlier probe of the blob store has not finished")
        try:
            hub.blobs.ping()
        finally:
            hub.blobs_probe_lock.release()

    with anyio.move_on_after(READY_SECONDS):
        try:
            await anyio.to_thread.run_sync(probe, abandon_on_cancel=True)
        except OncewardError as error:
            report(error)
            return error.code
        return OK
    return "no answer"


class Markdown(PlainTextResponse):
    media_type = "text/markdown"


@router.get("/skill.md", response_class=Markdown, summary="Retry rules for agents")
async def skill() -> Response:
    return Markdown(_skill_text())


@router.get("/", summary="Home page", include_in_schema=False)
async def home() -> Response:
    return RedirectResponse("/console/", 303)


@router.get("/docs", response_class=HTMLResponse, summary="API reference", include_in_schema=False)
def docs(request: Request) -> Response:
    # Jinja2 and the Markdown parser take a tenth of a second, which no start of a hub should wait for.
    from onceward.hub.reference.page import ReferencePage  # noqa: PLC0415

    state = request.app.state
    if not hasattr(state, "reference"):
        state.reference = ReferencePage()
    page: ReferencePage = state.reference
    return HTMLResponse(page.text(request.app.openapi(), str(request.base_url)))


@functools.cache
def _skill_text() -> str:
    return importlib.resources.files(__package__).joinpath("skill.md").read_text("utf-8")
