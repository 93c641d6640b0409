"""Blobs as objects of an S3-compatible store: `sha256/ab/cd/<sha256>/<blob id>` below the prefix of the URL.

Every put has an object of its own, which nothing else ever names, so collecting needs no lock. Bytes are gathered in a
local file first: only then is their sha256, and so their name, known. An upload that dies leaves no object; the parts
of a large one stay hidden in the bucket until its lifecycle rule for incomplete uploads takes them.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from onceward.blobs import CHUNK_BYTES, BlobMissing, Emptied, Stored, content_key
from onceward.blobs.s3_owner import settled_owner
from onceward.blobs.spool import Spool, SpoolFolder, Swept
from onceward.errors import InvalidInput, InvalidStoreUrl, StoreUnavailable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

_KEY = re.compile(r"sha256/([0-9a-f]{2})/([0-9a-f]{2})/(\1\2[0-9a-f]{60})/([A-Za-z0-9_-]{1,64})")
_BLOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_KIND = re.compile(r"kind: (Timeout|Connect|Request)")
_STATUS = re.compile(r"status code: (\d{3})")

# Memory of one upload is their product. S3 asks for parts of at least 5 MiB.
PART_BYTES = 8 * 1024 * 1024
PARTS_AT_ONCE = 4
# S3 takes 10,000; a little is left so that rounding never reaches it.
_PARTS_MAX = 9_900
# What one request fetches: whole, so that a slow reader never keeps a connection waiting until it is cut.
_WINDOW_BYTES = 4 * 1024 * 1024
# What S3 copies in one request.
COPY_BYTES_MAX = 5 * 1024**3

# One request carries at most a part, so this allows for lines of 140 kB/s. Then it is tried again, a few times.
REQUEST_SECONDS_MAX = 60.0
_CONNECT_SECONDS_MAX = 5.0
_RETRY: RetryConfig = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=90),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
}

_OPTIONS = frozenset({"endpoint", "region", "checksum", "virtual_host", "credentials"})
# Where credentials come from besides the two variables of a key. The address that cloud machines ask is asked only with
# `credentials=instance`: anywhere else the request goes to a stranger, or waits for nobody.
_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)


@dataclass(frozen=True, slots=True)
class Place:
    """What a URL says."""

    bucket: str
    prefix: str
    options: Mapping[str, str]

    @property
    def endpoint(self) -> str:
        """Of the URL, else of the environment; empty: Amazon's own."""
        named = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        return self.options.get("endpoint") or next((os.environ[name] for name in named if os.environ.get(name)), "")


class S3Blobs:
    """Made by `open_s3`. It talks to the server from the first use on; a forked child opens its own."""

    backend: Final = "s3"

    def __init__(self, store: S3Store, spools: SpoolFolder, where: str, copy_bytes_max: int = COPY_BYTES_MAX) -> None:
        self._store = store
        self._spools = spools
        self._where = where
        self._copy_bytes_max = copy_bytes_max
        self._sends_parts = True

    def look(self) -> None:
        # Not `head`: a key and a whole bucket that are not there look the same to it.
        with self._failing_as("cannot be listed"):
            next(iter(obstore.list(self._store, "sha256", chunk_size=1)), None)

    def spool(self) -> Spool:
        return self._spools.spool()

    def put(self, spool: Spool, blob_id: str) -> str:
        spool.require_finished()
        if not _BLOB_ID.fullmatch(blob_id):
            raise InvalidInput("a blob id is 1 to 64 letters, digits, - and _")
        key = f"{content_key(spool.sha256)}/{blob_id}"
        self._upload(spool, key)
        return key

    def owner(self, mark: str) -> str:
        with self._failing_as("cannot be asked whose it is"):
            return settled_owner(self._store, mark)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Nothing is held: no two puts share a key."""
        yield

    def ensure(self, spool: Spool, blob_key: str, *, verify: bool = False) -> None:
        spool.require_finished()
        if _checked(blob_key).rpartition("/")[0] != content_key(spool.sha256):
            raise InvalidInput("these bytes do not belong under this key")
        if self.size(blob_key) != spool.size or (verify and self._digest(blob_key) != spool.sha256):
            self._upload(spool, blob_key)

    def size(self, blob_key: str) -> int | None:
        _checked(blob_key)
        with self._failing_as("cannot be asked"):
            try:
                return obstore.head(self._store, blob_key)["size"]
            except FileNotFoundError:
                return None

    def read(self, blob_key: str, start: int = 0, end: int | None = None) -> Generator[bytes]:
        # Asked first: servers answer a range behind the end each in their own way.
        if (size := self.size(blob_key)) is None:
            raise BlobMissing(f"there are no bytes under {blob_key}")
        return self._pieces(blob_key, start, size if end is None else min(end, size), size)

    def discard(self, blob_key: str) -> None:
        _checked(blob_key)
        with self._failing_as("cannot delete"):
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
            with self._failing_as("cannot copy"):
                obstore.copy(self._store, blob_key, aside)
        else:
            with self.spool() as spool:
                for piece in self._pieces(blob_key, 0, size, size):
                    spool.write(piece)
                spool.finish()
                self._upload(spool, aside)
        self.discard(blob_key)

    def keys(self) -> Iterator[Stored]:
        with self._failing_as("cannot be listed"):
            for page in obstore.list(self._store, "sha256", chunk_size=1000):
                for found in page:
                    if _KEY.fullmatch(found["path"]):
                        yield Stored(found["path"], found["size"], found["last_modified"])

    def sweep_temporary(self, older_than_seconds: float, *, dry_run: bool = False) -> Swept:
        return self._spools.sweep(older_than_seconds, dry_run=dry_run)

    def empty_trash(self, older_than_seconds: float) -> Emptied:  # noqa: ARG002  # as the protocol says it
        """There is no trash: what is discarded is deleted."""
        return Emptied()

    def _upload(self, spool: Spool, key: str) -> None:
        part = max(PART_BYTES, -(-spool.size // _PARTS_MAX))
        with self._failing_as("cannot take the upload"):
            obstore.put(self._store, key, spool.path, chunk_size=part, max_concurrency=PARTS_AT_ONCE)

    def _pieces(self, blob_key: str, start: int, end: int, size: int) -> Generator[bytes]:
        while start < end:
            until = min(start + _WINDOW_BYTES, end)
            window = self._window(blob_key, start, until, size)
            if window is None:
                yield from self._from_the_beginning(blob_key, start, end)
                return
            yield from _cut(window)
            start = until

    def _window(self, blob_key: str, start: int, end: int, size: int) -> memoryview | None:
        """None: the server does not send parts, or not so that the driver believes it (rclone answers 200, not 206)."""
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

    def _from_the_beginning(self, blob_key: str, start: int, end: int) -> Generator[bytes]:
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
        """The driver's own words are not passed on: they hold the whole request, and whatever the server sent."""
        try:
            yield
        except FileNotFoundError as error:
            if read_key:
                raise BlobMissing(f"there are no bytes under {read_key} any more") from None
            raise StoreUnavailable(f"{self._where} {what}: {_reason(error)}") from None
        except (BaseError, OSError) as error:
            raise StoreUnavailable(f"{self._where} {what}: {_reason(error)}") from None


