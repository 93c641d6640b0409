"""Tar: a header of 512 bytes before each entry. It is read in order, so the input can be a decompressor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onceward.hub.archives.limits import Malformed, Member
from onceward.hub.archives.reader import Stream

BLOCK_BYTES = 512
# Long names and extra fields are separate headers, each read at once. Paths are limited to 1,024 characters by default.
_EXTENSION_BYTES_MAX = 1024 * 1024
# No file is this large.
_SIZE_MAX = 2**62

_FILES = frozenset({b"0", b"\0", b"7", b"S"})
_KINDS: dict[bytes, Literal["link", "device", "folder"]] = {
    b"1": "link",
    b"2": "link",
    b"3": "device",
    b"4": "device",
    b"5": "folder",
    b"6": "device",
}


_SPARSE_NAME = b"GNU.sparse.name"
_SPARSE_SIZES = (b"GNU.sparse.realsize", b"GNU.sparse.size")
_SPARSE = (_SPARSE_NAME, *_SPARSE_SIZES)


@dataclass(frozen=True, slots=True)
class _Extensions:
    """Values from the extension headers before an entry."""

    name: str | None = None
    size: int | None = None
    real_size: int | None = None


def is_header(block: bytes) -> bool:
    """Return whether a block has the checksum of a tar header. Some tools sum the bytes as signed numbers."""
    if len(block) < BLOCK_BYTES:
        return False
    try:
        declared = int(block[148:156].strip(b" \0") or b"x", 8)
    except ValueError:
        return False
    summed = block[:148] + b" " * 8 + block[156:BLOCK_BYTES]
    negative = sum(byte >= 0x80 for byte in summed)  # noqa: PLR2004  # the highest bit
    return declared in {sum(summed), sum(summed) - 256 * negative}


def members(stream: Stream) -> Iterator[Member]:
    """Yield the entries. The content of an entry can be read only until the next entry is requested."""
    extensions = _Extensions()
    while (block := stream.read(BLOCK_BYTES)) and block != bytes(BLOCK_BYTES):
        if not is_header(block):
            raise Malformed("a tar header is damaged")
        kind, size = block[156:157], _number(block[124:136])
        if kind in b"LKxXg":
            extensions = _extended(extensions, kind, _extension(stream, size))
            continue
        name, size = extensions.name or _name(block), size if extensions.size is None else extensions.size
        if (plain := _KINDS.get(kind)) is not None:
            # These have no content, whatever their size; the usual unpackers agree.
            yield Member(name, 0, iter(()), plain)
        else:
            real_size = size if extensions.real_size is None else extensions.real_size
            if kind == b"S":
                real_size = _old_sparse(stream, block)
            content = _content(stream, size)
            yield Member(name, max(size, real_size), content)
            for _ in content:
                pass
        extensions = _Extensions()


def _content(stream: Stream, size: int) -> Iterator[bytes]:
    count = 0
    for piece in stream.take(size):
        count += len(piece)
        yield piece
    padding = -size % BLOCK_BYTES
    if count < size or len(stream.read(padding)) < padding:
        raise Malformed("the tar file is truncated")


def _extension(stream: Stream, size: int) -> bytes:
    if size > _EXTENSION_BYTES_MAX:
        raise Malformed(f"a tar header has {size} bytes, at most {_EXTENSION_BYTES_MAX} are allowed")
    data = stream.read(size + -size % BLOCK_BYTES)
    if len(data) < size:
        raise Malformed("the tar file is truncated")
    return data[:size]


def _extended(known: _Extensions, kind: bytes, data: bytes) -> _Extensions:
    if kind == b"L":
        return _Extensions(_text(data.partition(b"\0")[0]), known.size, known.real_size)
    if kind == b"K":
        # The target of a link.
        return known
    fields = dict(_records(data))
    if kind == b"g":
        # A global header, for all following entries. Tools disagree about a global name or size.
        if not fields.keys().isdisjoint({b"path", b"size", *_SPARSE}):
            raise Malformed("a global tar header sets a name or a size for all entries")
        return known
    name = fields.get(_SPARSE_NAME, fields.get(b"path"))
    real_size = next((fields[size] for size in _SPARSE_SIZES if size in fields), None)
    return _Extensions(
        known.name if name is None else _text(name),
        known.size if b"size" not in fields else _decimal(fields[b"size"]),
        known.real_size if real_size is None else _decimal(real_size),
    )


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Parse pax records: the length of the record, a blank, a name, an equals sign, a value, a newline."""
    while data:
        digits, blank, _ = data.partition(b" ")
        length = _decimal(digits)
        record, data = data[len(digits) + 1 : length], data[length:]
        name, equals, value = record.partition(b"=")
        if not blank or not equals or not value.endswith(b"\n"):
            raise Malformed("a tar header has a damaged field")
        yield name, value[:-1]


def _old_sparse(stream: Stream, block: bytes) -> int:
    more = block[482]
    while more:
        if len(extension := stream.read(BLOCK_BYTES)) < BLOCK_BYTES:
            raise Malformed("the tar file is truncated")
        more = extension[504]
    return _number(block[483:495])


def _name(block: bytes) -> str:
    name, prefix = (_text(part.partition(b"\0")[0]) for part in (block[:100], block[345:500]))
    return f"{prefix}/{name}" if prefix and block[257:263] == b"ustar\0" else name


def _number(digits: bytes) -> int:
    """Parse an octal number, or a binary one if the highest bit is set."""
    if digits[0] & 0x80:
        value = int.from_bytes(digits, "big") - (0x80 << 8 * (len(digits) - 1))
    else:
        try:
            value = int(digits.strip(b" \0") or b"0", 8)
        except ValueError:
            raise Malformed("a tar header has an invalid number") from None
    return _sane(value)


def _decimal(digits: bytes) -> int:
    # Longer numbers are not sizes. `int()` would also accept blanks, signs and underscores.
    if not digits.isdigit() or len(digits) > 20:  # noqa: PLR2004  # the digits of 2**64
        raise Malformed("a tar header has an invalid number")
    return _sane(int(digits))


def _sane(value: int) -> int:
    if not 0 <= value < _SIZE_MAX:
        raise Malformed("a tar header has a number that is out of range")
    return value


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
