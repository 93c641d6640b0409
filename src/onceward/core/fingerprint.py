"""A fingerprint says whether two calls under one key are the same call."""

from __future__ import annotations

import hashlib

from onceward.core.canonical import canonical
from onceward.core.scalar import Unkeepable
from onceward.core.value import to_json
from onceward.errors import InvalidKey


def fingerprint(value: object) -> str:
    """The sha256 (hex) of the canonical form of any value that can be kept; `InvalidKey` for one that cannot."""
    try:
        return hashlib.sha256(canonical(to_json(value, canonical=True))).hexdigest()
    except Unkeepable as error:
        raise InvalidKey(f"cannot fingerprint the arguments: {error}; leave them out with ignore=") from error
