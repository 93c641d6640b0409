"""Labels of an attachment: short words without blanks, the same however they were typed."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from onceward.core.text import refused

LENGTH_MAX = 64
COUNT_MAX = 100


def normal_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Trimmed, in NFC, lower case, each once, sorted; `InvalidInput` for what cannot be a label."""
    found = {_normal(label) for label in labels}
    if len(found) > COUNT_MAX:
        raise refused("labels", f"are more than {COUNT_MAX}")
    return tuple(sorted(found))


def _normal(label: str) -> str:
    # Lower case may leave the normal form, so that comes last.
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", label).strip().lower())
    if not text:
        raise refused("labels", "must not be blank")
    if len(text) > LENGTH_MAX:
        raise refused("labels", f"are at most {LENGTH_MAX} characters long each")
    # Z: blanks of every kind. C: control characters, halves of characters, and what nobody can see.
    if any(unicodedata.category(character)[0] in "ZC" for character in text):
        raise refused("labels", "must not contain blanks or control characters")
    return text
