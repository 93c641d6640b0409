"""Short ids for people: a prefix and eight random characters. If an id is taken, the caller tries the next one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from onceward.errors import StoreUnavailable

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_LENGTH = 8
_POSSIBLE = len(_ALPHABET) ** _LENGTH
_PAIRS = [one + other for one in _ALPHABET for other in _ALPHABET]
_PLACES = [len(_PAIRS) ** number for number in range(_LENGTH // 2)]
# 36^8 is 2.8 * 10^12. Even with a hundred million rows, the chance that ten ids in a row are taken is 1 in 10^44.
_DRAWS = 10


def short_ids(prefix: str) -> Iterator[str]:
    """Yield ids such as `at-4fz0c81k`, to try one after the other until one is free."""
    for _ in range(_DRAWS):
        drawn = secrets.randbelow(_POSSIBLE)
        pairs = (_PAIRS[drawn // place % len(_PAIRS)] for place in _PLACES)
        yield f"{prefix}-{''.join(pairs)}"
    raise StoreUnavailable(f"no free id found in {_DRAWS} attempts; try again")
