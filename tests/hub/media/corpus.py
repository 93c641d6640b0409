"""The corpus: files of many types in several variants each, made here, with the type that each of them is."""

from __future__ import annotations

import functools
import io
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.hub.media import corpus_binaries, corpus_containers, corpus_texts

from onceward.hub.media.sample import Sample, take

# Larger than what is read of a file's beginning.
LARGE = 200_000


@dataclass(frozen=True, slots=True)
class Case:
    group: str
    media_type: str
    variant: str
    data: bytes = field(repr=False)
    filename: str | None = None

    @property
    def name(self) -> str:
        return f"{self.media_type} {self.variant}"

    def sample(self) -> Sample:
        return take(io.BytesIO(self.data))


def _zips() -> Iterator[Case]:
    for media_type, names, first in corpus_containers.KINDS:
        group = "archives" if media_type == "application/zip" else "documents"
        for variant, data in (
            ("small", corpus_containers.zipped(names, first=first)),
            ("stored", corpus_containers.zipped(names, first=first, method=zipfile.ZIP_STORED)),
            ("large", corpus_containers.zipped(names, first=first, padding=LARGE)),
            ("cut", corpus_containers.zipped(names, first=first)[:-60]),
        ):
            yield Case(group, media_type, variant, data)
    last = corpus_containers.zipped(
        {f"media/{number}.png": bytes(300) for number in range(400)} | corpus_containers.office("word", "document.xml")
    )
    yield Case("documents", f"{corpus_containers.OOXML}.wordprocessingml.document", "telling names last", last)


def _archives() -> Iterator[Case]:
    for size, data in (
        ("small", b"hello\n"),
        ("large", corpus_binaries.noise(LARGE)),
        ("tar inside", corpus_containers.tar()),
    ):
        for media_type, squeezed in corpus_containers.squeezed(data).items():
            yield Case("archives", media_type, size, squeezed)
            yield Case("archives", media_type, f"{size}, cut", squeezed[:16])
    for variant, data in (
        ("ustar", corpus_containers.tar()),
        ("gnu", corpus_containers.tar(tarfile.GNU_FORMAT)),
        ("pax", corpus_containers.tar(tarfile.PAX_FORMAT)),
        ("large", corpus_containers.tar(padding=LARGE)),
        ("old", corpus_containers.old_tar()),
        ("cut", corpus_containers.tar()[:600]),
    ):
        yield Case("archives", "application/x-tar", variant, data)
    yield Case("archives", "application/x-iso9660-image", "small", corpus_binaries.iso_image())


