"""Container formats: ZIP archives (by the names in their directory), OLE documents, ISO media, Matroska and Ogg.

Nothing is unpacked.
"""

# ruff: noqa: PLR2004 - the numbers come from the format specifications.
from __future__ import annotations

import struct
from collections.abc import Iterator

from onceward.hub.media.hierarchy import normal
from onceward.hub.media.sample import Sample

ZIP = "application/zip"
# The end record has 22 bytes, followed by a comment of at most 64 KiB - 1.
_END_SEARCH_BYTES = 22 + 65_535
# The names that identify a document are among the first; a directory may have millions of names.
_DIRECTORY_BYTES = 256 * 1024
_NAMES_MAX = 2_000
_TYPE_BYTES_MAX = 100

_OOXML = "application/vnd.openxmlformats-officedocument"
# (folder of the parts, type, type with macros)
_OFFICE = (
    ("word/", f"{_OOXML}.wordprocessingml.document", "application/vnd.ms-word.document.macroenabled.12"),
    ("xl/", f"{_OOXML}.spreadsheetml.sheet", "application/vnd.ms-excel.sheet.macroenabled.12"),
    ("ppt/", f"{_OOXML}.presentationml.presentation", "application/vnd.ms-powerpoint.presentation.macroenabled.12"),
)
# Every archive of the type contains a file of this name. The first matching row decides.
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
# Types that are named in an uncompressed first file called `mimetype`.
_SELF_NAMED = ("application/vnd.oasis.opendocument.", "application/epub+zip", "image/openraster", "application/x-krita",
               "application/vnd.sun.xml.", "application/vnd.recordare.musicxml")  # fmt: skip


def _named_itself(head: bytes) -> str | None:
    """Return the type named in an uncompressed first file called `mimetype`."""
    if len(head) < 38 or head[30:38] != b"mimetype":  # A local header and the name.
        return None
    method, length = struct.unpack_from("<H", head, 8)[0], struct.unpack_from("<I", head, 18)[0]
    name_bytes, extra_bytes = struct.unpack_from("<HH", head, 26)
    start = 30 + name_bytes + extra_bytes
    if method != 0 or name_bytes != 8 or not 0 < length <= _TYPE_BYTES_MAX:
        # A length of 0 means that the length follows the data, which then ends where the next record begins.
        length = head.find(b"PK", start, start + _TYPE_BYTES_MAX) - start
        if method != 0 or name_bytes != 8 or length <= 0:
            return None
    declared = normal(head[start : start + length].decode("ascii", "replace"))
    return declared if declared is not None and declared.startswith(_SELF_NAMED) else None


def _directory(sample: Sample) -> bytes:
    """Read the beginning of the central directory; empty if it is not found."""
    end = sample.tail(_END_SEARCH_BYTES)
    place = end.rfind(b"PK\x05\x06")
    if place < 0 or len(end) - place < 22:
        return b""
    length, start = struct.unpack_from("<II", end, place + 12)
    # Data before the archive shifts all offsets, so count back: the directory ends where the end record begins.
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
    """Yield the names in the local headers at the beginning, for a file that is truncated before its directory."""
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


def zip_kind(sample: Sample) -> str | None:
    """Return the type of a file with a ZIP signature, by default `application/zip`; None for other files."""
    head = sample.head
    if head.startswith((b"PK\x05\x06", b"PK\x07\x08")):
        return ZIP
    if not head.startswith(b"PK\x03\x04"):
        return None
    declared = _named_itself(head)
    if declared is not None:
        return declared
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


OLE = "application/x-ole-storage"
# Names of streams that only one program writes.
_STREAMS = {
    "WordDocument": "application/msword",
    "Workbook": "application/vnd.ms-excel",
    "Book": "application/vnd.ms-excel",
    "PowerPoint Document": "application/vnd.ms-powerpoint",
    "__properties_version1.0": "application/vnd.ms-outlook",
    "VisioDocument": "application/vnd.visio",
    "Quill": "application/vnd.ms-publisher",
}
_INSTALLER_CLASS = bytes.fromhex("84100c0000000000c000000000000046")
# The most sectors of a directory that are read; real directories are shorter.
_SECTORS_MAX = 32
_ENTRY_BYTES = 128

