"""Containers of other kinds: OLE documents, the boxes of ISO films and pictures, Matroska, Ogg."""

# ruff: noqa: PLR2004 - the numbers are those of the formats.
from __future__ import annotations

import struct

from onceward.blobs.media.sample import Sample

OLE = "application/x-ole-storage"
# The streams that only one program writes, by their names in the directory.
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
# Directories are short chains of sectors; a longer one than this is not followed.
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
# A picture's major brand may be the general one; a compatible brand says which.
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
    """MP4 and its many relatives."""
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
