"""A raw mail taken apart: its head, and the parts that hold something. Nothing here raises.

Python's own reader is not used: it raises for mail that is nested deeply and for some heads, and it takes about three
times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onceward.ingest.email.header import Headers, first, one_line_end, split_head, with_parameters

# Programs that people write with nest to five; every level is read once more.
DEPTH_MAX = 16
# More than anybody sends, counted with those that only hold others. What follows them is left out.
PARTS_MAX = 1000

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is no multipart, or one that cannot be read as such. `is_root` says that it is all of the mail."""

    headers: Headers
    body: bytes
    content_type: str
    parameters: dict[str, str]
    is_root: bool


@dataclass(frozen=True, slots=True)
class Mail:
    headers: Headers
    parts: tuple[Part, ...]


def read_mail(raw: bytes) -> Mail:
    """The mail, of whatever bytes. What has no blank line is all head; what does not begin with a head is all body."""
    headers, body = split_head(one_line_end(raw.removeprefix(_BYTE_ORDER_MARK)).lstrip(b"\n"))
    parts: list[Part] = []
    # The parts that are still to be read, the next one last: a mail is no deeper than we say, nor is the stack.
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
            # Nothing says where parts begin: it is text, as far as anyone can see.
            kind, parameters = "text/plain", {}
        if kind.count("/") != 1:
            kind = "text/plain"
        parts.append(Part(head, content, kind, parameters, depth == 0))
    return Mail(headers, tuple(parts))


def _pieces(body: bytes, boundary: bytes) -> Iterator[bytes]:
    """What lies between the lines that say `--boundary`, up to the one that says `--boundary--`, or to the end."""
    body = b"\n" + body
    # The end of the line before belongs to the mark.
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
        # The line that ends here may be followed by a mark at once.
        at = body.find(mark, end)
    if 0 <= begin < len(body) and count < PARTS_MAX:
        yield body[begin:]
