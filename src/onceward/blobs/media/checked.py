"""Types whose first bytes alone are too short to be believed: what follows them must fit as well."""

# ruff: noqa: PLR2004 - the numbers are those of the formats.
from __future__ import annotations

import struct
from collections.abc import Callable

from onceward.blobs.media.sample import Sample

_ELF_KINDS = {
    1: "application/x-object",
    2: "application/x-executable",
    3: "application/x-sharedlib",
    4: "application/x-coredump",
}
# Header sizes of the bitmap versions that exist.
_BITMAP_HEADERS = frozenset({12, 16, 40, 52, 56, 64, 108, 124})
# Kilobits per second by the index of a frame header, for MPEG-1 layer III and for MPEG-2 and 2.5.
_BITRATES = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
# A transport stream is made of packets of this length; each begins with the same byte.
_TRANSPORT_PACKET_BYTES = 188
# The first version of a Java class file; the number of parts of a fat Mach-O file, in the same place, is far smaller.
_JAVA_FIRST_VERSION = 45


def _elf(sample: Sample) -> str | None:
    head = sample.head
    if not head.startswith(b"\x7fELF"):
        return None
    if len(head) < 18 or head[5] not in {1, 2}:  # The two byte orders.
        return "application/x-elf"
    (kind,) = struct.unpack_from("<H" if head[5] == 1 else ">H", head, 16)
    return _ELF_KINDS.get(kind, "application/x-elf")


def _windows_program(sample: Sample) -> str | None:
    head = sample.head
    if not head.startswith(b"MZ") or len(head) < 64:
        return None
    (place,) = struct.unpack_from("<I", head, 60)
    is_program = sample.read(place, 4)[:2] in {b"PE", b"NE", b"LE", b"LX"} or head[2:4] < b"\x00\x02"
    return "application/vnd.microsoft.portable-executable" if is_program else None


def _bitmap(sample: Sample) -> str | None:
    head = sample.head
    if not head.startswith(b"BM") or len(head) < 18:
        return None
    header_bytes = int.from_bytes(head[14:18], "little")
    return "image/bmp" if header_bytes in _BITMAP_HEADERS and head[6:10] == bytes(4) else None


def _icon(sample: Sample) -> str | None:
    head = sample.head
    if head[:4] not in {b"\x00\x00\x01\x00", b"\x00\x00\x02\x00"} or len(head) < 22:
        return None
    count = int.from_bytes(head[4:6], "little")
    place = int.from_bytes(head[18:22], "little")
    if not 0 < count < 256 or head[9] != 0 or place < 6 + 16 * count:  # More than an icon ever has.
        return None
    return "image/vnd.microsoft.icon" if head[2] == 1 else "image/x-win-bitmap"


def _bzip2(sample: Sample) -> str | None:
    head = sample.head
    blocks = (b"1AY&SY", b"\x17rE8P\x90")  # The first block, or the end of an empty stream.
    is_bzip2 = head.startswith(b"BZh") and head[3:4] in b"123456789" and head.startswith(blocks, 4)
    return "application/x-bzip2" if is_bzip2 else None


def _old_tar(sample: Sample) -> str | None:
    """A tar header without the `ustar` mark has nothing but its sum to be known by."""
    block = sample.head[:512]
    if len(block) < 512 or not block[0] or block[148:156].strip(b" \x00") == b"":  # One block.
        return None
    try:
        said = int(block[148:156].strip(b" \x00"), 8)
    except ValueError:
        return None
    return "application/x-tar" if said == sum(block) - sum(block[148:156]) + 8 * 32 else None


def _transport_stream(sample: Sample) -> str | None:
    starts = sample.head[: 5 * _TRANSPORT_PACKET_BYTES : _TRANSPORT_PACKET_BYTES]
    is_stream = len(starts) > 2 and starts == b"\x47" * len(starts)  # Three packets in a row.
    return "video/mp2t" if is_stream else None


def _mp3_frame_bytes(header: bytes) -> int:
    """The length of the frame that begins so; 0 where it is none."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:  # Sync and layer III.
        return 0
    version, bitrate, rate = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or rate == 3 or not 0 < bitrate < 15:  # Reserved values.
        return 0
    is_first = version == 3  # MPEG-1.
    kilobits = _BITRATES[0 if is_first else 1][bitrate]
    return (144 if is_first else 72) * kilobits * 1000 // _RATES[version][rate] + (header[2] >> 1 & 1)


def _sound_frames(sample: Sample) -> str | None:
    """Two frames in a row: one alone is eleven bits, which every other picture has somewhere."""
    head = sample.head
    if head[:1] != b"\xff":
        return None
    length = _mp3_frame_bytes(head)
    if length and _mp3_frame_bytes(head[length : length + 4]):
        return "audio/mpeg"
    if len(head) > 6 and head[1] & 0xF6 == 0xF0:  # An ADTS header.
        length = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
        following = sample.read(length, 2)
        if length > 6 and following[:1] == b"\xff" and following[1] & 0xF6 == 0xF0:
            return "audio/aac"
    return None


def _class_file(sample: Sample) -> str | None:
    head = sample.head
    if not head.startswith(b"\xca\xfe\xba\xbe") or len(head) < 8:
        return None
    is_java = int.from_bytes(head[6:8], "big") >= _JAVA_FIRST_VERSION
    return "application/java-vm" if is_java else "application/x-mach-binary"


def _true_type(sample: Sample) -> str | None:
    head = sample.head
    if head[:4] not in {b"\x00\x01\x00\x00", b"true"} or len(head) < 16:
        return None
    tables = int.from_bytes(head[4:6], "big")
    first = head[12:16]
    is_font = 0 < tables < 64 and all(32 <= byte < 127 for byte in first)  # A table's name is ASCII.
    return "font/ttf" if is_font else None


def _chunked(sample: Sample) -> str | None:
    """RIFF and AIFF: the kind stands behind the length."""
    head = sample.head
    kinds = {
        b"RIFF": {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"},
        b"FORM": {b"AIFF": "audio/aiff", b"AIFC": "audio/aiff"},
    }
    return kinds.get(head[:4], {}).get(head[8:12])


def _jpeg_xl(sample: Sample) -> str | None:
    """A bare code stream has two bytes; they are believed only where the rest is no text."""
    return "image/jxl" if sample.head.startswith(b"\xff\x0a") and b"\x00" in sample.head[:4096] else None


def _disk_image(sample: Sample) -> str | None:
    is_image = sample.size >= 512 and sample.tail(512).startswith(b"koly\x00\x00\x00\x04")
    return "application/x-apple-diskimage" if is_image else None


CHECKS: tuple[Callable[[Sample], str | None], ...] = (
    _elf, _windows_program, _bitmap, _icon, _bzip2, _chunked, _class_file, _true_type, _sound_frames, _transport_stream,
    _old_tar, _jpeg_xl, _disk_image,
)  # fmt: skip


def match(sample: Sample) -> str | None:
    for check in CHECKS:
        found = check(sample)
        if found is not None:
            return found
    return None
