"""What is asked about the hub itself: whether it lives, whether it can work, its rules for agents."""

from __future__ import annotations

import asyncio
import functools
import importlib.resources
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field

from onceward.errors import NotFound, OncewardError, StoreUnavailable
from onceward.events import log
from onceward.hub.state import Hub, hub_of

router = APIRouter(tags=["hub"])

# Longer than this and a load balancer has given up by itself.
READY_SECONDS = 3.0
OK = "ok"
_STATIC = {"home.css": "text/css", "docs.css": "text/css", "docs.js": "text/javascript"}


class Health(BaseModel):
    status: str


class Readiness(BaseModel):
    status: Annotated[str, Field(description="`ok`, or `unavailable` when one of the checks failed.")]
    checks: Annotated[dict[str, str], Field(description="`ok`, or what is wrong, for each store.")]


@router.get("/healthz", response_model=Health, summary="Whether the process lives")
async def healthz() -> Response:
    return JSONResponse({"status": OK})


@router.get(
    "/readyz",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "A store does not answer."}},
    summary="Whether the stores answer",
)
async def readyz(request: Request) -> Response:
    hub = hub_of(request)
    names = ("database", "ledger", "blobs")
    checks = dict(zip(names, await asyncio.gather(_database(hub), _ledger(hub), _blobs(hub)), strict=True))
    ready = all(said == OK for said in checks.values())
    return JSONResponse({"status": OK if ready else "unavailable", "checks": checks}, 200 if ready else 503)


async def _database(hub: Hub) -> str:
    def look() -> None:
        with hub.database.read() as tx:
            log.extent(tx)

    with anyio.move_on_after(READY_SECONDS):
        try:
            await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
        except OncewardError as error:
            return error.code
        return OK
    return "no answer"


async def _ledger(hub: Hub) -> str:
    with anyio.move_on_after(READY_SECONDS):
        try:
            await hub.ledger.read("hub", "readyz")
        except OncewardError as error:
            return error.code
        return OK
    return "no answer"


async def _blobs(hub: Hub) -> str:
    def look() -> None:
        if not hub.blobs_looked_at.acquire(timeout=READY_SECONDS):
            raise StoreUnavailable("somebody still waits for an answer")
        try:
            hub.blobs.look()
        finally:
            hub.blobs_looked_at.release()

    with anyio.move_on_after(READY_SECONDS):
        try:
            await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
        except OncewardError as error:
            return error.code
        return OK
    return "no answer"


class Markdown(PlainTextResponse):
    media_type = "text/markdown"


@router.get("/skill.md", response_class=Markdown, summary="The rules of safe retries, for agents")
async def skill() -> Response:
    return Markdown(_page("skill.md"))


@router.get("/", response_class=HTMLResponse, summary="What this is, for people", include_in_schema=False)
async def home() -> Response:
    return HTMLResponse(_page("home.html"))


@router.get("/docs", response_class=HTMLResponse, summary="What can be asked, for people", include_in_schema=False)
async def docs() -> Response:
    return HTMLResponse(_page("docs.html"))


@router.get("/console/static/{name}", include_in_schema=False)
async def static(name: str) -> Response:
    """A stylesheet or script of the pages: their content security policy allows no inline ones."""
    kind = _STATIC.get(name)
    if kind is None:
        raise NotFound(f"There is no file {name!r} under /console/static/")
    return Response(_page(name), media_type=kind)


@functools.cache
def _page(name: str) -> str:
    return (importlib.resources.files("onceward.hub") / "pages" / name).read_text("utf-8")
