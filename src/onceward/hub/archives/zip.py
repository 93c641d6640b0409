"""Zip: a directory at the end lists the entries. It is checked strictly, because unpackers trust it.

The directory, the header before each entry and the bytes themselves must agree. Entries must not share bytes: in the
zip bombs of David Fifield, thousands of entries refer to one piece of compressed data or quote each other's headers, so
that a few megabytes unpack to petabytes in one step.
"""

from __future__ import annotations

import bz2
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO, Literal

from onceward.hub.archives.gzip import inflated
from onceward.hub.archives.limits import ArchiveTally, Malformed, Member, refusal
from onceward.hub.archives.reader import PIECE_BYTES

MAGICS = (b"PK\x03\x04", b"PK\x05\x06")

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_FIELD = struct.Struct("<2H")

_ENCRYPTED, _SIZES_FOLLOW, _UTF8 = 0x1, 0x8, 0x800
_UNIX = 3
_STORED, _DEFLATED, _BZIP2 = 0, 8, 12
_IN_FIELD = 0xFFFFFFFF
_LARGE_NUMBERS, _UNICODE_NAME = 0x0001, 0x7075
_UTF8_BYTES_MAX = 4


@dataclass(frozen=True, slots=True)
class _Entry:
    raw_name: bytes
    name: str
    other_name: str
    flags: int
    method: int
    packed: int
    size: int
    offset: int
    mode: int


def members(file: BinaryIO, size: int, tally: ArchiveTally) -> Iterator[Member]:
    """Yield the entries, after checking everything that the headers show."""
    entries, shift, directory = _directory(file, size, tally)
    tally.check_unpacked(sum(entry.size for entry in entries))
    starts = [_data_start(file, entry, shift) for entry in entries]
    spans = sorted((entry.offset + shift, start + entry.packed) for entry, start in zip(entries, starts, strict=True))
    for (_, end), (following, _) in pairwise([*spans, (directory, directory)]):
        if end > following:
            raise refusal("no_overlap", "entries of the archive overlap, as in a zip bomb")
    for entry, start in zip(entries, starts, strict=True):
        encrypted = bool(entry.flags & _ENCRYPTED)
        readable = not encrypted and entry.method in _ENGINES
        content = _content(file, entry, start) if readable else None
        yield Member(entry.name, entry.size, content, _kind(entry), encrypted, entry.other_name)


def _directory(file: BinaryIO, size: int, tally: ArchiveTally) -> tuple[list[_Entry], int, int]:
    """Return the entries, the offset of the archive in the file, and the start of its directory."""
    window = min(size, _END.size + 0xFFFF)
    file.seek(size - window)
    tail = file.read(window)
    found = tail.rfind(b"PK\x05\x06")
    if found < 0 or len(tail) - found < _END.size:
        raise Malformed("the zip file has no central directory")
    _, disk, _, _, count, length, offset, comment = _END.unpack_from(tail, found)
    if len(tail) - found - _END.size != comment or disk not in {0, 0xFFFF}:
        raise Malformed("the zip file has data after its end, is truncated, or is a part of a multi-volume archive")
    end = size - window + found
    if end >= _LOCATOR64.size + _END64.size:
        file.seek(end - _LOCATOR64.size - _END64.size)
        large = file.read(_END64.size + _LOCATOR64.size)
        if large.startswith(b"PK\x06\x06") and large[_END64.size :].startswith(b"PK\x06\x07"):
            *_, count, length, offset = _END64.unpack_from(large)
            end -= _LOCATOR64.size + _END64.size
    tally.check_entries(count)
    begin = end - length
    if begin < offset:
        raise Malformed("the central directory of the zip file is not at its declared offset")
    file.seek(begin)
    entries = []
    while file.tell() < end:
        entries.append(_entry(file, tally))
        tally.check_entries(len(entries))
    if len(entries) != count or file.tell() != end:
        raise Malformed("the central directory of the zip file does not have its declared length")
    return entries, begin - offset, begin


def _entry(file: BinaryIO, tally: ArchiveTally) -> _Entry:
    header = file.read(_ENTRY.size)
    if len(header) < _ENTRY.size or not header.startswith(b"PK\x01\x02"):
        raise Malformed("the central directory of the zip file is damaged")
    (_, system, _, flags, method, _, _, _, packed, size, name_length, extra_length, comment_length, _, _,
     attributes, offset) = _ENTRY.unpack(header)  # fmt: skip
    if name_length > _UTF8_BYTES_MAX * tally.limits.max_path_length:
        raise refusal(
            "max_path_length", f"a path in the archive has more than {tally.limits.max_path_length} characters"
        )
    raw_name, extra = file.read(name_length), file.read(extra_length)
    file.seek(comment_length, 1)
    fields = _fields(extra)
    size, packed, offset = _large(fields.get(_LARGE_NUMBERS, b""), (size, packed, offset))
    mode = attributes >> 16 if system >> 8 == _UNIX else 0
    # The name comes after a version and a checksum.
    other_name = fields.get(_UNICODE_NAME, b"")[5:].decode("utf-8", "surrogateescape")
    return _Entry(raw_name, _text(raw_name, flags), other_name, flags, method, packed, size, offset, mode)


