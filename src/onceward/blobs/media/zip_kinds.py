"""What a ZIP file is a container for, told by the names in its directory. Nothing is unpacked."""

# ruff: noqa: PLR2004 - the numbers are those of the formats.
from __future__ import annotations

import struct
from collections.abc import Iterator

from onceward.blobs.media.lattice import normal
from onceward.blobs.media.sample import Sample

ZIP = "application/zip"
# The end record is 22 bytes and a comment of at most 64 KiB - 1.
_END_SEARCH_BYTES = 22 + 65_535
# A document's telling names are among its first ones; a directory may have millions.
_DIRECTORY_BYTES = 256 * 1024
_NAMES_MAX = 2_000
_TYPE_BYTES_MAX = 100

_OOXML = "application/vnd.openxmlformats-officedocument"
# (folder of the parts, type, type when macros are in it)
_OFFICE = (
    ("word/", f"{_OOXML}.wordprocessingml.document", "application/vnd.ms-word.document.macroenabled.12"),
    ("xl/", f"{_OOXML}.spreadsheetml.sheet", "application/vnd.ms-excel.sheet.macroenabled.12"),
    ("ppt/", f"{_OOXML}.presentationml.presentation", "application/vnd.ms-powerpoint.presentation.macroenabled.12"),
)
# A file of this name is in every archive of the type. The first row that fits answers.
_MARKS: tuple[tuple[str, str], ...] = (
    ("3D/3dmodel.model", "model/3mf"),
    ("visio/document.xml", "application/vnd.ms-visio.drawing"),
    ("FixedDocSeq.fdseq", "application/vnd.ms-xpsdocument"),
    ("FixedDocumentSequence.fdseq", "application/vnd.ms-xpsdocument"),
    ("AppxManifest.xml", "application/appx"),
    ("AndroidManifest.xml", "application/vnd.android.package-archive"),
    ("META-INF/mozilla.rsa", "application/x-xpinstall"),
    ("META-INF/MANIFEST.MF", "application/java-archive"),
    ("doc.kml", "application/vnd.google-earth.kmz"),
)
# Types that name themselves in a first, unpacked file called `mimetype`.
_SELF_NAMED = ("application/vnd.oasis.opendocument.", "application/epub+zip", "image/openraster", "application/x-krita",
               "application/vnd.sun.xml.", "application/vnd.recordare.musicxml")  # fmt: skip


def _named_itself(head: bytes) -> str | None:
    """The contents of a first file called `mimetype` that is stored as it is."""
    if len(head) < 38 or head[30:38] != b"mimetype":  # A local header and that name.
        return None
    method, length = struct.unpack_from("<H", head, 8)[0], struct.unpack_from("<I", head, 18)[0]
    name_bytes, extra_bytes = struct.unpack_from("<HH", head, 26)
    start = 30 + name_bytes + extra_bytes
    if method != 0 or name_bytes != 8 or not 0 < length <= _TYPE_BYTES_MAX:
        # A length of 0 means that it follows the data; then the data end where the next record begins.
        length = head.find(b"PK", start, start + _TYPE_BYTES_MAX) - start
        if method != 0 or name_bytes != 8 or length <= 0:
            return None
    said = normal(head[start : start + length].decode("ascii", "replace"))
    return said if said is not None and said.startswith(_SELF_NAMED) else None


def _directory(sample: Sample) -> bytes:
    """The beginning of the central directory; empty where there is none that can be found."""
    end = sample.tail(_END_SEARCH_BYTES)
    place = end.rfind(b"PK\x05\x06")
    if place < 0 or len(end) - place < 22:
        return b""
    length, start = struct.unpack_from("<II", end, place + 12)
    # What was put before the archive moves everything: the directory ends where the end record begins.
    position = sample.size - len(end) + place - length
    if 0xFFFFFFFF in {length, start}:
        locator = end[max(0, place - 20) : place]
        if not locator.startswith(b"PK\x06\x07"):
            return b""
        record = sample.read(struct.unpack_from("<Q", locator, 8)[0], 56)
        if not record.startswith(b"PK\x06\x06") or len(record) < 56:
            return b""
        length, position = struct.unpack_from("<QQ", record, 40)
    return sample.read(position, min(length, _DIRECTORY_BYTES))


def _directory_names(directory: bytes) -> Iterator[str]:
    place = 0
    while directory.startswith(b"PK\x01\x02", place) and len(directory) >= place + 46:
        name, extra, comment = struct.unpack_from("<HHH", directory, place + 28)
        yield directory[place + 46 : place + 46 + name].decode("utf-8", "replace")
        place += 46 + name + extra + comment


def _local_names(head: bytes) -> Iterator[str]:
    """The names in the beginning itself, for a file that was cut off before its directory."""
    place = head.find(b"PK\x03\x04")
    while place >= 0 and len(head) >= place + 30:
        (name,) = struct.unpack_from("<H", head, place + 26)
        yield head[place + 30 : place + 30 + name].decode("utf-8", "replace")
        place = head.find(b"PK\x03\x04", place + 30)


def _names(sample: Sample) -> set[str]:
    found: set[str] = set()
    for name in _directory_names(_directory(sample)):
        found.add(name)
        if len(found) == _NAMES_MAX:
            break
    return found or set(_local_names(sample.head))


def _office(names: set[str]) -> str | None:
    if "[Content_Types].xml" not in names:
        return None
    if "xl/workbook.bin" in names:
        return "application/vnd.ms-excel.sheet.binary.macroenabled.12"
    for folder, plain, with_macros in _OFFICE:
        if any(name.startswith(folder) for name in names):
            return with_macros if f"{folder}vbaProject.bin" in names else plain
    return None


def _apple(names: set[str]) -> str | None:
    if "Index/Document.iwa" not in names:
        return None
    if any(name.startswith("Index/Slide") for name in names):
        return "application/vnd.apple.keynote"
    if "Index/CalculationEngine.iwa" in names and any(name.startswith("Index/Tables/") for name in names):
        return "application/vnd.apple.numbers"
    return "application/vnd.apple.pages"


def kind(sample: Sample) -> str | None:
    """The type of a file that begins as ZIP files do, `application/zip` where it is nothing more; None for others."""
    head = sample.head
    if head.startswith((b"PK\x05\x06", b"PK\x07\x08")):
        return ZIP
    if not head.startswith(b"PK\x03\x04"):
        return None
    said = _named_itself(head)
    if said is not None:
        return said
    names = _names(sample)
    found = _office(names) or _apple(names)
    if found is not None:
        return found
    for mark, media_type in _MARKS:
        if mark in names:
            return media_type
    if any(name.startswith("Payload/") and name.endswith(".app/Info.plist") for name in names):
        return "application/x-ios-app"
    return ZIP
