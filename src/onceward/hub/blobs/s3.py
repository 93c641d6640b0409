"""Blobs as objects of an S3-compatible store: `sha256/ab/cd/<sha256>/<blob id>` below the prefix of the URL.

Every put creates its own object, which no other put uses, so gc needs no lock. The bytes are first written to a local
file, because the sha256 and so the name are known only at the end. An upload that dies leaves no object. The parts of
a large one stay hidden in the bucket until its lifecycle rule for incomplete uploads deletes them.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from onceward.errors import InvalidInput, InvalidStoreUrl, StoreMisconfigured, StoreUnavailable
from onceward.hub.blobs import CHUNK_BYTES, BlobMissing, Emptied, Stored, content_key
from onceward.hub.blobs.s3_owner import resolve_owner
from onceward.hub.blobs.temp_file import Swept, TempFile, TempFolder

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

_KEY = re.compile(r"sha256/([0-9a-f]{2})/([0-9a-f]{2})/(\1\2[0-9a-f]{60})/([A-Za-z0-9_-]{1,64})")
_BLOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_KIND = re.compile(r"kind: (Timeout|Connect|Request)")
_STATUS = re.compile(r"status code: (\d{3})")
# S3's error codes for mistakes that only an operator can correct. All other errors may be temporary.
_PERMANENT = frozenset({
    "AccessDenied", "AccountProblem", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken",
    "IllegalLocationConstraintException", "InvalidAccessKeyId", "InvalidBucketName", "InvalidSecurity", "InvalidToken",
    "NoSuchBucket", "NotSignedUp", "PermanentRedirect", "RequestTimeTooSkewed", "SignatureDoesNotMatch",
})  # fmt: skip
NO_BUCKET = "the bucket does not exist"
_URL = "check the bucket and the endpoint in the URL, and the credentials in the environment"
_CLOCK = "set the clock of this machine: a request must be signed within 15 minutes of the server's time"

# The product of these two is the memory that one upload needs. S3 requires parts of at least 5 MiB.
PART_BYTES = 8 * 1024 * 1024
PARTS_AT_ONCE = 4
# S3 allows 10,000 parts. This is a little less, so that rounding never exceeds the limit.
_PARTS_MAX = 9_900
# Bytes that one request fetches into memory. A connection is therefore never kept open for a slow reader.
_WINDOW_BYTES = 4 * 1024 * 1024
# The largest object that S3 copies in one request.
COPY_BYTES_MAX = 5 * 1024**3

# One request carries at most one part, so 140 kB/s are fast enough. A request that takes longer is retried.
REQUEST_SECONDS_MAX = 60.0
_CONNECT_SECONDS_MAX = 5.0
_RETRY: RetryConfig = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=90),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
}

_OPTIONS = frozenset({"endpoint", "region", "checksum", "virtual_host", "credentials"})
# Environment variables that give credentials. The metadata service of cloud machines is used only with
# `credentials=instance`: on other machines the request would go to an unknown host, or time out.
_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)


@dataclass(frozen=True, slots=True)
class S3Location:
    """The parts of an S3 URL: bucket, prefix and options."""

    bucket: str
    prefix: str
    options: Mapping[str, str]

    @property
    def endpoint(self) -> str:
        """The endpoint from the URL, else from the environment; empty for Amazon."""
        named = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        return self.options.get("endpoint") or next((os.environ[name] for name in named if os.environ.get(name)), "")


class S3Blobs:
    """Blob store in an S3 bucket, made by `open_s3`. It connects on first use; a forked child opens its own."""

    backend: Final = "s3"

    def __init__(
        self, store: S3Store, temp_files: TempFolder, where: str, copy_bytes_max: int = COPY_BYTES_MAX
    ) -> None:
        self._store = store
        self._temp_files = temp_files
        self._where = where
        self._copy_bytes_max = copy_bytes_max
        self._sends_parts = True

    def ping(self) -> None:
        # `head` cannot be used: it gives the same error for a missing key and for a missing bucket.
        with self._failing_as("cannot be listed"):
            next(iter(obstore.list(self._store, "sha256", chunk_size=1)), None)

    def temp_file(self) -> TempFile:
        return self._temp_files.temp_file()

    def put(self, temp_file: TempFile, blob_id: str) -> str:
        temp_file.require_finished()
        if not _BLOB_ID.fullmatch(blob_id):
            raise InvalidInput("a blob id must be 1 to 64 letters, digits, - and _")
        key = f"{content_key(temp_file.sha256)}/{blob_id}"
        self._upload(temp_file, key)
        return key

    def owner(self, mark: str) -> str:
        with self._failing_as("cannot return or record its owner"):
            return resolve_owner(self._store, mark)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Do nothing: no two puts share a key."""
        yield

    def lock_shared(self) -> AbstractContextManager[None]:
        return self.lock()

    def ensure(self, temp_file: TempFile, blob_key: str, *, verify: bool = False) -> None:
        temp_file.require_finished()
        if _checked(blob_key).rpartition("/")[0] != content_key(temp_file.sha256):
            raise InvalidInput("the key does not match the sha256 of these bytes")
        if self.size(blob_key) != temp_file.size or (verify and self._digest(blob_key) != temp_file.sha256):
            self._upload(temp_file, blob_key)

    def size(self, blob_key: str) -> int | None:
        _checked(blob_key)
        with self._failing_as("cannot return the size of a blob"):
            try:
                return obstore.head(self._store, blob_key)["size"]
            except FileNotFoundError:
                return None

    def read(self, blob_key: str, start: int = 0, end: int | None = None) -> Generator[bytes]:
        # Ask for the size first, because servers differ in their response to a range after the end.
        if (size := self.size(blob_key)) is None:
            raise BlobMissing(f"the blob {blob_key} does not exist")
        return self._pieces(blob_key, start, size if end is None else min(end, size), size)

    def discard(self, blob_key: str) -> None:
        _checked(blob_key)
        with self._failing_as("cannot delete a blob"):
            try:
                obstore.delete(self._store, blob_key)
            except FileNotFoundError:
                return

    def quarantine(self, blob_key: str) -> None:
        size = self.size(blob_key)
        if size is None:
            return
        aside = f"quarantine/{blob_key.removeprefix('sha256/')}.{int(time.time())}"
        if size <= self._copy_bytes_max:
            with self._failing_as("cannot copy a blob"):
                obstore.copy(self._store, blob_key, aside)
        else:
            with self.temp_file() as temp_file:
                for piece in self._pieces(blob_key, 0, size, size):
                    temp_file.write(piece)
                temp_file.finish()
                self._upload(temp_file, aside)
        self.discard(blob_key)

    def keys(self) -> Iterator[Stored]:
        with self._failing_as("cannot be listed"):
            for page in obstore.list(self._store, "sha256", chunk_size=1000):
                for found in page:
                    if _KEY.fullmatch(found["path"]):
                        yield Stored(found["path"], found["size"], found["last_modified"])

    def sweep_temporary(self, older_than_seconds: float, *, dry_run: bool = False) -> Swept:
        return self._temp_files.sweep(older_than_seconds, dry_run=dry_run)

    def empty_trash(self, older_than_seconds: float) -> Emptied:  # noqa: ARG002  # the protocol has this parameter
        """Do nothing: `discard` deletes immediately, without a trash."""
        return Emptied()

    def _upload(self, temp_file: TempFile, key: str) -> None:
        part = max(PART_BYTES, -(-temp_file.size // _PARTS_MAX))
        with self._failing_as("cannot store the upload"):
            obstore.put(self._store, key, temp_file.path, chunk_size=part, max_concurrency=PARTS_AT_ONCE)

    def _pieces(self, blob_key: str, start: int, end: int, size: int) -> Generator[bytes]:
        while start < end:
            until = min(start + _WINDOW_BYTES, end)
            window = self._window(blob_key, start, until, size)
            if window is None:
                yield from self._from_whole_object(blob_key, start, end)
                return
            yield from _cut(window)
            start = until

    def _window(self, blob_key: str, start: int, end: int, size: int) -> memoryview | None:
        """Fetch a range; None if the server ignores ranges, or responds with 200 instead of 206 (as some servers do)."""
        with self._failing_as("cannot be read", blob_key):
            if end - start == size:
                return memoryview(obstore.get(self._store, blob_key).bytes())
            if not self._sends_parts:
                return None
            try:
                return memoryview(obstore.get_range(self._store, blob_key, start=start, end=end))
            except BaseError as error:
                if "NotPartial" not in str(error):
                    raise
                self._sends_parts = False
                return None

    def _from_whole_object(self, blob_key: str, start: int, end: int) -> Generator[bytes]:
        position = 0
        with self._failing_as("cannot be read", blob_key):
            for piece in obstore.get(self._store, blob_key).stream(min_chunk_size=CHUNK_BYTES):
                wanted = memoryview(piece)[max(0, start - position) : max(0, end - position)]
                position += len(piece)
                yield from _cut(wanted)
                if position >= end:
                    return

    def _digest(self, blob_key: str) -> str:
        digest = hashlib.sha256()
        for piece in self.read(blob_key):
            digest.update(piece)
        return digest.hexdigest()

    @contextmanager
    def _failing_as(self, what: str, read_key: str = "") -> Iterator[None]:
        """Translate driver errors, and drop their text: it contains the whole request and the server's response."""
        try:
            yield
        except FileNotFoundError as error:
            if read_key:
                raise BlobMissing(f"the blob {read_key} no longer exists") from None
            raise self._failure(what, error) from None
        except (BaseError, OSError) as error:
            raise self._failure(what, error) from None

    def _failure(self, what: str, error: Exception) -> StoreUnavailable:
        reason = _reason(error)
        refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        if reason in _PERMANENT or reason == NO_BUCKET or refused:
            advice = _CLOCK if reason == "RequestTimeTooSkewed" else _URL
            return StoreMisconfigured(f"{self._where} {what}: {type(error).__name__}: {reason}; {advice}")
        return StoreUnavailable(f"{self._where} {what}: {type(error).__name__}: {reason}")


def open_s3(url: str, temp_folder: Path | None = None, *, request_seconds_max: float = REQUEST_SECONDS_MAX) -> S3Blobs:
    location = parse(url)
    config: S3Config = {"disable_bulk_delete": True, "virtual_hosted_style_request": _truth(location, "virtual_host")}
    if endpoint := location.options.get("endpoint"):
        config["endpoint"] = endpoint
    if region := location.options.get("region"):
        config["region"] = region
    if (checksum := location.options.get("checksum", "sha256")) != "none":
        config["checksum_algorithm"] = checksum
    if location.options.get("credentials") != "instance" and not any(os.environ.get(name) for name in _SOURCES):
        raise InvalidStoreUrl(
            "s3: needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment; "
            "on a cloud machine that has a role, add credentials=instance to the URL"
        )
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS_MAX),
        "timeout": timedelta(seconds=request_seconds_max),
        "allow_http": location.endpoint.lower().startswith("http://"),
    }
    try:
        store = S3Store(
            location.bucket, prefix=location.prefix or None, config=config, client_options=client, retry_config=_RETRY
        )
    except (BaseError, ValueError):
        raise InvalidStoreUrl("s3: an option of the URL or an AWS_ environment variable has an invalid value") from None
    temp_files = TempFolder(temp_folder or _own_folder(), durable=False)
    return S3Blobs(store, temp_files, f"the S3 bucket {location.bucket!r} at {location.endpoint or 'Amazon'}")


