"""Blob URLs: opens the blob store that a URL names."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from onceward.errors import InvalidStoreUrl, install_command
from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.folder import FolderBlobs

_KNOWN = "file:///absolute/folder · s3://bucket/prefix?endpoint=https://…&region=…"


def open_blobs(url: str, *, temp_folder: Path | None = None) -> BlobStore:
    """Open the blob store of a URL.

    `temp_folder` holds the temporary files of uploads to S3; by default, a folder of this user in the system's
    temporary folder. A blob folder is created if it does not exist. An S3 server is not contacted before the first use.
    """
    scheme, separator, _ = url.partition(":")
    if not separator:
        raise InvalidStoreUrl(f"a blob URL needs a scheme; use one of: {_KNOWN}")
    try:
        urlsplit(url)
        os.fsencode(url)
    except ValueError:  # an unclosed bracket, or a lone surrogate
        raise InvalidStoreUrl(f"the blob URL is malformed; use one of: {_KNOWN}") from None
    match scheme.lower():
        case "file":
            return _folder(url)
        case "s3":
            return _s3(url, temp_folder)
        case _:
            raise InvalidStoreUrl(f"unknown scheme {scheme!r} of a blob URL; use one of: {_KNOWN}")


def _folder(url: str) -> BlobStore:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"} or not path.startswith("/") or "\0" in path:
        raise InvalidStoreUrl("a file: URL must be file:///absolute/folder, with three slashes")
    if parts.query or parts.fragment:
        raise InvalidStoreUrl("file: URLs take no options")
    return FolderBlobs(Path(path))


def _s3(url: str, temp_folder: Path | None) -> BlobStore:
    try:
        from onceward.hub.blobs.s3 import open_s3  # noqa: PLC0415  # the driver is imported only when it is used
    except ModuleNotFoundError as error:
        raise InvalidStoreUrl(f"s3:// needs an optional driver: {install_command('s3')}") from error
    return open_s3(url, temp_folder)
