"""Files of the pages: stylesheets and scripts of our own, served from the package."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources

from starlette.requests import Request
from starlette.responses import Response

from onceward.errors import NotFound

_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The API reference has its own folder.
_FOLDERS = ("console/static", "reference/static")
_FILES = {
    "console/static": ("console.css", "console.js", "events.js", "icon.svg", "upload.js"),
    "reference/static": ("reference.css", "reference.js", "request.js", "response.js"),
}
# A changed file has another address, so that a browser may keep it.
_KEEP = "public, max-age=31536000, immutable"
_SHORT = "public, max-age=60"


async def asset(request: Request) -> Response:
    """Return a stylesheet or script of the pages. Their content security policy allows no inline ones."""
    name = request.path_params["name"]
    folder = next((folder for folder in _FOLDERS if name in _FILES[folder]), None)
    if folder is None:
        raise NotFound(f"the file {name!r} does not exist under /console/static/")
    kept = request.query_params.get("v") == digest_of(name)
    headers = {"cache-control": _KEEP if kept else _SHORT}
    return Response(_content(folder, name), media_type=_MEDIA_TYPES[name.rpartition(".")[2]], headers=headers)


def asset_url(name: str) -> str:
    """Return the address of a file, which changes with its content."""
    return f"/console/static/{name}?v={digest_of(name)}"


@functools.cache
def digest_of(name: str) -> str:
    folder = next(folder for folder in _FOLDERS if name in _FILES[folder])
    return hashlib.sha256(_content(folder, name)).hexdigest()[:12]


@functools.cache
def _content(folder: str, name: str) -> bytes:
    return (importlib.resources.files("onceward.hub") / folder / name).read_bytes()
