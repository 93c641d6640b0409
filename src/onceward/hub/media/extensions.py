"""Media types by file extension. A built-in table, because the system's table differs between machines."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

_TEXT: dict[str, str] = {
    "text/plain": "txt text log",
    "text/markdown": "md markdown mdown mkd",
    "text/csv": "csv",
    "text/tab-separated-values": "tsv tab",
    "text/html": "html htm",
    "text/css": "css",
    "text/javascript": "js mjs cjs",
    "text/x-python": "py pyi pyw",
    "text/x-shellscript": "sh bash zsh ksh",
    "text/x-perl": "pl pm",
    "text/x-ruby": "rb",
    "text/x-php": "php",
    "text/x-lua": "lua",
    "text/x-csrc": "c",
    "text/x-chdr": "h",
    "text/x-c++": "cc cpp cxx hpp hxx",
    "text/x-java": "java",
    "text/x-kotlin": "kt kts",
    "text/x-go": "go",
    "text/x-rust": "rs",
    "text/x-swift": "swift",
    "text/x-scala": "scala",
    "text/x-haskell": "hs",
    "text/x-r": "r",
    "text/x-tex": "tex sty cls ltx",
    "text/x-rst": "rst",
    "text/x-org": "org",
    "text/asciidoc": "adoc asciidoc",
    "text/x-diff": "diff patch",
    "text/x-ini": "ini cfg conf",
    "text/x-properties": "properties",
    "text/x-makefile": "mk",
    "text/vcard": "vcf",
    "text/calendar": "ics",
    "text/vtt": "vtt",
    "application/x-subrip": "srt",
    "application/x-bibtex": "bib",
    "application/json": "json",
    "application/x-ndjson": "jsonl ndjson",
    "application/geo+json": "geojson",
    "application/ld+json": "jsonld",
    "application/x-ipynb+json": "ipynb",
    "application/manifest+json": "webmanifest",
    "application/yaml": "yaml yml",
    "application/toml": "toml",
    "application/sql": "sql",
    "application/graphql": "graphql gql",
    "application/typescript": "ts tsx mts cts",
    "application/xml": "xml xsd",
    "application/xslt+xml": "xsl xslt",
    "application/xhtml+xml": "xhtml xht",
    "application/atom+xml": "atom",
    "application/rss+xml": "rss",
    "application/gpx+xml": "gpx",
    "application/vnd.google-earth.kml+xml": "kml",
    "image/svg+xml": "svg",
    "message/rfc822": "eml",
    "application/mbox": "mbox",
    "application/rtf": "rtf",
    "application/postscript": "ps eps",
    "application/vnd.apple.mpegurl": "m3u8 m3u",
    "application/x-pem-file": "pem crt",
    "model/obj": "obj",
}
_BINARY: dict[str, str] = {
    "application/pdf": "pdf",
    "application/msword": "doc",
    "application/vnd.ms-excel": "xls",
    "application/vnd.ms-powerpoint": "ppt",
    "application/vnd.ms-outlook": "msg",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.oasis.opendocument.spreadsheet": "ods",
    "application/vnd.oasis.opendocument.presentation": "odp",
    "application/vnd.oasis.opendocument.graphics": "odg",
    "application/epub+zip": "epub",
    "application/zip": "zip",
    "application/gzip": "gz tgz",
    "application/x-bzip2": "bz2",
    "application/x-xz": "xz",
    "application/zstd": "zst",
    "application/x-7z-compressed": "7z",
    "application/vnd.rar": "rar",
    "application/x-tar": "tar",
    "application/java-archive": "jar",
    "application/vnd.android.package-archive": "apk",
    "application/vnd.sqlite3": "sqlite sqlite3",
    "application/vnd.apache.parquet": "parquet",
    "application/vnd.microsoft.portable-executable": "exe dll",
    "application/wasm": "wasm",
    "application/x-iso9660-image": "iso",
    "application/x-apple-diskimage": "dmg",
    "image/png": "png",
    "image/jpeg": "jpg jpeg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/avif": "avif",
    "image/heic": "heic",
    "image/tiff": "tif tiff",
    "image/bmp": "bmp",
    "image/vnd.microsoft.icon": "ico",
    "image/vnd.adobe.photoshop": "psd",
    "image/jxl": "jxl",
    "audio/mpeg": "mp3",
    "audio/mp4": "m4a",
    "audio/ogg": "ogg oga opus",
    "audio/flac": "flac",
    "audio/wav": "wav",
    "audio/aac": "aac",
    "audio/midi": "mid midi",
    "video/mp4": "mp4 m4v",
    "video/quicktime": "mov",
    "video/webm": "webm",
    "video/matroska": "mkv",
    "video/x-msvideo": "avi",
    "font/ttf": "ttf",
    "font/otf": "otf",
    "font/woff": "woff",
    "font/woff2": "woff2",
    "model/3mf": "3mf",
    "model/gltf-binary": "glb",
    "model/gltf+json": "gltf",
}
_OF_TEXT = {extension: media_type for media_type, extensions in _TEXT.items() for extension in extensions.split()}
_OF_ALL = _OF_TEXT | {
    extension: media_type for media_type, extensions in _BINARY.items() for extension in extensions.split()
}
# File names that imply a type without an extension.
_WHOLE = {"makefile": "text/x-makefile", "dockerfile": "text/x-dockerfile", "readme": "text/plain"}


def _extension(name: str) -> str:
    base = name.replace("\\", "/").rpartition("/")[2].lower()
    stem, dot, extension = base.rpartition(".")
    # A leading dot marks a hidden file, not an extension.
    return extension if dot and stem else ""


def text_type(filename: str | None) -> str | None:
    """Return the text type that a file name implies, or None."""
    if not filename:
        return None
    base = filename.replace("\\", "/").rpartition("/")[2].lower()
    return _WHOLE.get(base) or _OF_TEXT.get(_extension(filename))


def link_type(address: str) -> str | None:
    """Return the type that the last segment of a URL or path implies, or None. Query and host are ignored."""
    path = address
    if "://" in address:
        try:
            path = unquote(urlsplit(address).path)
        except ValueError:
            return None
    return _WHOLE.get(path.rpartition("/")[2].lower()) or _OF_ALL.get(_extension(path))
