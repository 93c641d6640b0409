"""The choice between light, dark, and the setting of the system: a cookie, so that it works without script."""

from __future__ import annotations

from starlette.responses import Response

from onceward.hub.console.forms import Form
from onceward.hub.console.visit import THEME_COOKIE, THEMES, Visit, safe_next_path, see_other
from onceward.hub.console.visitors import PATH

_YEAR_SECONDS = 365 * 24 * 3600


async def choose(_visit: Visit, form: Form) -> Response:
    """Store the theme and return to the page."""
    wanted = form.text("theme")
    response = see_other(safe_next_path(form.text("back")))
    if wanted in THEMES:
        response.set_cookie(THEME_COOKIE, wanted, max_age=_YEAR_SECONDS, path=PATH, httponly=True, samesite="strict")
    else:
        response.delete_cookie(THEME_COOKIE, path=PATH, httponly=True, samesite="strict")
    return response