_BRANDS = {
    b"avif": "image/avif", b"avis": "image/avif",
    b"heic": "image/heic", b"heix": "image/heic", b"heim": "image/heic", b"heis": "image/heic",
    b"hevc": "image/heic-sequence", b"hevx": "image/heic-sequence", b"msf1": "image/heif-sequence",
    b"mif1": "image/heif",
    b"qt  ": "video/quicktime",
    b"M4A ": "audio/mp4", b"M4B ": "audio/mp4", b"M4P ": "audio/mp4", b"F4A ": "audio/mp4",
    b"crx ": "image/x-canon-cr3", b"jp2 ": "image/jp2", b"jpx ": "image/jpx", b"jpm ": "image/jpm",
    b"mjp2": "video/mj2",
}  # fmt: skip
# The major brand of an image may be the generic one; then a compatible brand is more specific.
_SPECIAL_PICTURES = (b"avif", b"avis", b"heic", b"heix")
_OLD_FILM_BOXES = frozenset({b"moov", b"mdat", b"wide", b"pnot", b"free", b"skip"})
_SOUND_CODECS = (b"\x01vorbis", b"OpusHead", b"\x7fFLAC", b"Speex   ", b"PCM     ")


def ole(sample: Sample) -> str | None:
    head = sample.head
    if not head.startswith(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"):
        return None
    if len(head) < 512:  # The header.
        return OLE
    (shift,) = struct.unpack_from("<H", head, 30)
    if shift not in {9, 12}:
        return OLE
    sector_bytes = 1 << shift
    (sector,) = struct.unpack_from("<I", head, 48)
    fat = struct.unpack_from("<109I", head, 76)
    for _ in range(_SECTORS_MAX):
        directory = sample.read((sector + 1) << shift, sector_bytes)
        for start in range(0, len(directory) - _ENTRY_BYTES + 1, _ENTRY_BYTES):
            found = _entry(directory[start : start + _ENTRY_BYTES])
            if found is not None:
                return found
        block, place = divmod(sector, sector_bytes // 4)
        link = sample.read(((fat[block] + 1) << shift) + 4 * place, 4) if block < len(fat) else b""
        if len(link) < 4:
            break
        (sector,) = struct.unpack("<I", link)
    return OLE


def _entry(entry: bytes) -> str | None:
    (length,) = struct.unpack_from("<H", entry, 64)
    name = entry[: max(0, min(length, 64) - 2)].decode("utf-16-le", "replace")
    if entry[66] == 5 and entry[80:96] == _INSTALLER_CLASS:  # The root.
        return "application/x-msi"
    return _STREAMS.get(name)


def boxes(sample: Sample) -> str | None:
    """Detect MP4 and other formats made of ISO media boxes."""
    head = sample.head
    if head[4:8] in _OLD_FILM_BOXES and head[:2] == b"\x00\x00":
        return "video/quicktime"
    if head[4:8] != b"ftyp" or head[:2] != b"\x00\x00":
        return None
    length = min(int.from_bytes(head[:4], "big"), 4096)
    major = head[8:12]
    compatible = {head[place : place + 4] for place in range(16, max(16, length - 3), 4)}
    if major in {b"mif1", b"msf1"}:
        major = next((brand for brand in _SPECIAL_PICTURES if brand in compatible), major)
    if major[:3] == b"3gp":
        return "video/3gpp"
    if major[:3] == b"3g2":
        return "video/3gpp2"
    return _BRANDS.get(major, "video/mp4")


def matroska(sample: Sample) -> str | None:
    head = sample.head
    if not head.startswith(b"\x1a\x45\xdf\xa3"):
        return None
    place = head.find(b"\x42\x82", 4, 256)
    return "video/webm" if place >= 0 and head[place + 3 : place + 7] == b"webm" else "video/matroska"


def ogg(sample: Sample) -> str | None:
    head = sample.head
    if not head.startswith(b"OggS\x00"):
        return None
    first = head[:512]
    if b"\x80theora" in first or b"fishead\x00" in first:
        return "video/ogg"
    return "audio/ogg" if any(codec in first for codec in _SOUND_CODECS) else "application/ogg"


def kind(sample: Sample) -> str | None:
    return ole(sample) or boxes(sample) or matroska(sample) or ogg(sample)