def open_s3(url: str, spool_folder: Path | None = None, *, request_seconds_max: float = REQUEST_SECONDS_MAX) -> S3Blobs:
    place = parse(url)
    config: S3Config = {"disable_bulk_delete": True, "virtual_hosted_style_request": _truth(place, "virtual_host")}
    if endpoint := place.options.get("endpoint"):
        config["endpoint"] = endpoint
    if region := place.options.get("region"):
        config["region"] = region
    if (checksum := place.options.get("checksum", "sha256")) != "none":
        config["checksum_algorithm"] = checksum
    if place.options.get("credentials") != "instance" and not any(os.environ.get(name) for name in _SOURCES):
        raise InvalidStoreUrl(
            "s3: needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment; "
            "on a cloud machine with a role of its own, add credentials=instance to the URL"
        )
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS_MAX),
        "timeout": timedelta(seconds=request_seconds_max),
        "allow_http": place.endpoint.lower().startswith("http://"),
    }
    try:
        store = S3Store(
            place.bucket, prefix=place.prefix or None, config=config, client_options=client, retry_config=_RETRY
        )
    except (BaseError, ValueError):
        raise InvalidStoreUrl("s3: an option of the URL or an AWS_ variable has a value that cannot work") from None
    spools = SpoolFolder(spool_folder or _own_folder(), durable=False)
    return S3Blobs(store, spools, f"the S3 bucket {place.bucket!r} at {place.endpoint or 'Amazon'}")


def parse(url: str) -> Place:
    parts = urlsplit(url)
    if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc or parts.fragment:
        raise InvalidStoreUrl("write s3://bucket/prefix?endpoint=…; keys belong in the environment, not in the URL")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := options.keys() - _OPTIONS:
        # Its value may be a secret.
        raise InvalidStoreUrl(f"s3: knows no option {min(unknown)!r}, only {', '.join(sorted(_OPTIONS))}")
    if "endpoint" in options:
        endpoint = urlsplit(options["endpoint"])
        if endpoint.scheme not in {"http", "https"} or not endpoint.hostname or "@" in endpoint.netloc:
            raise InvalidStoreUrl("s3: endpoint is http://host:port or https://host, without a user")
    if options.get("checksum", "none") not in {"sha256", "crc64nvme", "none"}:
        raise InvalidStoreUrl("s3: checksum is sha256, crc64nvme or none")
    if options.get("credentials", "instance") != "instance":
        raise InvalidStoreUrl("s3: credentials is instance, or left out")
    return Place(parts.netloc, unquote(parts.path).strip("/"), options)


def _truth(place: Place, option: str) -> bool:
    value = place.options.get(option, "false")
    if value not in {"true", "false"}:
        raise InvalidStoreUrl(f"s3: {option} is true or false")
    return value == "true"


def _checked(blob_key: str) -> str:
    if not _KEY.fullmatch(blob_key):
        raise InvalidInput("this is not the key of a blob in S3")
    return blob_key


def _cut(window: memoryview) -> Iterator[bytes]:
    for start in range(0, len(window), CHUNK_BYTES):
        yield bytes(window[start : start + CHUNK_BYTES])


def _own_folder() -> Path:
    """In a folder that everybody may write to, so it must be seen to be ours."""
    path = Path(tempfile.gettempdir()) / f"onceward-spool-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise StoreUnavailable(f"there is no folder for uploads at {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StoreUnavailable(f"{path} is not a folder of this user alone")
    return path


def _reason(error: Exception) -> str:
    text = str(error)
    if code := _CODE.search(text):
        return code[1]
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return "access denied; check the credentials in the environment and what they are allowed"
    if status := _STATUS.search(text):
        return f"it answered {status[1]}"
    if kind := _KIND.search(text):
        return "no answer in time" if kind[1] == "Timeout" else "no connection"
    if isinstance(error, FileNotFoundError):
        return "the bucket is not there"
    return error.strerror or "failed" if isinstance(error, OSError) else type(error).__name__
