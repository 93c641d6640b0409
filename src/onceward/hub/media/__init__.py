"""Media types: detect what a file is, check the declared type, and decide what a browser may show inline.

`sniff` detects the type of a file, `settle` compares it with the declared type, and `settle_link` does the same for
a link. `is_allowed` checks the allow-list, and `is_inline_safe` the list of types that are shown inline.

Not here: storing the bytes (`hub/blobs/`), and unpacking them (`hub/archives/`).
Start with `detect.py`; `declared.py` decides which type is stored.
"""

from __future__ import annotations

from onceward.hub.media.declared import MediaType, Source, is_allowed, is_inline_safe, settle, settle_link
from onceward.hub.media.detect import Found, Sniffed, sniff

__all__ = [
    "Found",
    "MediaType",
    "Sniffed",
    "Source",
    "declared",
    "hierarchy",
    "is_allowed",
    "is_inline_safe",
    "settle",
    "settle_link",
    "sniff",
]
