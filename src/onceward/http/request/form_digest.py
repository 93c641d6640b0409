"""The fingerprint of a multipart form: its parts in order, without the boundary, which differs on each retry."""

from __future__ import annotations

import hashlib
from typing import Any

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from onceward.http.request.headers import digest_of

# Limits for the headers of one part. A body that exceeds a limit is not parsed: the fingerprint is of its raw bytes.
_HEADER_BYTES_MAX = 16 * 1024
_HEADERS_MAX = 64
# Twice the limit of common frameworks. Parsing millions of parts would block the event loop.
_PARTS_MAX = 2_000
# The most bytes that wait in memory.
_PIECE_BYTES = 64 * 1024


class PartsDigest:
    """Incremental digest of the parts of a form. `finish` returns None if the body cannot be parsed as a form."""

    def __init__(self, boundary: str) -> None:
        self._parser = PushMultipartParser(
            boundary,
            max_header_size=_HEADER_BYTES_MAX,
            max_header_count=_HEADERS_MAX,
            max_segment_count=_PARTS_MAX,
        )
        self._parts: list[bytes] = []
        self._part: MultipartSegment | None = None
        self._content: Any = None
        self._broken = False
        self._waiting = bytearray()

    def feed(self, data: bytes) -> None:
        # For a malformed body, the result of the parser depends on the pieces. A retry arrives in other pieces, but is
        # the same request, so the parser gets pieces of a fixed size.
        self._waiting += data
        while len(self._waiting) >= _PIECE_BYTES:
            self._parse(bytes(self._waiting[:_PIECE_BYTES]))
            del self._waiting[:_PIECE_BYTES]

    def _parse(self, data: bytes) -> None:
        # The parser takes an empty piece as the end.
        if self._broken or not data:
            return
        try:
            for event in self._parser.parse(data):
                self._take(event)
        except (MultipartError, ValueError):
            self._broken = True

    def _take(self, event: MultipartSegment | bytearray | bytes | None) -> None:
        if isinstance(event, MultipartSegment):
            self._part, self._content = event, hashlib.sha256()
        elif event:
            self._content.update(event)
        elif self._part is not None:
            part, self._part = self._part, None
            texts = [part.name or "", part.filename or "", part.header("Content-Type", "") or ""]
            disposition = part.header("Content-Disposition", "") or ""
            if "filename*" in disposition.lower():
                # Some clients send a non-ASCII name only in this form, which the parser ignores.
                texts.append(disposition)
            head = [text.encode("utf-8", "surrogateescape") for text in texts]
            # A part without a file name differs from a part with an empty one.
            kind = b"file" if part.filename is not None else b"field"
            self._parts.append(digest_of(kind, *head, self._content.digest()).encode())

    def finish(self) -> bytes | None:
        self._parse(bytes(self._waiting))
        self._waiting.clear()
        if not self._broken:
            try:
                self._parser.close()
            except MultipartError:
                self._broken = True
        return None if self._broken else digest_of(*self._parts).encode()


def is_form(content_type: str) -> bool:
    """Return whether the body is a multipart form."""
    return content_type.lower().lstrip().startswith("multipart/form-data")


def parts_digest(content_type: str) -> PartsDigest | None:
    """Return the digest to feed with this body; None if it is not a multipart form with a boundary."""
    if not is_form(content_type):
        return None
    try:
        _, options = parse_options_header(content_type)
        boundary = options.get("boundary", "")
        return PartsDigest(boundary) if boundary else None
    except (MultipartError, ValueError):
        return None
