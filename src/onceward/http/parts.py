"""The fingerprint of a multipart form: its parts in order, without the boundary, which clients draw anew on a retry."""

from __future__ import annotations

import hashlib
from typing import Any

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from onceward.core.request import digest_of

# A part's own headers; what is larger is no form, and its bytes count as they are.
_HEADER_BYTES_MAX = 16 * 1024
_HEADERS_MAX = 64
# Twice what frameworks read of a form. Millions of them would take the loop's time: their bytes count as they are, too.
_PARTS_MAX = 2_000


class PartsDigest:
    """Fed with the body as it comes. Says None when the body is no readable form."""

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

    def feed(self, data: bytes) -> None:
        # A server may give an empty piece at any time; to the parser it would be the end.
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
            said = [part.name or "", part.filename or "", part.header("Content-Type", "") or ""]
            disposition = part.header("Content-Disposition", "") or ""
            if "filename*" in disposition.lower():
                # Some clients say a name outside of ASCII only so, and the parser passes over it.
                said.append(disposition)
            head = [text.encode("utf-8", "surrogateescape") for text in said]
            # No file name and an empty one are two different parts of a form.
            kind = b"file" if part.filename is not None else b"field"
            self._parts.append(digest_of(kind, *head, self._content.digest()).encode())

    def finish(self) -> bytes | None:
        if not self._broken:
            try:
                self._parser.close()
            except MultipartError:
                self._broken = True
        return None if self._broken else digest_of(*self._parts).encode()


def is_form(content_type: str) -> bool:
    """Whether the body is a form of several parts."""
    return content_type.lower().lstrip().startswith("multipart/form-data")


def parts_digest(content_type: str) -> PartsDigest | None:
    """How to take this body's fingerprint by its parts; None for a body that is no form."""
    if not is_form(content_type):
        return None
    try:
        _, options = parse_options_header(content_type)
        boundary = options.get("boundary", "")
        return PartsDigest(boundary) if boundary else None
    except (MultipartError, ValueError):
        return None
