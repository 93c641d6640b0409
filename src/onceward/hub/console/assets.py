"""Files of the pages: stylesheets and scripts of our own, served from the package."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources

from starlette.requests import Request
from starlette.responses import Response

from onceward.errors import NotFound
from onceward.hub.web.download import is_unchanged

_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The API reference has its own folder.
_FOLDERS = ("console/static", "reference/static")
_FILES = {
    "console/static": ("console.css", "console.js", "events.js", "icon.svg", "upload.js"),
    "reference/static": ("reference.css", "reference.js", "request.js", "response.js"),
}
# A changed file has another address, so that a browser may keep it.
_KEEP = "public, max-age=31536000, immutable"
# A script imports others by an address without a version: after an upgrade, old and new scripts must not run together.
_REVALIDATE = "public, no-cache"


async def asset(request: Request) -> Response:
    """Return a stylesheet or script of the pages. Their content security policy allows no inline ones."""
    name = request.path_params["name"]
    folder = next((folder for folder in _FOLDERS if name in _FILES[folder]), None)
    if folder is None:
        raise NotFound(f"the file {name!r} does not exist under /console/static/")
    digest = digest_of(name)
    kept = request.query_params.get("v") == digest
    headers = {"etag": f'"{digest}"', "cache-control": _KEEP if kept else _REVALIDATE}
    if is_unchanged(request.headers.get("if-none-match"), headers["etag"]):
        return Response(status_code=304, headers=headers)
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
