"""Built-in table of signatures, the first bytes of each media type. It is checked first, so results are portable.

A signature is in the table only if its bytes are long or unusual enough that no other format begins with them. A
shorter one has a function that also checks the bytes after it (`verified`).
"""

# ruff: noqa: PLR2004 - the numbers come from the format specifications.
from __future__ import annotations

import struct
from collections.abc import Callable

from onceward.hub.media.sample import Sample

# (offset, bytes, media type). The first matching row decides, so special cases come before general ones.
SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    # Images.
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"CR\x02", "image/x-canon-cr2"),
    (0, b"II*\x00", "image/tiff"),
    (0, b"MM\x00*", "image/tiff"),
    (0, b"II+\x00\x08\x00\x00\x00", "image/tiff"),
    (0, b"MM\x00+\x00\x08\x00\x00", "image/tiff"),
    (0, b"8BPS\x00\x01", "image/vnd.adobe.photoshop"),
    (0, b"8BPS\x00\x02", "image/vnd.adobe.photoshop"),
    (0, b"\x00\x00\x00\x0cjP  \r\n\x87\n", "image/jp2"),
    (0, b"\x00\x00\x00\x0cJXL \r\n\x87\n", "image/jxl"),
    (0, b"gimp xcf ", "image/x-xcf"),
    (0, b"qoif", "image/qoi"),
    (0, b"v/1\x01\x02\x00", "image/x-exr"),
    (0, b"v/1\x01\x02\x02", "image/x-exr"),
    (0, b"#?RADIANCE\n", "image/vnd.radiance"),
    (0, b"DDS |\x00\x00\x00", "image/vnd.ms-dds"),
    (0, b"AT&TFORM", "image/vnd.djvu"),
    (0, b"\xd7\xcd\xc6\x9a\x00\x00", "image/wmf"),
    (40, b" EMF", "image/emf"),
    (0, b"SIMPLE  =                    T", "image/fits"),
    (128, b"DICM", "application/dicom"),
    # Audio and video.
    (0, b"ID3", "audio/mpeg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"MThd\x00\x00\x00\x06", "audio/midi"),
    (0, b"#!AMR", "audio/amr"),
    (0, b".snd\x00\x00", "audio/basic"),
    (0, b"wvpk", "audio/x-wavpack"),
    (0, b"MAC ", "audio/x-ape"),
    (0, b"caff\x00\x01\x00\x00", "audio/x-caf"),
    (0, b"FLV\x01", "video/x-flv"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c", "video/x-ms-asf"),
    (0, b"\x00\x00\x01\xba", "video/mpeg"),
    (0, b"\x00\x00\x01\xb3", "video/mpeg"),
    (0, b".RMF\x00\x00\x00", "application/vnd.rn-realmedia"),
    (0, b"CWS", "application/vnd.adobe.flash.movie"),
    (0, b"FWS", "application/vnd.adobe.flash.movie"),
    # Documents.
    (0, b"%PDF-", "application/pdf"),
    (0, b"{\\rtf", "application/rtf"),
    (0, b"%!PS", "application/postscript"),
    (0, b"\xc5\xd0\xd3\xc6", "application/postscript"),
    (60, b"BOOKMOBI", "application/x-mobipocket-ebook"),
    (0, b"ITSF\x03\x00\x00\x00", "application/vnd.ms-htmlhelp"),
    (0, b"\xe4\x52\x5c\x7b\x8c\xd8\xa7\x4d", "application/onenote"),
    (0, b"\xf7\x02\x01\x83\x92\xc0\x1c;", "application/x-dvi"),
    # Archives and compressed files.
    (0, b"\x1f\x8b\x08", "application/gzip"),
    (0, b"\xfd7zXZ\x00", "application/x-xz"),
    (0, b"\x28\xb5\x2f\xfd", "application/zstd"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (0, b"Rar!\x1a\x07", "application/vnd.rar"),
    (0, b"\x04\x22\x4d\x18", "application/x-lz4"),
    (0, b"LZIP\x01", "application/x-lzip"),
    (0, b"\x1f\x9d", "application/x-compress"),
    (0, b"MSCF\x00\x00\x00\x00", "application/vnd.ms-cab-compressed"),
    (0, b"xar!\x00\x1c", "application/x-xar"),
    (0, b"!<arch>\ndebian-binary", "application/vnd.debian.binary-package"),
    (0, b"!<arch>\n", "application/x-archive"),
    (0, b"\xed\xab\xee\xdb", "application/x-rpm"),
    (0, b"070701", "application/x-cpio"),
    (0, b"070707", "application/x-cpio"),
    (257, b"ustar\x00", "application/x-tar"),
    (257, b"ustar  \x00", "application/x-tar"),
    (0, b"hsqs", "application/vnd.squashfs"),
    (0x8001, b"CD001", "application/x-iso9660-image"),
    # Programs.
    (0, b"\x00asm\x01\x00\x00\x00", "application/wasm"),
    (0, b"\x00asm\x0d\x00\x01\x00", "application/wasm"),
    (0, b"\xfe\xed\xfa\xce", "application/x-mach-binary"),
    (0, b"\xfe\xed\xfa\xcf", "application/x-mach-binary"),
    (0, b"\xce\xfa\xed\xfe", "application/x-mach-binary"),
    (0, b"\xcf\xfa\xed\xfe", "application/x-mach-binary"),
    (0, b"dex\n03", "application/vnd.android.dex"),
    (0, b"BC\xc0\xde", "application/x-llvm"),
    (0, b"L\x00\x00\x00\x01\x14\x02\x00\x00\x00\x00\x00\xc0\x00\x00\x00", "application/x-ms-shortcut"),
    # Data.
    (0, b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (0, b"PAR1", "application/vnd.apache.parquet"),
    (0, b"ARROW1\x00\x00", "application/vnd.apache.arrow.file"),
    (0, b"Obj\x01", "application/avro"),
    (0, b"\x89HDF\r\n\x1a\n", "application/x-hdf5"),
    (0, b"CDF\x01", "application/x-netcdf"),
    (0, b"CDF\x02", "application/x-netcdf"),
    (0, b"\xd4\xc3\xb2\xa1", "application/vnd.tcpdump.pcap"),
    (0, b"\xa1\xb2\xc3\xd4", "application/vnd.tcpdump.pcap"),
    (0, b"\x4d\x3c\xb2\xa1", "application/vnd.tcpdump.pcap"),
    (0, b"\x0a\x0d\x0d\x0a", "application/x-pcapng"),
    (0, b"\x93NUMPY", "application/x-npy"),
    (0, b"GGUF", "application/x-gguf"),
    (0, b"\x00\x01\x00\x00Standard Jet DB", "application/vnd.ms-access"),
    (0, b"\x00\x01\x00\x00Standard ACE DB", "application/vnd.ms-access"),
    (0, b"d8:announce", "application/x-bittorrent"),
    (0, b"d13:announce-list", "application/x-bittorrent"),
    (0, b"bplist00", "application/x-bplist"),
    (0, b"glTF\x02\x00\x00\x00", "model/gltf-binary"),
    (0, b"Kaydara FBX Binary", "application/x-fbx"),
    (0, b"BLENDER", "application/x-blender"),
    (0, b"age-encryption.org/v1", "application/x-age-encryption"),
    (0, b"regf", "application/x-ms-registry"),
    # Fonts.
    (0, b"wOFF", "font/woff"),
    (0, b"wOF2", "font/woff2"),
    (0, b"OTTO\x00", "font/otf"),
    (0, b"ttcf\x00", "font/collection"),
)

# Files of these types may consist of text only. All other signatures count only in binary files: a text that begins
# with "ID3" or "BLENDER" is just text.
OF_TEXT = frozenset({
    "application/pdf", "image/gif", "application/x-archive", "application/vnd.debian.binary-package", "image/fits",
})  # fmt: skip


def match(head: bytes) -> str | None:
    for offset, signature, media_type in SIGNATURES:
        if head.startswith(signature, offset):
            return media_type
    return None


_ELF_KINDS = {
    1: "application/x-object",
    2: "application/x-executable",
    3: "application/x-sharedlib",
    4: "application/x-coredump",
}
# Header sizes of all bitmap versions.
_BITMAP_HEADERS = frozenset({12, 16, 40, 52, 56, 64, 108, 124})
# Kilobits per second by the bitrate index of a frame header, for MPEG-1 layer III and for MPEG-2 and 2.5.
_BITRATES = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
# A transport stream is made of packets of this length; each begins with the same byte.
_TRANSPORT_PACKET_BYTES = 188
# The first version of Java class files. At the same offset, fat Mach-O files have a count, which is far smaller.
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
    if not 0 < count < 256 or head[9] != 0 or place < 6 + 16 * count:  # No icon has that many images.
        return None
    return "image/vnd.microsoft.icon" if head[2] == 1 else "image/x-win-bitmap"


def _bzip2(sample: Sample) -> str | None:
    head = sample.head
    blocks = (b"1AY&SY", b"\x17rE8P\x90")  # The first block, or the end of an empty stream.
    is_bzip2 = head.startswith(b"BZh") and head[3:4] in b"123456789" and head.startswith(blocks, 4)
    return "application/x-bzip2" if is_bzip2 else None


def _old_tar(sample: Sample) -> str | None:
    """Detect a tar header without the `ustar` mark, by its checksum alone."""
    block = sample.head[:512]
    if len(block) < 512 or not block[0] or block[148:156].strip(b" \x00") == b"":  # One block.
        return None
    try:
        declared = int(block[148:156].strip(b" \x00"), 8)
    except ValueError:
        return None
    return "application/x-tar" if declared == sum(block) - sum(block[148:156]) + 8 * 32 else None


def _transport_stream(sample: Sample) -> str | None:
    starts = sample.head[: 5 * _TRANSPORT_PACKET_BYTES : _TRANSPORT_PACKET_BYTES]
    is_stream = len(starts) > 2 and starts == b"\x47" * len(starts)  # Three packets in a row.
    return "video/mp2t" if is_stream else None


def _mp3_frame_bytes(header: bytes) -> int:
    """Return the length of the MP3 frame with this header; 0 if it is not a frame header."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:  # Sync and layer III.
        return 0
    version, bitrate, rate = header[1] >> 3 & 3, header[2] >> 4, header[2] >> 2 & 3
    if version == 1 or rate == 3 or not 0 < bitrate < 15:  # Reserved values.
        return 0
    is_first = version == 3  # MPEG-1.
    kilobits = _BITRATES[0 if is_first else 1][bitrate]
    return (144 if is_first else 72) * kilobits * 1000 // _RATES[version][rate] + (header[2] >> 1 & 1)


def _sound_frames(sample: Sample) -> str | None:
    """Detect two audio frames in a row. One frame has a mark of only eleven bits, which is common in other data."""
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
    """Detect RIFF and AIFF by the kind after the length."""
    head = sample.head
    kinds = {
        b"RIFF": {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"},
        b"FORM": {b"AIFF": "audio/aiff", b"AIFC": "audio/aiff"},
    }
    return kinds.get(head[:4], {}).get(head[8:12])


def _jpeg_xl(sample: Sample) -> str | None:
    """Detect a bare JPEG XL code stream. Its signature has only two bytes, so the rest must not be text."""
    return "image/jxl" if sample.head.startswith(b"\xff\x0a") and b"\x00" in sample.head[:4096] else None


def _disk_image(sample: Sample) -> str | None:
    is_image = sample.size >= 512 and sample.tail(512).startswith(b"koly\x00\x00\x00\x04")
    return "application/x-apple-diskimage" if is_image else None


CHECKS: tuple[Callable[[Sample], str | None], ...] = (
    _elf, _windows_program, _bitmap, _icon, _bzip2, _chunked, _class_file, _true_type, _sound_frames, _transport_stream,
    _old_tar, _jpeg_xl, _disk_image,
)  # fmt: skip


def verified(sample: Sample) -> str | None:
    for check in CHECKS:
        found = check(sample)
        if found is not None:
            return found
    return None
