"""Hierarchy of media types: spellings of the same type, kinds of a type, and types that a browser would run.

Two tables define it. Every text type descends from `text/plain`, and every type descends from
`application/octet-stream`, the name for "unknown".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

UNKNOWN = "application/octet-stream"
PLAIN = "text/plain"

# Canonical names and their other spellings. The canonical name is the registered one, else the most common one.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "application/gzip": ("application/x-gzip", "application/x-gunzip", "application/gzip-compressed"),
    "application/java-archive": ("application/x-java-archive", "application/x-jar"),
    "application/java-vm": ("application/x-java-applet", "application/x-java-vm", "application/x-java"),
    "application/json": ("text/json", "application/x-json"),
    "application/mbox": ("application/x-mbox",),
    "application/pdf": ("application/x-pdf",),
    "application/rss+xml": ("text/rss+xml",),
    "application/rtf": ("text/rtf", "application/x-rtf"),
    "application/toml": ("text/toml", "text/x-toml"),
    "application/vnd.apache.arrow.file": ("application/x-apache-arrow",),
    "application/vnd.apache.parquet": ("application/parquet", "application/x-parquet"),
    "application/vnd.apple.mpegurl": ("application/x-mpegurl", "audio/x-mpegurl", "audio/mpegurl"),
    "application/vnd.debian.binary-package": ("application/x-deb", "application/x-debian-package"),
    "application/vnd.microsoft.portable-executable": ("application/x-dosexec", "application/x-msdownload"),
    "application/vnd.ms-cab-compressed": ("application/x-cab",),
    "application/vnd.rar": ("application/x-rar", "application/x-rar-compressed"),
    "application/vnd.sqlite3": ("application/x-sqlite3",),
    "application/vnd.tcpdump.pcap": ("application/x-pcap", "application/pcap"),
    "application/x-bzip2": ("application/bzip2", "application/x-bzip", "application/x-bz2"),
    "application/x-hdf5": ("application/x-hdf", "application/hdf5"),
    "application/x-ndjson": (
        "application/ndjson", "application/jsonl", "application/x-jsonl", "application/jsonlines",
        "application/x-jsonlines", "application/json-lines", "text/jsonl",
    ),
    "application/x-ole-storage": ("application/cdfv2", "application/cdfv2-unknown", "application/cdfv2-encrypted"),
    "application/x-tar": ("application/tar", "application/x-gtar", "application/x-ustar"),
    "application/x-xz": ("application/xz",),
    "application/xml": ("text/xml",),
    "application/yaml": ("text/yaml", "text/x-yaml", "application/x-yaml"),
    "application/zip": ("application/x-zip", "application/x-zip-compressed"),
    "application/zstd": ("application/x-zstd",),
    "audio/aac": ("audio/x-aac", "audio/x-hx-aac-adts", "audio/aacp"),
    "audio/aiff": ("audio/x-aiff",),
    "audio/flac": ("audio/x-flac",),
    "audio/midi": ("audio/x-midi", "audio/mid"),
    "audio/mp4": ("audio/x-m4a", "audio/m4a"),
    "audio/mpeg": ("audio/mp3", "audio/x-mp3", "audio/x-mpeg"),
    "audio/wav": ("audio/x-wav", "audio/wave", "audio/vnd.wave"),
    "font/otf": ("application/x-font-otf", "application/vnd.ms-opentype", "font/opentype"),
    "font/ttf": ("application/x-font-ttf", "font/sfnt", "application/font-sfnt"),
    "font/woff": ("application/font-woff", "application/x-font-woff"),
    "font/woff2": ("application/font-woff2",),
    "image/bmp": ("image/x-ms-bmp", "image/x-bmp"),
    "image/jpeg": ("image/jpg", "image/pjpeg"),
    "image/vnd.microsoft.icon": ("image/x-icon", "image/ico"),
    "image/vnd.adobe.photoshop": ("application/x-photoshop", "image/x-photoshop", "image/psd"),
    "message/rfc822": ("message/global",),
    "text/calendar": ("text/x-vcalendar",),
    "text/csv": ("application/csv", "text/x-csv", "text/comma-separated-values"),
    "text/javascript": ("application/javascript", "application/x-javascript", "text/ecmascript", "text/jscript",
                        "application/ecmascript", "module/javascript"),
    "text/markdown": ("text/x-markdown",),
    "text/tab-separated-values": ("text/tsv",),
    "text/vcard": ("text/x-vcard", "text/directory"),
    "text/x-diff": ("text/x-patch", "text/diff"),
    "text/x-php": ("application/x-httpd-php", "application/x-php"),
    "text/x-python": ("text/x-script.python", "application/x-python", "application/x-python-code"),
    "text/x-shellscript": ("application/x-sh", "application/x-shellscript", "text/x-sh"),
    "text/x-tex": ("application/x-tex", "application/x-latex", "text/x-latex"),
    "video/matroska": ("video/x-matroska",),
    "video/mp4": ("video/x-m4v", "application/mp4"),
    "video/x-msvideo": ("video/avi", "video/msvideo", "video/vnd.avi"),
}  # fmt: skip

# A file that was detected as the parent may be declared as any of its children. `text/…`, `…+xml`, `…+json` and
# `…+zip` need no row, because their names imply the parent. Two edges do not mean "is a": a JSON document is also YAML
# and a JSON Lines file of one line, and an XHTML document may be declared as HTML.
CHILDREN: dict[str, tuple[str, ...]] = {
    PLAIN: (
        "application/json", "application/x-ndjson", "application/yaml", "application/toml", "application/xml",
        "application/sql", "application/graphql", "application/typescript", "application/x-subrip",
        "application/x-pem-file", "application/pgp-keys", "application/pgp-signature", "application/pgp-encrypted",
        "application/mbox", "application/vnd.apple.mpegurl", "application/rtf", "application/postscript",
        "application/xml-dtd", "application/jwt", "application/json5", "message/rfc822", "image/x-portable-bitmap",
        "image/x-portable-graymap", "image/x-portable-pixmap", "model/stl", "model/obj", "model/mtl", "model/step",
        "application/dxf", "image/vnd.dxf", "application/dicom+text", "application/x-perl", "application/x-csh",
        "application/x-ruby", "application/x-bibtex", "application/x-tcl", "application/http",
    ),
    "application/json": ("application/x-ndjson", "application/yaml", "application/json5"),
    "application/xhtml+xml": ("text/html",),
    "application/zip": (
        "application/java-archive", "application/vnd.android.package-archive", "model/3mf",
        "application/vnd.google-earth.kmz", "application/vnd.apple.pages", "application/vnd.apple.numbers",
        "application/vnd.apple.keynote", "application/vnd.ms-xpsdocument", "application/oxps", "application/x-ios-app",
        "application/x-xpinstall", "application/appx", "application/vnd.comicbook+zip", "application/x-cbz",
        "image/openraster", "application/x-krita", "application/vnd.ms-visio.drawing", "application/x-wheel",
        "application/vnd.oasis.opendocument.*", "application/vnd.openxmlformats-officedocument.*",
        "application/vnd.ms-excel.sheet.binary.macroenabled.12", "application/vnd.ms-word.*",
        "application/vnd.ms-excel.*", "application/vnd.ms-powerpoint.*",
    ),
    "application/java-archive": ("application/vnd.android.package-archive",),
    "application/x-ole-storage": (
        "application/msword", "application/vnd.ms-excel", "application/vnd.ms-powerpoint", "application/vnd.ms-outlook",
        "application/vnd.visio", "application/x-msi", "application/vnd.ms-publisher", "application/vnd.ms-project",
        # An encrypted OOXML document is an OLE file that does not show its contents.
        "application/vnd.openxmlformats-officedocument.*",
    ),
    "application/x-elf": (
        "application/x-executable", "application/x-pie-executable", "application/x-sharedlib", "application/x-object",
        "application/x-coredump",
    ),
    "application/x-sharedlib": ("application/x-pie-executable", "application/x-executable"),
    "application/gzip": ("application/x-compressed-tar", "application/tar+gzip", "application/x-tgz"),
    "application/x-bzip2": ("application/x-bzip2-compressed-tar", "application/x-bzip-compressed-tar"),
    "application/x-xz": ("application/x-xz-compressed-tar",),
    "application/pdf": ("application/illustrator", "application/vnd.adobe.illustrator"),
    "application/postscript": ("application/eps", "image/x-eps", "application/illustrator"),
    "application/ogg": ("audio/ogg", "video/ogg"),
    "audio/ogg": ("audio/opus", "audio/vorbis", "audio/x-vorbis+ogg", "audio/x-opus+ogg"),
    "image/heif": ("image/heic", "image/avif"),
    "image/png": ("image/apng", "image/vnd.mozilla.apng"),
    "image/tiff": (
        "image/x-canon-cr2", "image/x-nikon-nef", "image/x-adobe-dng", "image/x-sony-arw", "image/x-dcraw",
        "image/geotiff", "image/x-pentax-pef",
    ),
    "text/x-csrc": ("text/x-c", "text/x-c++", "text/x-chdr"),
    # A video container may contain only audio, which its header does not show.
    "video/mp4": ("audio/mp4", "video/3gpp", "video/quicktime"),
    "video/quicktime": ("video/mp4",),
    "video/3gpp": ("audio/3gpp",),
    "video/matroska": ("video/webm", "audio/x-matroska", "audio/matroska"),
    "video/webm": ("audio/webm",),
    "video/x-ms-asf": ("video/x-ms-wmv", "audio/x-ms-wma", "application/vnd.ms-asf"),
}  # fmt: skip

# A browser that opens one of these as a document may run scripts in it.
ACTIVE = frozenset({
    "text/html", "application/xhtml+xml", "image/svg+xml", "text/javascript", "application/xslt+xml",
    "application/mathml+xml", "text/x-component", "application/x-shockwave-flash", "application/vnd.adobe.flash.movie",
    "multipart/related", "application/x-mimearchive",
})  # fmt: skip

# The structured suffixes of RFC 6839 and the parents that they imply.
_SUFFIXES = {"+xml": "application/xml", "+json": "application/json", "+zip": "application/zip"}
_CANONICAL = {other: name for name, others in SPELLINGS.items() for other in others}
_NAME = r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}"
_TYPE = re.compile(rf"{_NAME}/{_NAME}")


def normal(text: str) -> str | None:
    """Return the type in lower case and without parameters, or None if the text is not a media type (RFC 6838)."""
    bare = text.partition(";")[0].strip().lower()
    return bare if _TYPE.fullmatch(bare) else None


def canonical(media_type: str) -> str:
    """Return the canonical spelling of a type."""
    return _CANONICAL.get(media_type, media_type)


def _parents(media_type: str) -> Iterator[str]:
    for parent, children in CHILDREN.items():
        for child in children:
            if child == media_type or (child.endswith("*") and media_type.startswith(child[:-1])):
                yield parent
    for suffix, parent in _SUFFIXES.items():
        if media_type.endswith(suffix):
            yield parent
    if media_type.startswith("text/") and media_type != PLAIN:
        yield PLAIN


def descends(media_type: str, ancestor: str) -> bool:
    """Return whether a type is the ancestor, in any spelling, or a kind of it."""
    ancestor = canonical(ancestor)
    seen: set[str] = set()
    waiting = [canonical(media_type)]
    while waiting:
        one = waiting.pop()
        if one == ancestor:
            return True
        if one not in seen:
            seen.add(one)
            waiting += [canonical(parent) for parent in _parents(one)]
    return ancestor == UNKNOWN


def is_text(media_type: str) -> bool:
    return descends(media_type, PLAIN)


def is_active(media_type: str) -> bool:
    return canonical(media_type) in ACTIVE
