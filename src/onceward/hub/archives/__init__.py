"""Inspection of uploaded archives without unpacking them: their contents, and whether unpacking would do harm.

Not here: storing them (`hub/blobs/`), and their media type (`hub/media/`).
Start with `inspection.py`.

Zip, tar, gz and tar.gz are recognized by their bytes, not by their names, so a docx or a jar is inspected as a zip.
Everything is decompressed in memory, chunk by chunk, up to the limits, and discarded. The sizes that headers declare are
compared with the real ones.

An unreadable archive is refused like one over a limit, because it cannot be checked. A nested archive is inspected, too,
if possible, and its unpacked size counts. An unreadable nested archive is only counted: unpacking the outer archive
writes it as a plain file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onceward.errors import StoreUnavailable
from onceward.hub.archives.inspection import inspect_file
from onceward.hub.archives.limits import ArchiveLimits, ArchiveTally, Malformed, refusal

__all__ = ["ArchiveLimits", "ArchiveSummary", "inspect"]

_BY_MEDIA_TYPE = {
    "application/zip": "zip",
    "application/x-zip-compressed": "zip",
    "application/x-tar": "tar",
    "application/gzip": "gz",
    "application/x-gzip": "gz",
}


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """Contents of an archive. `nested` counts the archives inside it, `nested_unread` those that were not inspected.

    `unverified` entries are encrypted, or compressed with an unknown method. Their sizes are only declared.
    """

    format: str
    entries: int
    total_unpacked_bytes: int
    links: int = 0
    devices: int = 0
    encrypted: int = 0
    unverified: int = 0
    nested: int = 0
    nested_unread: int = 0
    nested_unpacked_bytes: int = 0

    def as_meta(self) -> dict[str, str | int]:
        """Return the three fields that every archive has, and the other fields that are not zero."""
        always: dict[str, str | int] = {
            "format": self.format,
            "entries": self.entries,
            "total_unpacked_bytes": self.total_unpacked_bytes,
        }
        others = ("links", "devices", "encrypted", "unverified", "nested", "nested_unread", "nested_unpacked_bytes")
        return always | {name: getattr(self, name) for name in others if getattr(self, name)}


def inspect(path: Path, media_type: str, limits: ArchiveLimits) -> ArchiveSummary | None:
    """Inspect a file, and return None if it is not a known kind of archive.

    Raises `InvalidInput` if the archive is over a limit or cannot be read.
    """
    try:
        tally = ArchiveTally(limits, path.stat().st_size)
        with path.open("rb") as file:
            seen = inspect_file(file, _BY_MEDIA_TYPE.get(media_type), tally)
    except Malformed as error:
        raise refusal("readable", f"the archive cannot be read: {error}") from None
    except OSError as error:
        raise StoreUnavailable(f"the temp file of the upload cannot be read: {error.strerror}") from error
    if seen is None:
        return None
    return ArchiveSummary(
        seen,
        tally.entries,
        tally.unpacked_bytes,
        tally.links,
        tally.devices,
        tally.encrypted,
        tally.unverified,
        tally.nested,
        tally.nested_unread,
        tally.nested_unpacked_bytes,
    )
