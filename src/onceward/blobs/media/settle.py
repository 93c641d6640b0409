"""Which media type is kept: what was declared, what was found, what a name suggests. And what may be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from onceward import errors
from onceward.blobs.media import names, signatures
from onceward.blobs.media.lattice import PLAIN, UNKNOWN, canonical, descends, is_active, is_text, normal
from onceward.blobs.media.sniff import Found, Sniffed, named


class Source(StrEnum):
    """Where a kept media type comes from, as it is written in `media_type_source`."""

    SNIFFED = "sniffed"
    DECLARED = "declared"
    INFERRED = "inferred"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MediaType:
    """The type that is kept, and what the bytes alone say where that is another statement than the type itself."""

    media_type: str | None
    source: Source
    sniffed_media_type: str | None = None


# Browsers show these and run nothing in them. Not HTML, SVG or XML, which are programs; not PDF, which may carry one,
# and whose viewers do not open inside the sandbox that contents are served in.
INLINE = frozenset({
    "image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp", "image/vnd.microsoft.icon",
    "audio/mpeg", "audio/mp4", "audio/ogg", "audio/flac", "audio/wav", "audio/aac",
    "video/mp4", "video/webm", "video/ogg",
    "text/plain", "text/markdown", "text/csv", "text/tab-separated-values", "application/json", "application/x-ndjson",
})  # fmt: skip

# Types that are always recognised: where nothing was found, the file is none of them. All that have a signature, save
# those that are honestly found with something else in front of it, and whatever is packed as ZIP, OLE or ELF.
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
            "media_type is not a media type such as image/png.", (("media_type", "must be type/subtype"),)
        )
    return media_type


def accepts(sniffed: Sniffed, declared: str) -> bool:
    """Whether a file that was found to be this may be called that: the same, another spelling, or a kind of it.

    Passive text may always be called `text/plain`, and never something that a browser would run. And where nothing was
    found, what would have been found is a lie.
    """
    if _hides(sniffed, declared) or _activates(sniffed, declared):
        return False
    if canonical(declared) == canonical(sniffed.media_type):
        return True
    if sniffed.proven == UNKNOWN:
        is_no_text = is_text(declared) and sniffed.found not in {Found.EMPTY, Found.NAME}
        return not is_no_text and not _is_recognised(declared)
    if canonical(declared) == PLAIN and is_text(sniffed.media_type):
        return True
    return descends(declared, sniffed.proven)


def _hides(sniffed: Sniffed, declared: str) -> bool:
    """Active content that is declared as something passive."""
    return is_active(sniffed.media_type) and not is_active(declared)


def _activates(sniffed: Sniffed, declared: str) -> bool:
    """Passive text that is declared as active content. The bytes alone count: a file name is a declaration too."""
    return is_active(declared) and not is_active(sniffed.content_type) and is_text(sniffed.content_type)


def settle(sniffed: Sniffed, declared: str | None, filename: str | None, *, reject_mismatch: bool) -> MediaType:
    """The media type of an upload, or `InvalidInput` where the declared one is not accepted.

    The name may decide among kinds of text, here if it was not known when the file was sniffed.
    Without `reject_mismatch` a declaration that does not fit is passed over and the sniffed type is kept. Active
    content that is declared as something passive, and passive text that is declared as active, are refused in either
    case.
    """
    sniffed = named(sniffed, filename)
    if sniffed.media_type == sniffed.content_type:
        found = MediaType(sniffed.media_type, Source.SNIFFED)
    else:
        found = MediaType(sniffed.media_type, Source.INFERRED, sniffed.content_type)
    if declared is None or not declared.strip():
        return found
    said = _declared(declared)
    if accepts(sniffed, said):
        return MediaType(said, Source.DECLARED, sniffed.content_type)
    if _activates(sniffed, said):
        raise _mismatch(sniffed.content_type, f"it was declared as {said}, which would run in a browser")
    if _hides(sniffed, said):
        raise _mismatch(sniffed.media_type, f"which would run in a browser; it was declared as {said}")
    if reject_mismatch:
        raise _mismatch(sniffed.media_type, f"which is something else; it was declared as {said}")
    return found


def _mismatch(content: str, why: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"The content is {content}, {why}. Leave media_type out, or declare what it is.",
        (("media_type", f"does not fit the content, which is {content}"),),
    )


def settle_link(declared: str | None, address: str) -> MediaType:
    """The media type of a link: nothing is fetched, so it is what is declared, or what the name suggests, or unknown."""
    if declared is not None and declared.strip():
        return MediaType(_declared(declared), Source.DECLARED)
    named = names.link_type(address)
    return MediaType(None, Source.UNKNOWN) if named is None else MediaType(named, Source.INFERRED)


def is_allowed(media_type: str, allowed: Sequence[str]) -> bool:
    """Whether the type is on the list, in whatever spelling; `image/*` stands for all images, an empty list for all."""
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
    """Whether a browser may show it in place: what the bytes are *and*, if given, what it is served as are passive."""
    if sniffed_media_type is None or canonical(sniffed_media_type) not in INLINE:
        return False
    return media_type is None or canonical(media_type) in INLINE
