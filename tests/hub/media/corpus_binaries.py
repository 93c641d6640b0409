"""Binary files of the corpus: pictures, sound, films, programs, data. All bytes are made here."""

from __future__ import annotations

import io
import random
import sqlite3
import struct
import wave
import zlib


def noise(length: int, seed: int = 5) -> bytes:
    return random.Random(seed).randbytes(length)


def png(side: int = 2) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + noise(3 * side, row) for row in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def jpeg(comment: bytes = b"", length: int = 200) -> bytes:
    segment = b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment if comment else b""
    return (
        b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00" + segment + noise(length) + b"\xff\xd9"
    )


def gif(length: int = 40) -> bytes:
    return b"GIF89a\x02\x00\x02\x00\x80\x00\x00" + noise(length) + b";"


def bitmap(length: int = 64) -> bytes:
    return (
        b"BM"
        + struct.pack("<IIIIii", 54 + length, 0, 54, 40, 4, 4)
        + struct.pack("<HH", 1, 24)
        + bytes(24)
        + noise(length)
    )


def icon() -> bytes:
    picture = png()
    return b"\x00\x00\x01\x00\x01\x00\x10\x10\x00\x00\x01\x00\x20\x00" + struct.pack("<II", len(picture), 22) + picture


def riff(kind: bytes, data: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(data) + 4) + kind + data


def sound(seconds: float = 0.02) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(noise(int(16000 * seconds)))
    return buffer.getvalue()


def boxes(brand: bytes, *compatible: bytes, length: int = 100) -> bytes:
    inner = brand + b"\x00\x00\x02\x00" + b"".join(compatible)
    start = struct.pack(">I", len(inner) + 8) + b"ftyp" + inner
    return start + struct.pack(">I", length + 8) + b"mdat" + noise(length)


def ebml(kind: bytes, length: int = 100) -> bytes:
    inner = b"\x42\x86\x81\x01\x42\xf7\x81\x01\x42\x82" + bytes([0x80 | len(kind)]) + kind + b"\x42\x87\x81\x04"
    return b"\x1a\x45\xdf\xa3" + bytes([0x80 | len(inner)]) + inner + b"\x18\x53\x80\x67" + noise(length)


def ogg(codec: bytes, length: int = 60) -> bytes:
    return (
        b"OggS\x00\x02"
        + bytes(8)
        + noise(4)
        + bytes(4)
        + noise(4)
        + b"\x01"
        + bytes([30])
        + codec.ljust(30, b"\0")
        + noise(length)
    )


def mp3(frames: int = 4, *, tagged: bool = False) -> bytes:
    frame = b"\xff\xfb\x90\x64" + noise(413)
    return (b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10) if tagged else b"") + frame * frames


def aac(frames: int = 4) -> bytes:
    length = 207
    header = bytes([0xFF, 0xF1, 0x50, 0x80 | length >> 11, length >> 3 & 0xFF, (length & 7) << 5 | 0x1F, 0xFC])
    return (header + noise(length - 7)) * frames


def elf(kind: int, order: int = 1) -> bytes:
    number = struct.pack("<H" if order == 1 else ">H", kind)
    return (
        b"\x7fELF\x02" + bytes([order, 1, 0]) + bytes(8) + number + b"\x3e\x00\x01\x00\x00\x00" + bytes(40) + noise(64)
    )


def windows_program() -> bytes:
    return b"MZ\x90\x00\x03" + bytes(55) + struct.pack("<I", 128) + noise(64) + b"PE\0\0\x64\x86" + noise(100)


def database(rows: int = 1) -> bytes:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")
        connection.executemany("INSERT INTO notes (text) VALUES (?)", [("x" * 100,)] * rows)
        connection.commit()
        return connection.serialize()
    finally:
        connection.close()


def font(first: bytes, tables: int = 9) -> bytes:
    return first + struct.pack(">HHHH", tables, 128, 3, 16) + b"OS/2" + noise(12) + b"cmap" + noise(200)


def transport_stream(packets: int = 6) -> bytes:
    return b"".join(b"\x47\x40\x11\x10" + noise(184, number) for number in range(packets))


def iso_image() -> bytes:
    return bytes(0x8000) + b"\x01CD001\x01\x00" + b"LINUX".ljust(2040) + bytes(2048)


