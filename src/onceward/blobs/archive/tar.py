"""Tar: a header of 512 bytes before each entry. Read in order, so that it may come out of a decompressor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onceward.blobs.archive.stream import Stream
from onceward.blobs.archive.tally import Malformed, Member

BLOCK_BYTES = 512
# Long names and further fields are headers of their own, held at once. Ours may be 1,024 characters.
_EXTENSION_BYTES_MAX = 1024 * 1024
# The file system has no folder in a file; a file of this size would have no end.
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
    """What the headers before an entry say about it."""

    name: str | None = None
    size: int | None = None
    real_size: int | None = None


def is_header(block: bytes) -> bool:
    """The sum of its bytes stands in every header; nothing else has it by chance. Some tools add them with a sign."""
    if len(block) < BLOCK_BYTES:
        return False
    try:
        told = int(block[148:156].strip(b" \0") or b"x", 8)
    except ValueError:
        return False
    summed = block[:148] + b" " * 8 + block[156:BLOCK_BYTES]
    negative = sum(byte >= 0x80 for byte in summed)  # noqa: PLR2004  # the highest bit
    return told in {sum(summed), sum(summed) - 256 * negative}


def members(stream: Stream) -> Iterator[Member]:
    """Each entry's content must be read, or left, before the next is asked for."""
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
            # These have no content, whatever their size says; so say the tools that unpack them.
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
        raise Malformed("the tar file is cut off")


def _extension(stream: Stream, size: int) -> bytes:
    if size > _EXTENSION_BYTES_MAX:
        raise Malformed("a tar header is too long")
    data = stream.read(size + -size % BLOCK_BYTES)
    if len(data) < size:
        raise Malformed("the tar file is cut off")
    return data[:size]


def _extended(known: _Extensions, kind: bytes, data: bytes) -> _Extensions:
    if kind == b"L":
        return _Extensions(_text(data.partition(b"\0")[0]), known.size, known.real_size)
    if kind == b"K":
        # The target of a link.
        return known
    fields = dict(_records(data))
    if kind == b"g":
        # For all entries that follow. Tools do not agree on what a name or size for all of them means.
        if not fields.keys().isdisjoint({b"path", b"size", *_SPARSE}):
            raise Malformed("a tar header gives all entries one name or size")
        return known
    name = fields.get(_SPARSE_NAME, fields.get(b"path"))
    real_size = next((fields[size] for size in _SPARSE_SIZES if size in fields), None)
    return _Extensions(
        known.name if name is None else _text(name),
        known.size if b"size" not in fields else _decimal(fields[b"size"]),
        known.real_size if real_size is None else _decimal(real_size),
    )


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The length of all of it, a blank, a name, an equals sign, a value, the end of the line."""
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
            raise Malformed("the tar file is cut off")
        more = extension[504]
    return _number(block[483:495])


def _name(block: bytes) -> str:
    name, prefix = (_text(part.partition(b"\0")[0]) for part in (block[:100], block[345:500]))
    return f"{prefix}/{name}" if prefix and block[257:263] == b"ustar\0" else name


def _number(digits: bytes) -> int:
    """Octal, or with the highest bit set, binary."""
    if digits[0] & 0x80:
        value = int.from_bytes(digits, "big") - (0x80 << 8 * (len(digits) - 1))
    else:
        try:
            value = int(digits.strip(b" \0") or b"0", 8)
        except ValueError:
            raise Malformed("a tar header has a damaged number") from None
    return _sane(value)


def _decimal(digits: bytes) -> int:
    # Longer ones are no sizes; Python also takes blanks, signs and underscores for parts of a number.
    if not digits.isdigit() or len(digits) > 20:  # noqa: PLR2004  # the digits of 2**64
        raise Malformed("a tar header has a damaged number")
    return _sane(int(digits))


def _sane(value: int) -> int:
    if not 0 <= value < _SIZE_MAX:
        raise Malformed("a tar header has an impossible number")
    return value


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
