"""The route of `/metrics`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from onceward.hub.web.metrics import MEDIA_TYPE, render

router = APIRouter(tags=["operations"])


@router.get("/metrics", response_class=PlainTextResponse, summary="Metrics")
def show(request: Request) -> Response:
    """Metrics for Prometheus, summed over all workers."""
    return Response(render(getattr(request.app.state, "gauges", None)), media_type=MEDIA_TYPE)