# Types that are known by their first bytes: what a file of it begins with, a plausible header included.
HEADERS: dict[str, bytes] = {
    "image/tiff": b"II*\x00\x08\x00\x00\x00\x01\x00\x00\x01\x03\x00\x01\x00\x00\x00\x02\x00\x00\x00",
    "image/vnd.adobe.photoshop": b"8BPS\x00\x01"
    + bytes(6)
    + b"\x00\x03\x00\x00\x00\x10\x00\x00\x00\x10\x00\x08\x00\x03",
    "image/jp2": b"\x00\x00\x00\x0cjP  \r\n\x87\n\x00\x00\x00\x14ftypjp2 \x00\x00\x00\x00jp2 ",
    "image/jxl": b"\x00\x00\x00\x0cJXL \r\n\x87\n\x00\x00\x00\x14ftypjxl \x00\x00\x00\x00jxl ",
    "image/vnd.djvu": b"AT&TFORM\x00\x00\x10\x00DJVUINFO\x00\x00\x00\x0a",
    "image/x-exr": b"v/1\x01\x02\x00\x00\x00channels\x00chlist\x00\x37\x00\x00\x00",
    "audio/flac": b"fLaC\x00\x00\x00\x22\x10\x00\x10\x00\x00\x00\x0e\x00\x00\x12\x0a\xc4\x42\xf0",
    "audio/midi": b"MThd\x00\x00\x00\x06\x00\x01\x00\x02\x01\xe0MTrk\x00\x00\x00\x10",
    "audio/aiff": b"FORM\x00\x00\x10\x00AIFFCOMM\x00\x00\x00\x12\x00\x01",
    "audio/amr": b"#!AMR\n\x3c\x91\x17\x16\xbe\x66\x79\xe1\xe0\x01\x00\x00",
    "video/x-flv": b"FLV\x01\x05\x00\x00\x00\x09\x00\x00\x00\x00\x12\x00\x01",
    "video/x-ms-asf": bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c") + b"\x10\x02\x00\x00\x00\x00\x00\x00",
    "video/mpeg": b"\x00\x00\x01\xba\x44\x00\x04\x00\x04\x01\x00\x89\xc3\xf8\x00\x00\x01\xbb",
    "application/x-7z-compressed": b"7z\xbc\xaf\x27\x1c\x00\x04" + bytes(12) + b"\x20\x00\x00\x00",
    "application/vnd.rar": b"Rar!\x1a\x07\x01\x00\x33\x92\xb5\xe5\x0a\x01\x05\x06\x00\x05\x01\x01",
    "application/vnd.ms-cab-compressed": b"MSCF\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x2c\x00\x00\x00",
    "application/vnd.debian.binary-package": b"!<arch>\ndebian-binary   1600000000  0     0     100644  4         `\n2.0\n",
    "application/x-rpm": b"\xed\xab\xee\xdb\x03\x00\x00\x00\x00\x01hello-1.0-1".ljust(80, b"\0"),
    "application/wasm": b"\x00asm\x01\x00\x00\x00\x01\x07\x01\x60\x02\x7f\x7f\x01\x7f",
    "application/x-mach-binary": b"\xcf\xfa\xed\xfe\x07\x00\x00\x01\x03\x00\x00\x00\x02\x00\x00\x00",
    "application/java-vm": b"\xca\xfe\xba\xbe\x00\x00\x00\x3d\x00\x1d\x0a\x00\x02\x00\x03\x07",
    "application/vnd.apache.parquet": b"PAR1\x15\x04\x15\x10\x15\x14\x4c\x15\x02\x15\x00\x12\x00\x00",
    "application/vnd.apache.arrow.file": b"ARROW1\x00\x00\xff\xff\xff\xff\xa8\x00\x00\x00\x10\x00\x00\x00",
    "application/avro": b"Obj\x01\x04\x16avro.schema\xea\x01",
    "application/x-hdf5": b"\x89HDF\r\n\x1a\n\x00\x00\x00\x00\x00\x08\x08\x00\x04\x00\x10\x00",
    "application/vnd.tcpdump.pcap": b"\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x00",
    "application/x-npy": b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }\n\x00",
    "model/gltf-binary": b"glTF\x02\x00\x00\x00\x00\x10\x00\x00\x00\x02\x00\x00JSON{}",
    "font/woff": b"wOFF\x00\x01\x00\x00\x00\x00\x10\x00\x00\x0c\x00\x00",
    "font/woff2": b"wOF2\x00\x01\x00\x00\x00\x00\x10\x00\x00\x0c\x00\x00",
    "application/x-mobipocket-ebook": b"My Book".ljust(60, b"\0") + b"BOOKMOBI\x00\x00\x12\x00",
    "application/dicom": bytes(128) + b"DICM\x02\x00\x00\x00UL\x04\x00",
    "application/vnd.ms-access": b"\x00\x01\x00\x00Standard ACE DB\x00\x02\x00\x00\x00",
    # These two are libmagic's to know: the built-in table does not.
    "application/x-shockwave-flash": b"ZWS\x0d\x00\x10\x00\x00\x5d\x00\x00\x20\x00\x00",
    "application/vnd.lotus-wordpro": b"WordPro\x00\x00\x10\x00\x01",
}