def _is_endpoint(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc


def parse(url: str) -> S3Location:
    parts = urlsplit(url)
    if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc or parts.fragment:
        raise InvalidStoreUrl("an s3: URL must be s3://bucket/prefix?endpoint=…, with the keys in the environment")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := options.keys() - _OPTIONS:
        # Name the option without its value, which may be a secret.
        raise InvalidStoreUrl(f"s3: unknown option {min(unknown)!r}; the options are {', '.join(sorted(_OPTIONS))}")
    if "endpoint" in options and not _is_endpoint(options["endpoint"]):
        raise InvalidStoreUrl("s3: endpoint must be http://host:port or https://host, without a user")
    if options.get("checksum", "none") not in {"sha256", "crc64nvme", "none"}:
        raise InvalidStoreUrl("s3: checksum must be sha256, crc64nvme or none")
    if options.get("credentials", "instance") != "instance":
        raise InvalidStoreUrl("s3: credentials must be instance or absent")
    return S3Location(parts.netloc, unquote(parts.path).strip("/"), options)


def _truth(location: S3Location, option: str) -> bool:
    value = location.options.get(option, "false")
    if value not in {"true", "false"}:
        raise InvalidStoreUrl(f"s3: {option} must be true or false")
    return value == "true"


def _checked(blob_key: str) -> str:
    if not _KEY.fullmatch(blob_key):
        raise InvalidInput(f"{blob_key[:64]!r} is not a valid blob key for S3")
    return blob_key


def _cut(window: memoryview) -> Iterator[bytes]:
    for start in range(0, len(window), CHUNK_BYTES):
        yield bytes(window[start : start + CHUNK_BYTES])


def _own_folder() -> Path:
    """Create this user's folder for uploads. Its parent is writable by everyone, so its owner and mode are checked."""
    path = Path(tempfile.gettempdir()) / f"onceward-spool-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise StoreUnavailable(f"cannot create the folder for uploads {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StoreUnavailable(f"{path} must be a folder that belongs to this user, with mode 0700")
    return path


def _reason(error: Exception) -> str:
    text = str(error)
    if code := _CODE.search(text):
        return code[1]
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return "access denied"
    if status := _STATUS.search(text):
        return f"status {status[1]}"
    if kind := _KIND.search(text):
        return "timed out" if kind[1] == "Timeout" else "no connection"
    if isinstance(error, FileNotFoundError):
        return NO_BUCKET
    return error.strerror or "failed" if isinstance(error, OSError) else type(error).__name__
