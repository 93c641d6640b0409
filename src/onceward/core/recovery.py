"""Recovery points as stored text: JSON of at most 16 KiB."""

from __future__ import annotations

import json

from onceward.errors import InvalidOption

# Enough for the ids and cursors that a provider returns. The value is part of every read of the entry.
RECOVERY_BYTES_MAX = 16 * 1024


def encode_recovery(value: object) -> str:
    """Return the text that is stored for a recovery point.

    Args:
        value: A value that JSON can represent without loss: None, a bool, a number, a text, a list, or a dict with
            texts as keys.

    Returns:
        The value as JSON.

    Raises:
        InvalidOption: If the value is not JSON, or its JSON is longer than 16 KiB.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
        is_json = json.loads(text) == value
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidOption(f"a recovery point must be JSON: {error}") from error
    if not is_json:
        raise InvalidOption(
            "a recovery point must be JSON that reads back as the same value; use lists instead of tuples, and texts"
            " as the keys of dicts"
        )
    if size > RECOVERY_BYTES_MAX:
        raise InvalidOption(
            f"a recovery point may have at most {RECOVERY_BYTES_MAX} bytes of JSON, got {size}; record an id or a"
            " cursor instead of the data"
        )
    return text
