"""Stored media type: chosen from the declared type, the detected type and the file name. Also: which types are inline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from onceward import errors
from onceward.hub.media import extensions, signatures
from onceward.hub.media.detect import Found, Sniffed, named
from onceward.hub.media.hierarchy import PLAIN, UNKNOWN, canonical, descends, is_active, is_text, normal


class Source(StrEnum):
    """Origin of a stored media type, as recorded in `media_type_source`."""

    SNIFFED = "sniffed"
    DECLARED = "declared"
    INFERRED = "inferred"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MediaType:
    """The media type to store, its origin and, unless it was sniffed itself, the type sniffed from the bytes alone."""

    media_type: str | None
    source: Source
    sniffed_media_type: str | None = None


# Browsers show these types and run nothing in them. HTML, SVG and XML are missing because they can contain scripts. PDF
# is missing because it can, too, and because PDF viewers do not open inside the sandbox that content is served in.
INLINE = frozenset({
    "image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp", "image/vnd.microsoft.icon",
    "audio/mpeg", "audio/mp4", "audio/ogg", "audio/flac", "audio/wav", "audio/aac",
    "video/mp4", "video/webm", "video/ogg",
    "text/plain", "text/markdown", "text/csv", "text/tab-separated-values", "application/json", "application/x-ndjson",
})  # fmt: skip

# Types that detection never misses: if nothing was detected, the file has none of these types. They are all types with
# a signature, except those whose files may legitimately have other data before it, and all kinds of ZIP, OLE and ELF.
_RECOGNISED = {media_type for _, _, media_type in signatures.SIGNATURES} - {
    "audio/mpeg", "video/mpeg", "application/x-tar", "image/jxl", "application/pdf", "application/postscript",
    "application/dicom",
} | {
    "application/vnd.microsoft.portable-executable", "application/x-bzip2", "application/java-vm", "image/bmp",
    "image/vnd.microsoft.icon", "image/webp", "image/avif", "image/heic", "audio/wav", "audio/aiff", "audio/ogg",
    "audio/mp4", "video/mp4", "video/webm", "video/matroska", "video/ogg", "video/x-msvideo", "font/ttf",
}  # fmt: skip
_RECOGNISED_FAMILIES = ("application/zip", "application/x-ole-storage", "application/x-elf")


def _is_recognised(media_type: str) -> bool:
    return canonical(media_type) in _RECOGNISED or any(descends(media_type, one) for one in _RECOGNISED_FAMILIES)


def _declared(text: str) -> str:
    media_type = normal(text)
    if media_type is None:
        raise errors.InvalidInput(
            "media_type is not a media type such as image/png", (("media_type", "must be type/subtype"),)
        )
    return media_type


def accepts(sniffed: Sniffed, declared: str) -> bool:
    """Return whether the declared type is the detected type, another spelling of it, or a kind of it.

    Passive text may always be declared as `text/plain`, and never as a type that a browser would run. If nothing was
    detected, a type that detection never misses is refused.
    """
    if _hides(sniffed, declared) or _activates(sniffed, declared):
        return False
    if canonical(declared) == canonical(sniffed.media_type):
        return True
    if sniffed.proven == UNKNOWN:
        claims_text = is_text(declared) and sniffed.found not in {Found.EMPTY, Found.NAME}
        return not claims_text and not _is_recognised(declared)
    if canonical(declared) == PLAIN and is_text(sniffed.media_type):
        return True
    return descends(declared, sniffed.proven)


def _hides(sniffed: Sniffed, declared: str) -> bool:
    """Return whether active content is declared as passive."""
    return is_active(sniffed.media_type) and not is_active(declared)


def _activates(sniffed: Sniffed, declared: str) -> bool:
    """Return whether passive text is declared as active. Only the bytes count: a file name is a declaration, too."""
    return is_active(declared) and not is_active(sniffed.content_type) and is_text(sniffed.content_type)


def settle(sniffed: Sniffed, declared: str | None, filename: str | None, *, reject_mismatch: bool) -> MediaType:
    """Return the media type of an upload, or raise `InvalidInput` if the declared type is not accepted.

    The file name may decide between kinds of text; it is applied here if it was not known to `sniff`.
    Without `reject_mismatch`, a declared type that does not match is ignored, and the sniffed type is stored. Active
    content declared as passive, and passive text declared as active, are always refused.
    """
    sniffed = named(sniffed, filename)
    if sniffed.media_type == sniffed.content_type:
        found = MediaType(sniffed.media_type, Source.SNIFFED)
    else:
        found = MediaType(sniffed.media_type, Source.INFERRED, sniffed.content_type)
    if declared is None or not declared.strip():
        return found
    declared_type = _declared(declared)
    if accepts(sniffed, declared_type):
        return MediaType(declared_type, Source.DECLARED, sniffed.content_type)
    if _activates(sniffed, declared_type):
        raise _mismatch(sniffed.content_type, f"but was declared as {declared_type}, which a browser would run")
    if _hides(sniffed, declared_type):
        raise _mismatch(sniffed.media_type, f"which a browser would run, but was declared as {declared_type}")
    if reject_mismatch:
        raise _mismatch(sniffed.media_type, f"but was declared as {declared_type}")
    return found


def _mismatch(content: str, why: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"the content is {content}, {why}; omit media_type or declare the actual type",
        (("media_type", f"does not match the content, which is {content}"),),
    )


def settle_link(declared: str | None, address: str) -> MediaType:
    """Return the media type of a link, which is not fetched: the declared type, else by its extension, else unknown."""
    if declared is not None and declared.strip():
        return MediaType(_declared(declared), Source.DECLARED)
    named = extensions.link_type(address)
    return MediaType(None, Source.UNKNOWN) if named is None else MediaType(named, Source.INFERRED)


def is_allowed(media_type: str, allowed: Sequence[str]) -> bool:
    """Return whether the type is on the list, in any spelling. `image/*` allows all images, an empty list all types."""
    if not allowed:
        return True
    own = canonical(media_type)
    for entry in allowed:
        wanted = entry.partition(";")[0].strip().lower()
        if wanted in {"*", "*/*"} or canonical(wanted) == own:
            return True
        if wanted.endswith("/*") and own.startswith(wanted[:-1]):
            return True
    return False


def is_inline_safe(sniffed_media_type: str | None, media_type: str | None = None) -> bool:
    """Return whether a browser may show it inline: the sniffed type and, if given, the served type must be passive."""
    if sniffed_media_type is None or canonical(sniffed_media_type) not in INLINE:
        return False
    return media_type is None or canonical(media_type) in INLINE
