"""Fingerprints: hashes that show whether two calls under one key are the same call."""

from __future__ import annotations

import hashlib

from onceward.core.canonical import canonical, plain_form
from onceward.core.scalar import Unkeepable
from onceward.core.value import to_json
from onceward.errors import InvalidKey

# A larger value would block the caller for minutes. Arguments that share parts can be far larger when written out.
SIZE_MAX = 1024**3


class Digest(str):
    """A fingerprint that a layer has computed in its own way, used as it is."""

    __slots__ = ()


def fingerprint(value: object) -> str:
    """Return the SHA-256 (hex) of a value's canonical form; raise `InvalidKey` if the value cannot be stored."""
    if type(value) is Digest:
        return value
    plain = plain_form(value, SIZE_MAX)
    if plain is not None and b'"$"' not in plain:  # otherwise it may look like a tagged value
        return hashlib.sha256(plain).hexdigest()
    try:
        return hashlib.sha256(canonical(to_json(value, SIZE_MAX, canonical=True))).hexdigest()
    except Unkeepable as error:
        raise InvalidKey(f"cannot fingerprint the arguments: {error}; leave them out with ignore=") from error
