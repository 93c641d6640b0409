"""Parser for raw mail: its headers, and its parts other than multiparts. Nothing here raises.

Python's own parser is not used: it raises for deeply nested mail and for some headers, and it takes about three times
as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onceward.hub.ingest.email.headers import Headers, first, one_line_end, split_head, with_parameters

# Mail programs nest up to five levels. Each level scans its content once more.
DEPTH_MAX = 16
# More than real mail has, multiparts included. Later parts are dropped.
PARTS_MAX = 1000

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class MailPart:
    """A part that is not a multipart, or a multipart that cannot be parsed. `is_root`: it is the whole mail."""

    headers: Headers
    body: bytes
    content_type: str
    parameters: dict[str, str]
    is_root: bool


@dataclass(frozen=True, slots=True)
class Mail:
    headers: Headers
    parts: tuple[MailPart, ...]


def read_mail(raw: bytes) -> Mail:
    """Parse any bytes as a mail. Without an empty line all of it is headers; without headers all of it is body."""
    headers, body = split_head(one_line_end(raw.removeprefix(_BYTE_ORDER_MARK)).lstrip(b"\n"))
    parts: list[MailPart] = []
    # Parts still to be parsed, the next one last: an explicit stack instead of recursion.
    waiting = [(headers, body, 0)]
    for _ in range(PARTS_MAX):
        if not waiting:
            break
        head, content, depth = waiting.pop()
        kind, parameters = with_parameters(first(head, "content-type"))
        if kind.startswith("multipart/") and depth < DEPTH_MAX:
            boundary = parameters.get("boundary", "").rstrip()
            pieces = list(_pieces(content, boundary.encode("utf-8", "replace"))) if boundary else []
            if pieces:
                waiting += ((*split_head(piece), depth + 1) for piece in reversed(pieces))
                continue
            # Without a boundary it is treated as plain text.
            kind, parameters = "text/plain", {}
        if kind.count("/") != 1:
            kind = "text/plain"
        parts.append(MailPart(head, content, kind, parameters, depth == 0))
    return Mail(headers, tuple(parts))


def _pieces(body: bytes, boundary: bytes) -> Iterator[bytes]:
    """Yield the bytes between `--boundary` lines, up to `--boundary--` or the end."""
    body = b"\n" + body
    # The preceding line break belongs to the boundary.
    mark = b"\n--" + boundary
    begin = -1
    count = 0
    at = body.find(mark)
    while at >= 0 and count < PARTS_MAX:
        end = body.find(b"\n", at + len(mark))
        end = len(body) if end < 0 else end
        rest = body[at + len(mark) : end].rstrip()
        if rest in {b"", b"--"}:
            if begin >= 0:
                yield body[begin:at]
                count += 1
            if rest:
                return
            begin = end + 1
        # Another boundary may follow directly on the next line.
        at = body.find(mark, end)
    if 0 <= begin < len(body) and count < PARTS_MAX:
        yield body[begin:]
