"""Which kind of archive it is, and through all that is in it, nested archives too."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

from onceward.blobs.archive import gz, tar, zip  # noqa: A004  # the format, whose name is this
from onceward.blobs.archive.stream import Measured, Stream, pieces_of
from onceward.blobs.archive.tally import Malformed, Member, Tally, refusal

# A zip inside another archive is read from its end, so all of it is held while it is looked into; one that is larger is
# counted as not read.
NESTED_ZIP_BYTES_MAX = 16 * 1024 * 1024


def look(file: BinaryIO, expected: str | None, tally: Tally) -> str | None:
    """The format, or None when it is none that we know; then `expected` is None as well."""
    kind = _kind_of(file.read(tar.BLOCK_BYTES)) or expected
    file.seek(0)
    match kind:
        case "zip":
            _walk(zip.members(file, tally.packed_bytes, tally), tally, 0)
        case "tar":
            _walk(_tar(Stream(pieces_of(file))), tally, 0)
        case "gz":
            return _through_gz(Stream(pieces_of(file)), tally, 0)
    return kind


def _kind_of(head: bytes) -> str | None:
    if head.startswith(zip.MAGICS):
        return "zip"
    if head.startswith(gz.MAGIC):
        return "gz"
    return "tar" if tar.is_header(head) else None


def _tar(stream: Stream) -> Iterator[Member]:
    if not stream.peek(1):
        raise Malformed("the tar file is empty")
    yield from tar.members(stream)


def _through_gz(stream: Stream, tally: Tally, depth: int) -> str:
    """A tar inside is not a level of its own: it is unpacked in the same breath, and counted once."""
    inner = Stream(_blamed(tally.counted(gz.decompressed(stream.rest())), depth))
    if tar.is_header(inner.peek(tar.BLOCK_BYTES)):
        _walk(tar.members(inner), tally, depth, counted=True)
        inner.drain()
        return "tar.gz"
    tally.member(Member("", 0, iter(())), depth)
    measured = Measured(inner.rest())
    _nested(Stream(iter(measured)), tally, depth + 1)
    tally.size(measured.count, depth)
    return "gz"


def _walk(members: Iterator[Member], tally: Tally, depth: int, *, counted: bool = False) -> None:
    """With `counted` the bytes of the members are a part of what was counted already."""
    for member in members:
        tally.member(member, depth)
        tally.size(member.size, depth)
        if member.content is None:
            tally.unpacked(member.size)
            continue
        measured = Measured(member.content if counted else tally.counted(member.content))
        _nested(Stream(_blamed(iter(measured), depth)), tally, depth + 1)
        if member.size > measured.count:
            # A sparse file: its holes are not in the archive and are on the disk, or may be.
            tally.unpacked(member.size - measured.count)


def _nested(stream: Stream, tally: Tally, depth: int) -> None:
    """Read to its end, and looked into if it is an archive itself."""
    kind = _kind_of(stream.peek(tar.BLOCK_BYTES))
    if kind is not None:
        tally.nested += 1
        if depth > tally.limits.max_depth:
            raise refusal("max_depth", f"archives lie in each other more than {tally.limits.max_depth} deep")
        try:
            _look_nested(stream, kind, tally, depth)
        except Malformed as error:
            if error.depth is not None and error.depth < depth:
                raise
            tally.nested_unread += 1
    stream.drain()


def _look_nested(stream: Stream, kind: str, tally: Tally, depth: int) -> None:
    match kind:
        case "gz":
            _through_gz(stream, tally, depth)
        case "tar":
            _walk(tar.members(stream), tally, depth)
        case _:
            held = b"".join(stream.take(NESTED_ZIP_BYTES_MAX))
            if stream.peek(1):
                tally.nested_unread += 1
                return
            _walk(zip.members(io.BytesIO(held), len(held), tally), tally, depth)


def _blamed(pieces: Iterator[bytes], depth: int) -> Iterator[bytes]:
    try:
        yield from pieces
    except Malformed as error:
        if error.depth is None:
            error.depth = depth
        raise
