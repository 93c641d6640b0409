"""Valid and malicious archives, generated here."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping

_LOCAL = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()


def streamed_zip(files: Mapping[str, bytes]) -> bytes:
    """A ZIP file from a tool that cannot seek: the sizes follow the content."""

    class Forward(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise io.UnsupportedOperation

    target = Forward()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()


def tarred(files: Mapping[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form) as archive:
        for name, content in files.items():
            described = tarfile.TarInfo(name)
            described.size = len(content)
            archive.addfile(described, io.BytesIO(content))
    return target.getvalue()


def gzipped(content: bytes) -> bytes:
    return gzip.compress(content, 9, mtime=0)


def deflated(content: bytes, *, final: bool = True) -> bytes:
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    return engine.compress(content) + engine.flush(zlib.Z_FINISH if final else zlib.Z_FULL_FLUSH)


def local(
    name: bytes, packed: int, content: bytes, *, size: int | None = None, flags: int = 0, method: int = 8
) -> bytes:
    size = len(content) if size is None else size
    return _LOCAL.pack(b"PK\3\4", 20, flags, method, 0, 0, zlib.crc32(content), packed, size, len(name), 0) + name


def entry(name: bytes, packed: int, content: bytes, offset: int, *, size: int | None = None, flags: int = 0,
          method: int = 8, mode: int = 0o100644, extra: bytes = b"") -> bytes:  # fmt: skip
    size = len(content) if size is None else size
    crc = zlib.crc32(content)
    header = _ENTRY.pack(b"PK\1\2", 0x0314, 20, flags, method, 0, 0, crc, packed, size, len(name), len(extra), 0, 0, 0,
                         mode << 16, offset)  # fmt: skip
    return header + name + extra


def ended(body: bytes, directory: bytes, count: int) -> bytes:
    return body + directory + _END.pack(b"PK\5\6", 0, 0, count, count, len(directory), len(body), 0)


def one_entry(content: bytes, *, size: int | None = None, flags: int = 0, method: int = 8, name: bytes = b"a",
              mode: int = 0o100644, extra: bytes = b"", local_name: bytes | None = None) -> bytes:  # fmt: skip
    """A zip with one entry, whose header may be false."""
    packed = deflated(content) if method == 8 else content
    body = local(local_name or name, len(packed), content, size=size, flags=flags, method=method) + packed
    listed = entry(name, len(packed), content, 0, size=size, flags=flags, method=method, mode=mode, extra=extra)
    return ended(body, listed, 1)


def quoted_overlap(count: int, kernel: int) -> bytes:
    """David Fifield's bomb: each entry quotes the header of the next, and so all contain the last one's zeros."""
    inner = b"\0" * kernel
    body = deflated(inner)
    packed, content, listed = len(body), inner, []
    for number in range(count - 1, -1, -1):
        name = b"%04d" % number
        header = local(name, packed, content)
        listed.append((name, packed, content, len(body) + len(header)))
        body = header + body
        # A stored block that is not the last one, with the header that we have just written.
        quote = struct.pack("<BHH", 0, len(header), len(header) ^ 0xFFFF)
        if number:
            body = quote + body
            packed += len(header) + len(quote)
            content = header + content
    directory = b"".join(
        entry(name, packed, content, len(body) - behind) for name, packed, content, behind in reversed(listed)
    )
    return ended(body, directory, count)


def full_overlap(count: int, kernel: int) -> bytes:
    """Every entry of the directory is the same entry."""
    content = b"\0" * kernel
    packed = deflated(content)
    body = local(b"a", len(packed), content) + packed
    return ended(body, entry(b"a", len(packed), content, 0) * count, count)
