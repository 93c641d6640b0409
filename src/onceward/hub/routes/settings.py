"""The settings of the running hub, for admins."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from onceward.hub.config.config import effective_settings
from onceward.hub.state import hub_of
from onceward.hub.web.json_body import StrictRoute

router = APIRouter(prefix="/api/v1/settings", route_class=StrictRoute, tags=["settings"])


class SettingShown(BaseModel):
    value: Any
    source: str = Field(description="`default`, or the file, environment variable or flag.")


class SettingsShown(BaseModel):
    settings: dict[str, dict[str, SettingShown]]


@router.get("", response_model=SettingsShown, summary="Show the settings of this hub")
def show_settings(request: Request) -> Response:
    """Every setting by table and key, with its source. Passwords and keys are masked."""
    return JSONResponse({"settings": effective_settings(hub_of(request).config)})
