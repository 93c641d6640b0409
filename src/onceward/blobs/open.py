"""From a URL to where blobs lie."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from onceward.blobs import BlobStore
from onceward.blobs.folder import FolderBlobs
from onceward.errors import InvalidStoreUrl

_KNOWN = "file:///absolute/folder · s3://bucket/prefix?endpoint=https://…&region=…"


def open_blobs(url: str, *, spool_folder: Path | None = None) -> BlobStore:
    """`spool_folder` is where uploads to S3 are gathered; a folder of this user's own in the temporary one if not given.

    A blob folder is made when it is not there; an S3 server is not asked before the first use.
    """
    scheme, separator, _ = url.partition(":")
    if not separator:
        raise InvalidStoreUrl(f"a blob URL has a scheme; it is one of: {_KNOWN}")
    match scheme.lower():
        case "file":
            return _folder(url)
        case "s3":
            return _s3(url, spool_folder)
        case _:
            raise InvalidStoreUrl(f"unknown scheme {scheme!r}; a blob URL is one of: {_KNOWN}")


def _folder(url: str) -> BlobStore:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"} or not path.startswith("/") or "\0" in path:
        raise InvalidStoreUrl("write file:///absolute/folder, with three slashes")
    if parts.query or parts.fragment:
        raise InvalidStoreUrl("file: takes no options")
    return FolderBlobs(Path(path))


def _s3(url: str, spool_folder: Path | None) -> BlobStore:
    try:
        from onceward.blobs.s3 import open_s3  # noqa: PLC0415  # the driver is imported only by those who use it
    except ModuleNotFoundError as error:
        raise InvalidStoreUrl("s3:// needs its driver: pip install 'onceward[s3]'") from error
    return open_s3(url, spool_folder)
