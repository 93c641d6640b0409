"""Conditions and ranges of a download (RFC 9110): what is asked for, decided from the headers alone."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

# A longer header is ignored, as it may be.
RANGE_CHARACTERS_MAX = 64
# More digits than any size has; they would only cost time to read.
_DIGITS_MAX = 18
_BLANKS = " \t\r\n\f\v"


@dataclass(frozen=True, slots=True)
class Whole:
    """All of it: no range was asked for, or one that is left unheeded, as it may be."""


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes from `start` up to, and without, `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Unsatisfiable:
    """Nothing of what was asked for is there."""


def wanted(range_header: str | None, if_range: str | None, etag: str, size: int) -> Whole | Part | Unsatisfiable:
    """What of the content is sent. Several ranges in one request are answered with all of it."""
    if range_header is None or (if_range is not None and if_range.strip() != etag):
        return Whole()
    ends = _ends_of(range_header)
    if ends is None or ends == ("", ""):
        return Whole()
    first, last = ends
    if not first:
        length = int(last)
        return Unsatisfiable() if length == 0 or size == 0 else Part(max(0, size - length), size)
    start = int(first)
    end = size if not last else min(size, int(last) + 1)
    if last and int(last) < start:
        return Whole()
    return Part(start, end) if start < size else Unsatisfiable()


def _ends_of(range_header: str) -> tuple[str, str] | None:
    """The digits before and behind the dash of one range of bytes, either of which may be empty; None for all else."""
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
    """Whether the client has it already."""
    if if_none_match is None:
        return False
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in tags or etag in tags


def disposition(kind: str, filename: str | None) -> str:
    """`Content-Disposition` with a name that every browser reads (RFC 6266): plain where it can be, and encoded."""
    if filename is None:
        return kind
    plain = "".join(one if " " <= one <= "~" and one not in '"\\%' else "_" for one in filename)
    if plain == filename:
        return f'{kind}; filename="{plain}"'
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"
