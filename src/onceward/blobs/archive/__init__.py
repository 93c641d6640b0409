"""Look into an uploaded archive without unpacking it: what is in it, and whether unpacking it would do harm.

Zip, tar, gz and tar.gz are known, by their bytes rather than by what somebody calls them; so a docx or a jar is looked
into as the zip it is. Everything is decompressed in memory, piece by piece, as far as the limits allow, and thrown
away: what a header declares is compared with what really comes.

An archive that cannot be read is refused as one over a limit is: nobody could say that it is within them. An archive
inside an archive is looked into as well, where it can be, and what it unpacks to counts too; one that cannot be read
there is only counted, since unpacking the outer one writes it as the file it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onceward.blobs.archive.look import look
from onceward.blobs.archive.tally import ArchiveLimits, Malformed, Tally, refusal
from onceward.errors import StoreUnavailable

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
    """What was seen. `nested` counts archives inside this one; `nested_unread` those of them that were not looked into.

    `unverified` entries are encrypted or compressed in a way that is not known here: their size is what they declare.
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
        """The three that every archive has, and of the others those that are not zero."""
        always: dict[str, str | int] = {
            "format": self.format,
            "entries": self.entries,
            "total_unpacked_bytes": self.total_unpacked_bytes,
        }
        others = ("links", "devices", "encrypted", "unverified", "nested", "nested_unread", "nested_unpacked_bytes")
        return always | {name: getattr(self, name) for name in others if getattr(self, name)}


def inspect(path: Path, media_type: str, limits: ArchiveLimits) -> ArchiveSummary | None:
    """None: not an archive that is looked into. `InvalidInput` says which limit it is over, or why it is unreadable."""
    try:
        tally = Tally(limits, path.stat().st_size)
        with path.open("rb") as file:
            seen = look(file, _BY_MEDIA_TYPE.get(media_type), tally)
    except Malformed as error:
        raise refusal("readable", f"this archive cannot be read: {error}") from None
    except OSError as error:
        raise StoreUnavailable(f"the temporary file cannot be read: {error.strerror}") from error
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
