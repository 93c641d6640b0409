"""Multipart uploads: one file, hashed while it is written, and fields before or after it.

The event loop parses the message; a worker thread hashes and writes. Up to `_WRITE_BYTES` of the file wait in memory, so
the bytes of a small file are written, synced and stored in one call of a thread: `Upload.store`.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes

import anyio.to_thread
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from onceward.core.json_text import refused
from onceward.errors import InvalidInput, OncewardError, TooLarge
from onceward.http.keyed.operation import idempotency
from onceward.http.request.headers import length_of
from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.temp_file import TempFile
from onceward.hub.db.request_key import RequestKey
from onceward.hub.tasks import Added, NewTaskAttachment, Quota, UploadRules, create_managed_attachment, quota
from onceward.hub.tasks.quota import OverQuota

if TYPE_CHECKING:
    from onceward.hub.state import HubState

T = TypeVar("T")

FILE_FIELD = "content"
# Limits of the form fields; the file has its own limit.
FIELDS_MAX = 200
FIELD_BYTES_MAX = 64 * 1024
FIELDS_BYTES_MAX = 512 * 1024
# Bytes per call of the worker thread: a call takes about as long as hashing 50 KiB.
_WRITE_BYTES = 1024 * 1024

_DIGEST = re.compile(r"(?:^|[,\s])sha-256=([^,;\s]*)", re.IGNORECASE)
_FILENAME = re.compile(rb";\s*filename\*=utf-8'[^';]*'([^;\s]+)", re.IGNORECASE)


@dataclass(slots=True)
class Upload:
    """A received upload: its fields in order of arrival, and the bytes of its file."""

    blobs: BlobStore
    expected_digests: set[str] = field(default_factory=set)
    body_sha256: str = ""
    filename: str | None = None
    fields: list[tuple[str, str]] = field(default_factory=list)
    # The bytes that are not yet in the temp file.
    waiting: list[bytes] = field(default_factory=list)
    temp_file: TempFile | None = None

    def one(self, name: str) -> str | None:
        """Return the field of this name, or raise `InvalidInput` if there are several."""
        found = [value for field_name, value in self.fields if field_name == name]
        if len(found) > 1:
            raise refused(name, "was sent more than once")
        return found[0] if found else None

    def all(self, *names: str) -> list[str]:
        return [value for name, value in self.fields if name in names]

    def store(self, use: Callable[[TempFile], T]) -> T:
        """Pass the finished temp file to `use`, and delete its temporary name afterwards. Call this in a thread."""
        try:
            temp_file = self.write()
            if not self.expected_digests <= {self.body_sha256, temp_file.sha256}:
                raise WrongDigest("the upload does not match the digest in its Content-Digest or Repr-Digest header")
            temp_file.finish()
            return use(temp_file)
        finally:
            self.close()

    def write(self) -> TempFile:
        """Hash the waiting bytes and write them into the temp file. Call this in a thread."""
        if self.temp_file is None:
            self.temp_file = self.blobs.temp_file()
        waiting, self.waiting = self.waiting, []
        for piece in waiting:
            self.temp_file.write(piece)
        return self.temp_file

    def close(self) -> None:
        if self.temp_file is not None:
            self.temp_file.close()


class WrongDigest(InvalidInput):
    """The bytes were damaged on their way."""


BeforeFile: TypeAlias = Callable[[Upload], None]


@dataclass(frozen=True, slots=True)
class AttachmentUpload:
    """A received upload that can be attached to a task. Its bytes count for the principal of `quota`."""

    upload: Upload
    hub: HubState
    quota: Quota
    uploaders: anyio.CapacityLimiter

    async def attach(self, task_id: str, new: NewTaskAttachment, rules: UploadRules, key: RequestKey | None) -> Added:
        """Store the bytes and the attachment."""
        hub = self.hub
        return await anyio.to_thread.run_sync(
            self.upload.store,
            lambda temp_file: create_managed_attachment(
                hub.database, hub.blobs, task_id, temp_file, new, rules, key, self.quota
            ),
            limiter=self.uploaders,
        )


@contextlib.asynccontextmanager
async def receive_attachment(
    request: Request, hub: HubState, principal: str, before_file: BeforeFile | None = None
) -> AsyncIterator[AttachmentUpload]:
    """Receive a file for a task, within the limits of the hub and of the principal. See `receive_upload`."""
    settings = hub.config.attachments
    own = Quota(principal, settings.max_bytes_per_principal)
    require_room = functools.partial(quota.require_room, hub.database, own) if own.bytes_max else None
    async with receive_upload(request, hub.blobs, settings.max_upload_bytes, require_room, before_file) as upload:
        yield AttachmentUpload(upload, hub, own, request.app.state.uploaders)


@contextlib.asynccontextmanager
async def receive_upload(
    request: Request,
    store: BlobStore,
    bytes_max: int,
    require_room: Callable[[int], None] | None = None,
    before_file: BeforeFile | None = None,
) -> AsyncIterator[Upload]:
    """Receive the whole upload. At the end of the block its temp file is deleted, unless it became a blob.

    `require_room` raises `OverQuota` if the given number of bytes does not fit. It is called in a thread, before anything
    is received, with the size that a long upload has at least. `before_file` is called with the fields that came before
    the file, and raises to refuse the upload before any byte of the file is kept.
    """
    boundary = _boundary(request)
    with _releasing_key(request, InvalidInput):
        expected_digests = _expected_digests(request)
    length = length_of(request.headers.get("content-length", ""))
    body_bytes_max = bytes_max + FIELDS_BYTES_MAX
    if length is not None and length > body_bytes_max:
        raise _too_large(bytes_max)
    if require_room is not None and length is not None and length > FIELDS_BYTES_MAX:
        with _releasing_key(request, OverQuota):
            await anyio.to_thread.run_sync(require_room, length - FIELDS_BYTES_MAX)
    upload = Upload(store, expected_digests)
    reader = _Reader(boundary, upload, bytes_max, before_file)
    try:
        with _releasing_key(request, InvalidInput) if expected_digests else contextlib.nullcontext():
            await _read(request, reader, body_bytes_max)
        # The principal may have room when it sends the same upload again.
        with _releasing_key(request, WrongDigest, OverQuota):
            yield upload
    finally:
        upload.close()


@contextlib.contextmanager
def _releasing_key(request: Request, *refusals: type[OncewardError]) -> Iterator[None]:
    """Release the idempotency key of a refused upload, so that a retry does not replay the refusal.

    Uploads from the console do not pass the idempotency middleware: their key is a field of the form.
    """
    try:
        yield
    except refusals:
        operation = idempotency(request, None)
        if operation is not None:
            operation.release()
        raise


async def _read(request: Request, reader: _Reader, body_bytes_max: int) -> None:
    """Read the upload. Its bytes are written into the temp file as they arrive, except for the last ones."""
    hashes = bool(reader.upload.expected_digests)
    body_digest = hashlib.sha256()
    body_bytes = 0
    try:
        async for chunk in request.stream():
            body_bytes += len(chunk)
            if body_bytes > body_bytes_max:
                # Counts every byte: a body may continue after its last part, without end.
                raise _too_large(body_bytes_max - FIELDS_BYTES_MAX)
            if hashes:
                body_digest.update(chunk)
            reader.feed(chunk)
            if reader.waiting_bytes >= _WRITE_BYTES:
                reader.waiting_bytes = 0
                await anyio.to_thread.run_sync(reader.upload.write)
    except ClientDisconnect:
        # No client is left to read the response. The written bytes are deleted with the temp file.
        raise InvalidInput("the client disconnected before the upload was complete") from None
    reader.finish()
    reader.upload.body_sha256 = body_digest.hexdigest()


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(f"an upload is limited to {bytes_max} bytes")


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise HTTPException(415, "An upload must be multipart/form-data with the file in the field `content`.")
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise InvalidInput("the Content-Type multipart/form-data has no boundary")
    return boundary


def _expected_digests(request: Request) -> set[str]:
    """Return every sha-256 digest that the client sent, in hex: of the whole body (RFC 9530) or of the file."""
    lines = [line for name in ("content-digest", "repr-digest") for line in request.headers.getlist(name)]
    return {_digest(found[1]) for line in lines for found in _DIGEST.finditer(line)}


def _digest(value: str) -> str:
    try:
        if value[:1] == value[-1:] == ":":
            return base64.b64decode(value[1:-1], validate=True).hex()
    except binascii.Error:
        pass
    raise InvalidInput("the sha-256 digest in Content-Digest or Repr-Digest must be base64 between colons")


class _Reader:
    """Multipart parser of one upload. Only one task or thread calls its methods at a time."""

    def __init__(self, boundary: bytes, upload: Upload, bytes_max: int, before_file: BeforeFile | None = None) -> None:
        self.upload = upload
        self._before_file = before_file
        self.waiting_bytes = 0
        self._bytes_max = bytes_max
        self._file_bytes = 0
        self._fields_bytes = 0
        self._has_file = False
        self._ended = False
        # The part that is being read.
        self._header: list[bytes] = [b"", b""]
        self._headers: dict[str, bytes] = {}
        self._name = ""
        self._in_file = False
        self._value = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._open,
                    "on_part_data": self._data,
                    "on_part_end": self._close,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise InvalidInput(f"the upload is not valid multipart/form-data: {error}") from None

    def feed(self, chunk: bytes) -> None:
        if self._ended or not chunk:
            return  # ignore everything after the last part
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise InvalidInput(f"the upload is not valid multipart/form-data: {error}") from None

    def finish(self) -> None:
        if not self._ended:
            raise InvalidInput("the upload ends before its closing boundary")
        if not self._has_file:
            raise refused(FILE_FIELD, "is missing; it must contain the file")

    # Called by the parser.

    def _begin(self) -> None:
        self._header, self._headers, self._value = [b"", b""], {}, bytearray()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def _header_end(self) -> None:
        name, value = self._header
        self._headers[name.decode("latin-1").lower()] = value
        self._header = [b"", b""]

    def _open(self) -> None:
        disposition, options = parse_options_header(self._headers.get("content-disposition", b""))
        if disposition != b"form-data" or b"name" not in options:
            raise InvalidInput("a part of the upload has no name")
        self._name = _text("name", options[b"name"])
        self._in_file = self._name == FILE_FIELD
        if not self._in_file:
            return
        if self._has_file:
            raise refused(FILE_FIELD, "was sent more than once")
        if self._before_file is not None:
            self._before_file(self.upload)
        self._has_file = True
        if b"filename" in options:
            self.upload.filename = _text("filename", options[b"filename"])
        elif found := _FILENAME.search(self._headers["content-disposition"]):
            # RFC 7578 forbids this form, but some clients send only this for non-ASCII names.
            self.upload.filename = _text("filename", unquote_to_bytes(found[1]))

    def _data(self, data: bytes, start: int, end: int) -> None:
        size = end - start
        if self._in_file:
            self._file_bytes += size
            if self._file_bytes > self._bytes_max:
                raise _too_large(self._bytes_max)
            self.upload.waiting.append(data[start:end])
            self.waiting_bytes += size
            return
        self._fields_bytes += size
        if len(self._value) + size > FIELD_BYTES_MAX or self._fields_bytes > FIELDS_BYTES_MAX:
            raise TooLarge(
                f"the form fields of an upload are limited to {FIELD_BYTES_MAX} bytes each and"
                f" {FIELDS_BYTES_MAX} bytes in total"
            )
        self._value += data[start:end]

    def _close(self) -> None:
        if self._in_file:
            return
        if len(self.upload.fields) >= FIELDS_MAX:
            raise InvalidInput(f"an upload can have at most {FIELDS_MAX} form fields")
        self.upload.fields.append((self._name, _text(self._name, bytes(self._value))))

    def _end(self) -> None:
        self._ended = True


def _text(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise refused(name[:64], "is not valid UTF-8") from None
    if "\0" in text:
        raise refused(name[:64], "must not contain a NUL character")
    return text
