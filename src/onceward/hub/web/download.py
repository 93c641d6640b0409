"""Downloads: the bytes of an attachment, whole or a range, with headers that make them safe in a browser.

Conditions and ranges (RFC 9110) are decided from the headers alone.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from onceward.http import problem
from onceward.hub.blobs import BlobStore
from onceward.hub.media import is_inline_safe
from onceward.hub.tasks import Content, TaskAttachment

# A longer Range header is ignored, which RFC 9110 allows.
RANGE_CHARACTERS_MAX = 64
# No size has more digits than this; parsing more would only take time.
_DIGITS_MAX = 18
_BLANKS = " \t\r\n\f\v"


@dataclass(frozen=True, slots=True)
class WholeContent:
    """Send the whole content: the request has no range, or one that is ignored, which RFC 9110 allows."""


@dataclass(frozen=True, slots=True)
class BytePart:
    """Send the bytes from `start` (inclusive) to `end` (exclusive)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Unsatisfiable:
    """Refuse a range that contains no byte of the content (416)."""


def wanted_part(
    range_header: str | None, if_range: str | None, etag: str, size: int
) -> WholeContent | BytePart | Unsatisfiable:
    """Return the part of the content to send. A request for several ranges gets the whole content."""
    if range_header is None or (if_range is not None and if_range.strip() != etag):
        return WholeContent()
    ends = _ends_of(range_header)
    if ends is None or ends == ("", ""):
        return WholeContent()
    first, last = ends
    if not first:
        length = int(last)
        return Unsatisfiable() if length == 0 or size == 0 else BytePart(max(0, size - length), size)
    start = int(first)
    end = size if not last else min(size, int(last) + 1)
    if last and int(last) < start:
        return WholeContent()
    return BytePart(start, end) if start < size else Unsatisfiable()


def _ends_of(range_header: str) -> tuple[str, str] | None:
    """Parse `bytes=first-last` into two digit strings, either of which may be empty; None for anything else."""
    if len(range_header) > RANGE_CHARACTERS_MAX:
        return None
    unit, equals, ends = range_header.partition("=")
    first, dash, last = (part.strip(_BLANKS) for part in ends.partition("-"))
    if unit.strip(_BLANKS).lower() != "bytes" or not equals or not dash:
        return None
    if not all(end == "" or (end.isascii() and end.isdigit() and len(end) <= _DIGITS_MAX) for end in (first, last)):
        return None
    return first, last


def is_unchanged(if_none_match: str | None, etag: str) -> bool:
    """Return whether `If-None-Match` names the current ETag."""
    if if_none_match is None:
        return False
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in tags or etag in tags


def disposition(kind: str, filename: str | None) -> str:
    """`Content-Disposition` with the file name in ASCII and, if that loses characters, also encoded (RFC 6266)."""
    if filename is None:
        return kind
    plain = "".join(one if " " <= one <= "~" and one not in '"\\%' else "_" for one in filename)
    if plain == filename:
        return f'{kind}; filename="{plain}"'
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"


def content_response(
    content: Content,
    blobs: BlobStore,
    method: str,
    range_: str | None,
    if_range: str | None,
    if_none_match: str | None,
) -> Response:
    """Build the response to GET or HEAD: 200, 206, 304 or 416."""
    etag = f'"sha256-{content.sha256}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": "private, no-cache", **_safe(content)}
    if is_unchanged(if_none_match, etag):
        return Response(status_code=304, headers=headers)
    size = content.size_bytes
    wanted = wanted_part(range_, if_range, etag, size)
    if isinstance(wanted, Unsatisfiable):
        refusal = problem.problem(416, f"The range is outside the content, which has {size} bytes.")
        return Response(
            refusal.body, 416, {"Content-Range": f"bytes */{size}", "Content-Type": "application/problem+json"}
        )
    part, status = (wanted, 206) if isinstance(wanted, BytePart) else (BytePart(0, size), 200)
    if isinstance(wanted, BytePart):
        headers["Content-Range"] = f"bytes {part.start}-{part.end - 1}/{size}"
    headers["Content-Length"] = str(part.end - part.start)
    # Opened for HEAD too: it must fail like GET if the bytes are missing.
    pieces = content.read(blobs, part.start, part.end)
    if method == "HEAD":
        pieces.close()
        return Response(status_code=status, headers=headers)
    return _Download(pieces, status, headers)


class _Download(StreamingResponse):
    """Streaming response that closes the blob at its end, even if the client disconnects and sending fails."""

    def __init__(self, pieces: Generator[bytes], status: int, headers: dict[str, str]) -> None:
        super().__init__(pieces, status, headers)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._pieces.close()


def is_inline(attachment: TaskAttachment) -> bool:
    """Return whether a browser may show the content: by the type of its bytes, and by the type that is served."""
    sniffed = str(attachment.meta.get("sniffed_media_type") or attachment.media_type or "")
    return is_inline_safe(sniffed, attachment.media_type)


def _safe(content: Content) -> dict[str, str]:
    """Headers for bytes from untrusted users: inline only for media types that cannot run scripts, else a download."""
    attachment = content.attachment
    kind = "inline" if is_inline(attachment) else "attachment"
    return {
        "Content-Type": attachment.media_type or "application/octet-stream",
        "Content-Disposition": disposition(kind, attachment.filename),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
