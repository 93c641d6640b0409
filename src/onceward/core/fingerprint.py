"""A fingerprint says whether two calls under one key are the same call."""

from __future__ import annotations

import hashlib

from onceward.core.canonical import canonical, plain_form
from onceward.core.scalar import Unkeepable
from onceward.core.value import to_json
from onceward.errors import InvalidKey

# More would keep a caller for minutes, and what is shared inside arguments may be endless when it is written out.
SIZE_MAX = 1024**3


class Digest(str):
    """A fingerprint already taken, by a layer that has its own way to tell two calls apart."""

    __slots__ = ()


def fingerprint(value: object) -> str:
    """The sha256 (hex) of the canonical form of any value that can be kept; `InvalidKey` for one that cannot."""
    if type(value) is Digest:
        return value
    plain = plain_form(value, SIZE_MAX)
    if plain is not None and b'"$"' not in plain:  # the mark of a tagged value, which must not be taken for one
        return hashlib.sha256(plain).hexdigest()
    try:
        return hashlib.sha256(canonical(to_json(value, SIZE_MAX, canonical=True))).hexdigest()
    except Unkeepable as error:
        raise InvalidKey(f"cannot fingerprint the arguments: {error}; leave them out with ignore=") from error