def _fields(extra: bytes) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    while len(extra) >= _FIELD.size:
        kind, length = _FIELD.unpack_from(extra)
        fields.setdefault(kind, extra[_FIELD.size : _FIELD.size + length])
        extra = extra[_FIELD.size + length :]
    return fields


def _large(data: bytes, short: tuple[int, int, int]) -> tuple[int, int, int]:
    """Replace numbers that do not fit into 32 bits by those of the zip64 field, which has just these, in this order."""
    numbers = []
    for number in short:
        if number != _IN_FIELD:
            numbers.append(number)
            continue
        if len(data) < 8:  # noqa: PLR2004  # a number of 64 bits
            raise Malformed("a zip64 field of the zip file is incomplete")
        numbers.append(int.from_bytes(data[:8], "little"))
        data = data[8:]
    return numbers[0], numbers[1], numbers[2]


def _data_start(file: BinaryIO, entry: _Entry, shift: int) -> int:
    file.seek(entry.offset + shift)
    header = file.read(_LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(b"PK\x03\x04"):
        raise Malformed("an entry of the zip file is not at its offset in the central directory")
    flags: int
    name_length: int
    extra_length: int
    _, _, flags, method, _, _, _, packed, size, name_length, extra_length = _LOCAL.unpack(header)
    sizes_agree = flags & _SIZES_FOLLOW or (packed in {entry.packed, _IN_FIELD} and size in {entry.size, _IN_FIELD})
    name_agrees = name_length == len(entry.raw_name) and file.read(name_length) == entry.raw_name
    if not sizes_agree or not name_agrees or method != entry.method or (flags ^ entry.flags) & _ENCRYPTED:
        raise Malformed("the header of an entry of the zip file contradicts the central directory")
    return entry.offset + shift + _LOCAL.size + name_length + extra_length


def _content(file: BinaryIO, entry: _Entry, start: int) -> Iterator[bytes]:
    """Yield the content of an entry, which must have its declared size."""
    count = 0
    for piece in _ENGINES[entry.method](_packed(file, start, entry.packed)):
        count += len(piece)
        if count > entry.size:
            raise refusal(
                "declared_sizes", f"an entry of the archive is larger than its declared size: {entry.name[:100]!r}"
            )
        yield piece
    if count < entry.size:
        raise Malformed("an entry of the zip file is smaller than its declared size")


def _packed(file: BinaryIO, start: int, count: int) -> Iterator[bytes]:
    """Yield the packed bytes. Seeks before each read, because other code may move the file position in between."""
    while count:
        file.seek(start)
        if not (piece := file.read(min(count, PIECE_BYTES))):
            raise Malformed("the zip file is truncated")
        start += len(piece)
        count -= len(piece)
        yield piece


def _inflated(packed: Iterator[bytes]) -> Iterator[bytes]:
    return inflated(b"", packed, -zlib.MAX_WBITS, "an entry of the zip file")


def _unbzipped(packed: Iterator[bytes]) -> Iterator[bytes]:
    engine = bz2.BZ2Decompressor()
    try:
        while not engine.eof:
            data = next(packed, b"") if engine.needs_input else b""
            if engine.needs_input and not data:
                raise Malformed("an entry of the zip file is truncated")
            if piece := engine.decompress(data, PIECE_BYTES):
                yield piece
    except OSError as error:
        raise Malformed(f"an entry of the zip file is damaged ({error})") from None


_ENGINES: dict[int, Callable[[Iterator[bytes]], Iterator[bytes]]] = {
    _STORED: lambda packed: packed,
    _DEFLATED: _inflated,
    _BZIP2: _unbzipped,
}


def _kind(entry: _Entry) -> Literal["file", "folder", "link", "device"]:
    if stat.S_ISLNK(entry.mode):
        return "link"
    if stat.S_IFMT(entry.mode) in {stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK}:
        return "device"
    return "folder" if entry.name.endswith("/") else "file"


def _text(name: bytes, flags: int) -> str:
    return name.decode("utf-8", "surrogateescape") if flags & _UTF8 else name.decode("cp437")
