"""Short ids for people: a prefix and eight characters, drawn at random and drawn again when they are taken."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from onceward.errors import StoreUnavailable

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_LENGTH = 8
_POSSIBLE = len(_ALPHABET) ** _LENGTH
_PAIRS = [one + other for one in _ALPHABET for other in _ALPHABET]
_PLACES = [len(_PAIRS) ** number for number in range(_LENGTH // 2)]
# 36^8 is 2.8 million million: even with a hundred million rows ten in a row are taken once in 10^44.
_DRAWS = 10


def short_ids(prefix: str) -> Iterator[str]:
    """Ids such as `at-4fz0c81k`, to be tried one after the other until one is free."""
    for _ in range(_DRAWS):
        drawn = secrets.randbelow(_POSSIBLE)
        pairs = (_PAIRS[drawn // place % len(_PAIRS)] for place in _PLACES)
        yield f"{prefix}-{''.join(pairs)}"
    raise StoreUnavailable("no free id was found; try again")
