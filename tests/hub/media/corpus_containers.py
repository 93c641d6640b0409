"""Files of the corpus that are archives or documents packed as such. All bytes are made here."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
from collections.abc import Mapping

OOXML = "application/vnd.openxmlformats-officedocument"
ODF = "application/vnd.oasis.opendocument"
_TYPES = b'<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>'


def zipped(
    names: Mapping[str, bytes], *, first: str = "", method: int = zipfile.ZIP_DEFLATED, padding: int = 0
) -> bytes:
    """A ZIP file; `first` is the content of an unpacked `mimetype` in front; `padding` makes it large."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        if first:
            archive.writestr(zipfile.ZipInfo("mimetype"), first)
        for name, data in names.items():
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=method)
        if padding:
            archive.writestr(zipfile.ZipInfo("media/padding.bin"), bytes(padding), compress_type=zipfile.ZIP_STORED)
    return buffer.getvalue()


def office(folder: str, main: str, *more: str) -> dict[str, bytes]:
    return {"[Content_Types].xml": _TYPES, "_rels/.rels": b"<r/>", f"{folder}/{main}": b"<d/>"} | dict.fromkeys(
        more, b"x"
    )


# The characteristics of each kind of ZIP file: (type, names, content of `mimetype`).
KINDS: tuple[tuple[str, dict[str, bytes], str], ...] = (
    ("application/zip", {"a.txt": b"a", "b/c.txt": b"c"}, ""),
    (f"{OOXML}.wordprocessingml.document", office("word", "document.xml"), ""),
    (f"{OOXML}.spreadsheetml.sheet", office("xl", "workbook.xml"), ""),
    (f"{OOXML}.presentationml.presentation", office("ppt", "presentation.xml"), ""),
    ("application/vnd.ms-word.document.macroenabled.12", office("word", "document.xml", "word/vbaProject.bin"), ""),
    ("application/vnd.ms-excel.sheet.binary.macroenabled.12", office("xl", "workbook.bin"), ""),
    (f"{ODF}.text", {"content.xml": b"<c/>", "META-INF/manifest.xml": b"<m/>"}, f"{ODF}.text"),
    (f"{ODF}.spreadsheet", {"content.xml": b"<c/>"}, f"{ODF}.spreadsheet"),
    (f"{ODF}.presentation", {"content.xml": b"<c/>"}, f"{ODF}.presentation"),
    ("application/epub+zip", {"META-INF/container.xml": b"<c/>", "OEBPS/a.xhtml": b"<h/>"}, "application/epub+zip"),
    ("application/java-archive", {"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\n", "A.class": b"\xca\xfe"}, ""),
    (
        "application/vnd.android.package-archive",
        {"AndroidManifest.xml": b"\x03\x00", "classes.dex": b"dex\n", "META-INF/MANIFEST.MF": b"M"},
        "",
    ),
    ("model/3mf", {"[Content_Types].xml": _TYPES, "3D/3dmodel.model": b"<model/>"}, ""),
    ("application/vnd.google-earth.kmz", {"doc.kml": b"<kml/>", "files/a.png": b"p"}, ""),
    ("application/vnd.apple.pages", {"Index/Document.iwa": b"i", "Metadata/Properties.plist": b"p"}, ""),
)


def tar(kind: int = tarfile.USTAR_FORMAT, padding: int = 0) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        for name, data in (("notes/a.txt", b"hello\n"), ("b.bin", bytes(padding))):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def old_tar() -> bytes:
    """A header of before 1988: no mark, only its sum."""
    block = bytearray(512)
    block[:9] = b"plain.txt"
    block[100:107] = b"0000644"
    block[124:136] = b"00000000005 "
    block[136:148] = b"14000000000 "
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block) + b"hello".ljust(512, b"\0") + bytes(1024)


def squeezed(data: bytes) -> dict[str, bytes]:
    """The same in every packing that is a stream."""
    return {
        "application/gzip": gzip.compress(data, mtime=0),
        "application/x-bzip2": bz2.compress(data),
        "application/x-xz": lzma.compress(data),
        "application/zstd": b"\x28\xb5\x2f\xfd\x04\x00" + struct.pack("<I", len(data) << 3 | 1)[:3] + data[:4096],
        "application/x-lz4": b"\x04\x22\x4d\x18\x64\x40\xa7" + struct.pack("<I", len(data)) + data[:4096],
    }


def ole(stream: str, *, shift: int = 9, after: int = 0) -> bytes:
    """An OLE document with one telling stream, in the directory sector behind `after` others."""
    size = 1 << shift
    per_sector = size // 128
    chain = after + 1
    header = bytearray(512)
    header[:8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
    struct.pack_into("<HHHHH", header, 24, 0x3E, 3 if shift == 9 else 4, 0xFFFE, shift, 6)
    struct.pack_into("<I", header, 44, 1)
    struct.pack_into("<I", header, 48, 1)
    struct.pack_into("<109I", header, 76, 0, *([0xFFFFFFFF] * 108))
    links = [0xFFFFFFFD, *range(2, chain + 1), 0xFFFFFFFE]
    fat = struct.pack(f"<{size // 4}I", *links, *([0xFFFFFFFF] * (size // 4 - len(links))))
    names = ["Root Entry", *(f"Other{number}" for number in range(after * per_sector)), stream]
    entries = [_entry(name, 5 if name == "Root Entry" else 2) for name in names]
    directory = b"".join(entries).ljust(chain * size, b"\0")[: (chain + 1) * size]
    return bytes(header).ljust(size, b"\0") + fat + directory + bytes(size)


def _entry(name: str, kind: int) -> bytes:
    wide = name.encode("utf-16-le")
    entry = bytearray(128)
    entry[: len(wide)] = wide
    struct.pack_into("<HB", entry, 64, len(wide) + 2, kind)
    return bytes(entry)


OLE_KINDS = {
    "WordDocument": "application/msword",
    "Workbook": "application/vnd.ms-excel",
    "PowerPoint Document": "application/vnd.ms-powerpoint",
    "__properties_version1.0": "application/vnd.ms-outlook",
}
