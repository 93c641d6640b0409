"""Limits of an archive, and the tally that checks them while the archive is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onceward.errors import InvalidInput

_DRIVE = re.compile(r"[A-Za-z]:")

# An archive that unpacks to less is harmless, so its ratio is not checked: equal bytes compress by a factor of 1,000.
_RATIO_FREE_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits of an archive, which is refused if it exceeds one. Nested archives count together with the outer one."""

    max_entries: int = 10_000
    max_total_unpacked_bytes: int = 1024**3
    max_path_length: int = 1_024
    # Text and tables compress by a factor of 3 to 50, repetitive logs by up to 200. A factor of 1,000 takes one repeated
    # byte, as in a zip bomb. Checked over the whole archive, and only if it unpacks to more than 10 MiB.
    max_ratio: int = 200
    # An archive in an archive is common, and a third level is rare. An archive that contains itself never ends.
    max_depth: int = 4


class Malformed(Exception):
    """Raised inside this package for bytes that are not a complete archive; `depth` is the level of the bad archive."""

    depth: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """Entry of an archive. `size` is its unpacked size; `content` is None if its bytes cannot be read."""

    name: str
    size: int
    content: Iterator[bytes] | None
    kind: Literal["file", "folder", "link", "device"] = "file"
    encrypted: bool = False
    # A second name, which some unpackers prefer.
    other_name: str = ""


def refusal(limit: str, message: str) -> InvalidInput:
    return InvalidInput(message, ((f"archive.{limit}", message),))


@dataclass(slots=True)
class ArchiveTally:
    """Counts of one inspection, checked against the limits. `packed_bytes` is the size of the uploaded file."""

    limits: ArchiveLimits
    packed_bytes: int
    entries: int = 0
    unpacked_bytes: int = 0
    links: int = 0
    devices: int = 0
    encrypted: int = 0
    unverified: int = 0
    nested: int = 0
    nested_unread: int = 0
    nested_unpacked_bytes: int = 0
    _all_entries: int = 0
    _written: int = 0

    def member(self, member: Member, depth: int) -> None:
        """Count an entry. Only entries of the uploaded archive itself are summarized and need safe names."""
        self._all_entries += 1
        self.check_entries(self._all_entries)
        if depth:
            return
        self.entries += 1
        self.links += member.kind == "link"
        self.devices += member.kind == "device"
        self.encrypted += member.encrypted
        self.unverified += member.content is None and member.kind == "file"
        self._check_path(member.name)
        self._check_path(member.other_name)

    def check_entries(self, count: int) -> None:
        """Refuse an archive that has this many entries, if that is more than the limit."""
        if count > self.limits.max_entries:
            raise refusal("max_entries", f"the archive has more than {self.limits.max_entries} entries")

    def check_unpacked(self, count: int) -> None:
        """Refuse an archive that would unpack to more than the limits after `count` more bytes."""
        total = self._written + count
        if total > (limit := self.limits.max_total_unpacked_bytes):
            raise refusal("max_total_unpacked_bytes", f"the archive unpacks to more than {limit} bytes")
        if total > max(_RATIO_FREE_BYTES, self.limits.max_ratio * self.packed_bytes):
            raise refusal(
                "max_ratio", f"the archive unpacks to more than {self.limits.max_ratio} times its size, like a zip bomb"
            )

    def unpacked(self, count: int) -> None:
        self.check_unpacked(count)
        self._written += count

    def counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.unpacked(len(chunk))
            yield chunk

    def size(self, count: int, depth: int) -> None:
        """Add an unpacked size to the summary; limits are not checked here."""
        if depth:
            self.nested_unpacked_bytes += count
        else:
            self.unpacked_bytes += count

    def _check_path(self, name: str) -> None:
        if len(name) > self.limits.max_path_length:
            limit = self.limits.max_path_length
            raise refusal("max_path_length", f"a path in the archive has more than {limit} characters")
        if why := _unsafe(name):
            raise refusal("safe_paths", f"a path in the archive {why}: {name[:100]!r}")


def _unsafe(name: str) -> str | None:
    if name.startswith("/"):
        return "is absolute"
    if "\\" in name:
        return "contains a backslash, which is a separator on some systems"
    if _DRIVE.match(name):
        return "starts with a drive letter"
    if "\0" in name:
        return "contains NUL"
    if ".." in name.split("/"):
        return "contains .. and leaves its folder"
    return None
