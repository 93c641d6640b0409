"""Owner of a bucket: the object `owner` holds the mark of the database that asked first.

Two databases may ask at the same time, and conditional puts do not decide between them on every server: some ignore
the condition silently, and the last writer wins. So each candidate first writes its own object and then lists those of
the others. Of two candidates, at least one sees the other, and a candidate that sees another one does not become the
owner. This needs no clock, only a server that lists every object it has acknowledged.

    owner                                       the mark
    owner-asked/<sha256 of a mark>/<random>     a candidate. A killed process may leave it behind; then only the same
                                                mark can become the owner
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from onceward.errors import StoreUnavailable

# Next to the blobs, which are under `sha256/`.
_OWNER, _ASKED = "owner", "owner-asked"
# Errors of servers that do not support conditional puts.
_UNKNOWN_CONDITION = ("NotImplemented", "501 Not Implemented")


def resolve_owner(store: S3Store, mark: str) -> str:
    """Return the recorded mark; record `mark` if there is none and no other database asks at the same time."""
    if owner := _owner(store):
        return owner
    ours = f"{_ASKED}/{hashlib.sha256(mark.encode()).hexdigest()}/"
    # Unique to this call: another process with the same mark may give up, and must not delete this object.
    own = ours + secrets.token_hex(8)
    obstore.put(store, own, mark.encode())
    asking = (found["path"] for page in obstore.list(store, _ASKED) for found in page)
    others = [path for path in asking if not path.startswith(ours)]
    # Read after the list: a candidate that is no longer listed has written its mark before, or given up.
    owner = _owner(store)
    if not owner and not others:
        _create(store, mark)
        owner = _owner(store)
    with suppress(FileNotFoundError):
        obstore.delete(store, own)
    if not owner:
        raise StoreUnavailable(
            "another database is claiming these blobs at the same time; try again. If that database is gone for good,"
            f" delete the objects under {_ASKED}/ next to the blobs"
        )
    return owner


def _owner(store: S3Store) -> str:
    """Read the recorded mark; empty if there is none yet."""
    try:
        return bytes(obstore.get(store, _OWNER).bytes()).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _create(store: S3Store, mark: str) -> None:
    """Record the mark.

    If the server supports conditional puts, an existing mark stays, even one written by a version without candidates.
    """
    try:
        obstore.put(store, _OWNER, mark.encode(), mode="create")
    except AlreadyExistsError:
        return
    except BaseError as error:
        if not any(words in str(error) for words in _UNKNOWN_CONDITION):
            raise
        obstore.put(store, _OWNER, mark.encode())
