"""The body of a keyed request: read and hashed completely before the key is claimed, then passed to the handler.

A small body stays in memory. A larger one goes to a temporary file and is never in memory as a whole.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import tempfile
from collections.abc import Iterator
from typing import IO

from onceward.core.outcome import CHUNK_BYTES_MAX
from onceward.http.request.form_digest import parts_digest
from onceward.http.request.headers import fields_of
from onceward.http.request.json_digest import json_digest

# The part of each body that may stay in memory.
MEMORY_BYTES_MAX = 256 * 1024

_DIGEST = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]+):\s*(?=$|,|;)")


class BodyTooLarge(Exception):
    """The body is larger than its route allows."""


class BufferedBody:
    """A request body that is being read."""

    def __init__(self, content_type: str, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parts = parts_digest(content_type) if content_type else None
        self._hash = hashlib.sha256()
        self._pieces: list[bytes] = []
        self._file: IO[bytes] | None = None
        self.size = 0

    def feed(self, data: bytes) -> None:
        """Add the next piece. Raises `BodyTooLarge`."""
        self.size += len(data)
        if self.size > self._bytes_max:
            raise BodyTooLarge
        self._hash.update(data)
        if self._parts is not None:
            self._parts.feed(data)
        if self._file is None and self.size > MEMORY_BYTES_MAX:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the body
            self._file.writelines(self._pieces)
            self._pieces.clear()
        if self._file is None:
            self._pieces.append(data)
        else:
            self._file.write(data)

    def digest(self, fields: tuple[str, ...] | None = None, *, as_json: bool = False) -> bytes:
        """Return the digest by which bodies are compared.

        It is of the chosen fields, or `as_json` of the JSON value, or of the parts of a form, or of every byte.
        """
        if as_json and fields is None and (found := json_digest(self.content())) is not None:
            return found
        if fields is not None and (chosen := fields_of(self.content(), fields)) is not None:
            return hashlib.sha256(chosen).digest()
        if self._parts is not None and (parts := self._parts.finish()) is not None:
            return parts
        return self._hash.digest()

    @property
    def sha256(self) -> bytes:
        """The digest of the whole body, byte by byte."""
        return self._hash.digest()

    def content(self) -> bytes:
        """Return the whole body. A file that was given out is at its beginning again."""
        found = b"".join(self.pieces())
        if self._file is not None:
            self._file.seek(0)
        return found

    def pieces(self) -> Iterator[bytes]:
        """Yield the body from its beginning."""
        if self._file is None:
            yield from self._pieces
            return
        self._file.seek(0)
        while piece := self._file.read(CHUNK_BYTES_MAX):
            yield piece

    def file(self) -> IO[bytes]:
        """Return the body as a file at its beginning."""
        if self._file is None:
            return io.BytesIO(b"".join(self._pieces))
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        self._pieces.clear()
        if self._file is not None:
            self._file.close()


def digest_header(content_digest: str) -> str:
    """Return the name of the header that `promised_digest` uses."""
    return "Repr-Digest" if promised_digest(content_digest, "") is None else "Content-Digest"


def promised_digest(content_digest: str, repr_digest: str) -> bytes | None:
    """Return the SHA-256 of the body from its `Content-Digest` or `Repr-Digest` header; None if neither has one."""
    for line in (content_digest, repr_digest):
        if found := _DIGEST.search(line):
            try:
                digest = base64.b64decode(found[1], validate=True)
            except binascii.Error:
                continue
            if len(digest) == hashlib.sha256().digest_size:
                return digest
    return None
