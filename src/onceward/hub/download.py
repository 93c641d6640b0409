"""Downloads: the bytes of an attachment, whole or in part, with headers that a browser may trust."""

from __future__ import annotations

from collections.abc import Generator

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from onceward.blobs import BlobStore
from onceward.blobs.media import is_inline_safe
from onceward.http import problem
from onceward.hub import ranges
from onceward.hub.ranges import Part, Unsatisfiable
from onceward.tasks import Content


def content_response(
    content: Content,
    blobs: BlobStore,
    method: str,
    range_: str | None,
    if_range: str | None,
    if_none_match: str | None,
) -> Response:
    """The response to GET or HEAD: 200, 206, 304 or 416."""
    etag = f'"sha256-{content.sha256}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": "private, no-cache", **_safe(content)}
    if ranges.is_unchanged(if_none_match, etag):
        return Response(status_code=304, headers=headers)
    size = content.size_bytes
    wanted = ranges.wanted(range_, if_range, etag, size)
    if isinstance(wanted, Unsatisfiable):
        refusal = problem.problem(416, f"the content has {size} bytes")
        return Response(
            refusal.body, 416, {"Content-Range": f"bytes */{size}", "Content-Type": "application/problem+json"}
        )
    part, status = (wanted, 206) if isinstance(wanted, Part) else (Part(0, size), 200)
    if isinstance(wanted, Part):
        headers["Content-Range"] = f"bytes {part.start}-{part.end - 1}/{size}"
    headers["Content-Length"] = str(part.end - part.start)
    # Also for HEAD, which must not promise bytes that GET does not find.
    pieces = content.read(blobs, part.start, part.end)
    if method == "HEAD":
        pieces.close()
        return Response(status_code=status, headers=headers)
    return _Download(pieces, status, headers)


class _Download(StreamingResponse):
    """Lets go of the blob at its end, also when the client goes: what a failed send holds is freed some time, or never."""

    def __init__(self, pieces: Generator[bytes], status: int, headers: dict[str, str]) -> None:
        super().__init__(pieces, status, headers)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._pieces.close()


def _safe(content: Content) -> dict[str, str]:
    """What a browser may do with bytes that anybody may have sent: show what cannot act, and keep the rest."""
    attachment = content.attachment
    sniffed = str(attachment.meta.get("sniffed_media_type") or attachment.media_type or "")
    inline = is_inline_safe(sniffed, attachment.media_type)
    return {
        "Content-Type": attachment.media_type or "application/octet-stream",
        "Content-Disposition": ranges.disposition("inline" if inline else "attachment", attachment.filename),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