def _ole() -> Iterator[Case]:
    for stream, media_type in corpus_containers.OLE_KINDS.items():
        yield Case("documents", media_type, "small", corpus_containers.ole(stream))
        yield Case("documents", media_type, "sectors of 4 KiB", corpus_containers.ole(stream, shift=12))
        yield Case("documents", media_type, "long directory", corpus_containers.ole(stream, after=5))
        yield Case("documents", media_type, "large", corpus_containers.ole(stream) + bytes(LARGE))
    yield Case("documents", "application/x-ole-storage", "unknown streams", corpus_containers.ole("Contents"))
    yield Case("documents", "application/x-ole-storage", "cut", corpus_containers.ole("WordDocument")[:100])
    for variant, data in (
        ("small", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<<>>\nendobj\n%%EOF\n"),
        ("ascii", b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\ntrailer\n<<>>\n%%EOF\n"),
        ("large", b"%PDF-1.4\n" + corpus_binaries.noise(LARGE)),
        ("cut", b"%PDF-1.4\n"),
    ):
        yield Case("documents", "application/pdf", variant, data)


def _headers() -> Iterator[Case]:
    for media_type, start in corpus_binaries.HEADERS.items():
        group = media_type.partition("/")[0]
        group = {"image": "pictures", "audio": "sound and film", "video": "sound and film"}.get(
            group, "programs and data"
        )
        yield Case(group, media_type, "small", start + corpus_binaries.noise(300))
        yield Case(group, media_type, "large", start + corpus_binaries.noise(LARGE, 7))
        yield Case(group, media_type, "zeros", start + bytes(300))
        yield Case(group, media_type, "cut", start)


def _pictures() -> Iterator[Case]:
    for media_type, variant, data in (
        ("image/png", "small", corpus_binaries.png()),
        ("image/png", "large", corpus_binaries.png(300)),
        ("image/png", "cut", corpus_binaries.png()[:20]),
        ("image/jpeg", "small", corpus_binaries.jpeg()),
        ("image/jpeg", "large", corpus_binaries.jpeg(length=LARGE)),
        ("image/jpeg", "camera", b"\xff\xd8\xff\xe1\x00\x18Exif\x00\x00II*\x00" + corpus_binaries.noise(200)),
        ("image/jpeg", "cut", corpus_binaries.jpeg()[:20]),
        ("image/gif", "small", corpus_binaries.gif()),
        ("image/gif", "large", corpus_binaries.gif(LARGE)),
        ("image/gif", "cut", corpus_binaries.gif()[:10]),
        ("image/bmp", "small", corpus_binaries.bitmap()),
        ("image/bmp", "large", corpus_binaries.bitmap(LARGE)),
        ("image/bmp", "cut", corpus_binaries.bitmap()[:30]),
        ("image/vnd.microsoft.icon", "small", corpus_binaries.icon()),
        ("image/webp", "small", corpus_binaries.riff(b"WEBP", b"VP8 " + corpus_binaries.noise(100))),
        ("image/webp", "large", corpus_binaries.riff(b"WEBP", b"VP8L" + corpus_binaries.noise(LARGE))),
        ("image/webp", "cut", corpus_binaries.riff(b"WEBP", b"VP8 " + bytes(4))),
        ("image/avif", "small", corpus_binaries.boxes(b"avif", b"mif1", b"miaf")),
        ("image/avif", "general brand", corpus_binaries.boxes(b"mif1", b"avif", b"miaf")),
        ("image/heic", "small", corpus_binaries.boxes(b"heic", b"mif1", b"heic")),
        ("image/heic", "general brand", corpus_binaries.boxes(b"mif1", b"heic")),
        ("image/heif", "small", corpus_binaries.boxes(b"mif1", b"miaf")),
        ("image/x-portable-pixmap", "binary", b"P6\n4 4\n255\n" + corpus_binaries.noise(48)),
        ("image/x-portable-graymap", "ascii", b"P2\n2 2\n255\n0 1\n2 3\n"),
    ):
        yield Case("pictures", media_type, variant, data)


def _sound_and_film() -> Iterator[Case]:
    for media_type, variant, data in (
        ("audio/mpeg", "tagged", corpus_binaries.mp3(tagged=True)),
        ("audio/mpeg", "bare", corpus_binaries.mp3()),
        ("audio/mpeg", "large", corpus_binaries.mp3(500)),
        ("audio/aac", "small", corpus_binaries.aac()),
        ("audio/aac", "large", corpus_binaries.aac(1000)),
        ("audio/wav", "small", corpus_binaries.sound()),
        ("audio/wav", "large", corpus_binaries.sound(20)),
        ("audio/wav", "cut", corpus_binaries.sound()[:44]),
        ("audio/ogg", "vorbis", corpus_binaries.ogg(b"\x01vorbis")),
        ("audio/ogg", "opus", corpus_binaries.ogg(b"OpusHead\x01")),
        ("audio/ogg", "large", corpus_binaries.ogg(b"\x7fFLAC", LARGE)),
        ("video/ogg", "theora", corpus_binaries.ogg(b"\x80theora")),
        ("audio/mp4", "small", corpus_binaries.boxes(b"M4A ", b"mp42", b"isom")),
        ("video/mp4", "isom", corpus_binaries.boxes(b"isom", b"iso2", b"avc1", b"mp41")),
        ("video/mp4", "mp42", corpus_binaries.boxes(b"mp42", b"isom")),
        ("video/mp4", "large", corpus_binaries.boxes(b"iso5", b"dash", length=LARGE)),
        ("video/mp4", "cut", corpus_binaries.boxes(b"isom", b"mp41")[:24]),
        ("video/quicktime", "brand", corpus_binaries.boxes(b"qt  ", b"qt  ")),
        ("video/quicktime", "old", b"\x00\x00\x00\x08wide\x00\x00\x10\x00mdat" + corpus_binaries.noise(100)),
        ("video/3gpp", "small", corpus_binaries.boxes(b"3gp5", b"isom")),
        ("video/webm", "small", corpus_binaries.ebml(b"webm")),
        ("video/webm", "large", corpus_binaries.ebml(b"webm", LARGE)),
        ("video/matroska", "small", corpus_binaries.ebml(b"matroska")),
        ("video/matroska", "large", corpus_binaries.ebml(b"matroska", LARGE)),
        ("video/x-msvideo", "small", corpus_binaries.riff(b"AVI ", b"LIST" + corpus_binaries.noise(100))),
        ("video/mp2t", "small", corpus_binaries.transport_stream()),
        ("video/mp2t", "large", corpus_binaries.transport_stream(1000)),
    ):
        yield Case("sound and film", media_type, variant, data)


def _programs_and_data() -> Iterator[Case]:
    for media_type, variant, data in (
        ("application/x-executable", "small", corpus_binaries.elf(2)),
        ("application/x-executable", "big endian", corpus_binaries.elf(2, 2)),
        ("application/x-sharedlib", "small", corpus_binaries.elf(3)),
        ("application/x-object", "small", corpus_binaries.elf(1)),
        ("application/vnd.microsoft.portable-executable", "small", corpus_binaries.windows_program()),
        (
            "application/vnd.microsoft.portable-executable",
            "large",
            corpus_binaries.windows_program() + corpus_binaries.noise(LARGE),
        ),
        ("application/vnd.sqlite3", "small", corpus_binaries.database()),
        ("application/vnd.sqlite3", "large", corpus_binaries.database(2000)),
        ("application/vnd.sqlite3", "cut", corpus_binaries.database()[:40]),
        ("font/ttf", "small", corpus_binaries.font(b"\x00\x01\x00\x00")),
        ("font/otf", "small", corpus_binaries.font(b"OTTO")),
        ("application/octet-stream", "empty", b""),
        ("application/octet-stream", "one byte", b"\x00"),
        ("application/octet-stream", "zeros", bytes(1000)),
        *(("application/octet-stream", f"noise {seed}", corpus_binaries.noise(4000, seed)) for seed in range(100, 120)),
        *(
            ("application/octet-stream", f"little noise {seed}", corpus_binaries.noise(40, seed))
            for seed in range(200, 220)
        ),
    ):
        yield Case("programs and data", media_type, variant, data)


def _texts() -> Iterator[Case]:
    for media_type, texts in corpus_texts.TEXTS.items():
        group = "plain text" if media_type == "text/plain" else "kinds of text"
        for variant, text in texts.items():
            for way, data in _text_variants(text):
                yield Case(group, media_type, f"{variant}, {way}", data)
            if media_type == "text/plain":
                for encoding in corpus_texts.older(variant):
                    yield Case(group, media_type, f"{variant}, {encoding}", text.encode(encoding))
                for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
                    yield Case(group, media_type, f"{variant}, {encoding}", text.encode(encoding))
                yield Case(group, media_type, f"{variant}, large", (text * (LARGE // len(text))).encode())
    for media_type, data in (
        ("text/csv", b"id,name\n" + b"".join(b"%d,row %d\n" % (row, row) for row in range(LARGE // 10))),
        ("application/json", b"[" + b",\n".join([b'{"a": [1, "two", null]}'] * (LARGE // 10)) + b"]\n"),
        ("application/json", b"[" + b",".join([b'{"a": [1, "two", null]}'] * 5000) + b"]"),
        ("application/x-ndjson", b'{"a": [1, "two", null]}\n' * (LARGE // 10)),
        ("text/html", b"<!doctype html>\n" + b"<p>Hello</p>\n" * (LARGE // 10)),
        ("text/markdown", b"# Title\n\n" + b"Some **words** and a [link](a.md).\n\n" * (LARGE // 30)),
    ):
        yield Case("kinds of text", media_type, f"large {len(data)}", data)


def _text_variants(text: str) -> Iterator[tuple[str, bytes]]:
    data = text.encode()
    yield "utf-8", data
    yield "CRLF", data.replace(b"\n", b"\r\n")
    if not text.startswith("#!"):
        yield "BOM", b"\xef\xbb\xbf" + data
    yield "no last line end", data.rstrip(b"\n")


def _named() -> Iterator[Case]:
    for filename, media_type, text in corpus_texts.NAMED:
        yield Case("text with a name", media_type, filename, text.encode(), filename)


@functools.cache
def cases() -> tuple[Case, ...]:
    parts = (_zips, _archives, _ole, _headers, _pictures, _sound_and_film, _programs_and_data, _texts, _named)
    return tuple(case for part in parts for case in part())
