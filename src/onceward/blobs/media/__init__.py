"""Media types: what a file is, what it may be called, and what a browser may show of it.

`sniff` looks at the finished file, `settle` holds what was declared against what was found, `settle_link` answers for
what is only linked to, `is_allowed` is the allow-list and `is_inline_safe` the list of what is shown in place.
"""

from __future__ import annotations

from onceward.blobs.media.settle import MediaType, Source, is_allowed, is_inline_safe, settle, settle_link
from onceward.blobs.media.sniff import Found, Sniffed, sniff

__all__ = [
    "Found",
    "MediaType",
    "Sniffed",
    "Source",
    "is_allowed",
    "is_inline_safe",
    "settle",
    "settle_link",
    "sniff",
]
