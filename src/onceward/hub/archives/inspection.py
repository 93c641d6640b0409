"""Inspection of one archive: its format, and a walk through its entries and nested archives."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

from onceward.hub.archives import gzip, tar, zip  # noqa: A004  # `zip` is the name of the format
from onceward.hub.archives.limits import ArchiveTally, Malformed, Member, refusal
from onceward.hub.archives.reader import Measured, Stream, pieces_of

# A zip is read from its end, so a nested one is held in memory as a whole. A larger one counts as unread.
NESTED_ZIP_BYTES_MAX = 16 * 1024 * 1024


def inspect_file(file: BinaryIO, expected: str | None, tally: ArchiveTally) -> str | None:
    """Inspect a file and return its format, or None if the format is unknown and none was expected."""
    kind = _kind_of(file.read(tar.BLOCK_BYTES)) or expected
    file.seek(0)
    match kind:
        case "zip":
            _walk(zip.members(file, tally.packed_bytes, tally), tally, 0)
        case "tar":
            _walk(_tar(Stream(pieces_of(file))), tally, 0)
        case "gz":
            return _inspect_gzip(Stream(pieces_of(file)), tally, 0)
    return kind


def _kind_of(head: bytes) -> str | None:
    if head.startswith(zip.MAGICS):
        return "zip"
    if head.startswith(gzip.MAGIC):
        return "gz"
    return "tar" if tar.is_header(head) else None


def _tar(stream: Stream) -> Iterator[Member]:
    if not stream.peek(1):
        raise Malformed("the tar file is empty")
    yield from tar.members(stream)


def _inspect_gzip(stream: Stream, tally: ArchiveTally, depth: int) -> str:
    """Inspect a gzip file. A tar inside is not another level: both are unpacked in one step and counted once."""
    inner = Stream(_with_depth(tally.counted(gzip.decompressed(stream.rest())), depth))
    if tar.is_header(inner.peek(tar.BLOCK_BYTES)):
        _walk(tar.members(inner), tally, depth, counted=True)
        inner.drain()
        return "tar.gz"
    tally.member(Member("", 0, iter(())), depth)
    measured = Measured(inner.rest())
    _nested(Stream(iter(measured)), tally, depth + 1)
    tally.size(measured.count, depth)
    return "gz"


def _walk(members: Iterator[Member], tally: ArchiveTally, depth: int, *, counted: bool = False) -> None:
    """Inspect all members. With `counted`, the bytes of the members were already counted."""
    for member in members:
        tally.member(member, depth)
        tally.size(member.size, depth)
        if member.content is None:
            tally.unpacked(member.size)
            continue
        measured = Measured(member.content if counted else tally.counted(member.content))
        _nested(Stream(_with_depth(iter(measured), depth)), tally, depth + 1)
        if member.size > measured.count:
            # A sparse file: its holes are not in the archive, but may take space on the disk.
            tally.unpacked(member.size - measured.count)


def _nested(stream: Stream, tally: ArchiveTally, depth: int) -> None:
    """Read a member to its end, and inspect it if it is an archive itself."""
    kind = _kind_of(stream.peek(tar.BLOCK_BYTES))
    if kind is not None:
        tally.nested += 1
        if depth > tally.limits.max_depth:
            raise refusal("max_depth", f"archives are nested more than {tally.limits.max_depth} levels deep")
        try:
            _inspect_nested(stream, kind, tally, depth)
        except Malformed as error:
            if error.depth is not None and error.depth < depth:
                raise
            tally.nested_unread += 1
    stream.drain()


def _inspect_nested(stream: Stream, kind: str, tally: ArchiveTally, depth: int) -> None:
    match kind:
        case "gz":
            _inspect_gzip(stream, tally, depth)
        case "tar":
            _walk(tar.members(stream), tally, depth)
        case _:
            data = b"".join(stream.take(NESTED_ZIP_BYTES_MAX))
            if stream.peek(1):
                tally.nested_unread += 1
                return
            _walk(zip.members(io.BytesIO(data), len(data), tally), tally, depth)


def _with_depth(pieces: Iterator[bytes], depth: int) -> Iterator[bytes]:
    """Yield the pieces, and record in a `Malformed` error at which level of nesting it was raised."""
    try:
        yield from pieces
    except Malformed as error:
        if error.depth is None:
            error.depth = depth
        raise
