"""Whose a bucket is: the object `owner` has the mark of whoever asked first.

Two may ask at the same moment, and not every server refuses to create what is there: some pass over the condition in
silence, and the last who writes wins. So whoever wants to be the owner first says so in an object of his own and then
looks who else has. Of two who do, at least one sees the other, and who sees another takes nothing. No clock is needed
for that, only a server that shows what it has acknowledged.

    owner                                       the mark
    owner-asked/<sha256 of a mark>/<random>     somebody is just asking. A kill may leave it behind, and then only the
                                                same mark gets past it
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from onceward.errors import StoreUnavailable

# Beside the blobs, which lie under `sha256/`.
_OWNER, _ASKED = "owner", "owner-asked"
# What servers say that know of no conditions.
_UNKNOWN_CONDITION = ("NotImplemented", "501 Not Implemented")


def settled_owner(store: S3Store, mark: str) -> str:
    """The mark that is there for good; ours, if there was none and nobody else asks."""
    if owner := _owner(store):
        return owner
    ours = f"{_ASKED}/{hashlib.sha256(mark.encode()).hexdigest()}/"
    # Of this call alone: another process with the same mark may give up, and must not take this away.
    own = ours + secrets.token_hex(8)
    obstore.put(store, own, mark.encode())
    asking = (found["path"] for page in obstore.list(store, _ASKED) for found in page)
    others = [path for path in asking if not path.startswith(ours)]
    # After the list: who is not on it any more has written the mark before he went, or gave up.
    owner = _owner(store)
    if not owner and not others:
        _create(store, mark)
        owner = _owner(store)
    with suppress(FileNotFoundError):
        obstore.delete(store, own)
    if not owner:
        raise StoreUnavailable(
            "another database asks for these blobs at the same moment; ask again. If that one is gone for good, delete"
            f" what lies under {_ASKED}/ beside the blobs"
        )
    return owner


def _owner(store: S3Store) -> str:
    """Empty when there is none yet."""
    try:
        return bytes(obstore.get(store, _OWNER).bytes()).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _create(store: S3Store, mark: str) -> None:
    """Where the server keeps conditions, what is there stays: also the mark of a version that looks for nobody else."""
    try:
        obstore.put(store, _OWNER, mark.encode(), mode="create")
    except AlreadyExistsError:
        return
    except BaseError as error:
        if not any(words in str(error) for words in _UNKNOWN_CONDITION):
            raise
        obstore.put(store, _OWNER, mark.encode())
