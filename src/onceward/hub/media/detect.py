"""Detection of a file's media type from its bytes and, between kinds of text, from its name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from onceward.hub.media import containers, documents, extensions, libmagic, markup, signatures
from onceward.hub.media.hierarchy import PLAIN, UNKNOWN, descends
from onceward.hub.media.sample import Sample, take
from onceward.hub.media.text import GUESSES, is_markdown, opening, text_of


class Found(StrEnum):
    """Method by which a type was detected."""

    EMPTY = "empty"
    SIGNATURE = "signature"
    LIBMAGIC = "libmagic"
    TEXT = "text"
    NAME = "name"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Sniffed:
    """The detected media type of a file.

    `media_type` is the best guess from bytes and name, `content_type` the best guess from the bytes alone. `proven` is
    the certain part of it: that a text is a table or Markdown is a guess, but that it is text is certain. Declared
    types are checked against `proven`.
    """

    media_type: str
    content_type: str
    proven: str
    found: Found


def sniff(path: Path, filename: str | None = None) -> Sniffed:
    """Detect the media type of a complete file. Reads a bounded part of it, whatever its size."""
    with path.open("rb") as file:
        return of_sample(take(file), filename)


def of_sample(sample: Sample, filename: str | None = None, *, with_libmagic: bool = True) -> Sniffed:
    """Detect the media type of a sample. Tests switch libmagic off to check the built-in table alone."""
    if sample.size == 0:
        return named(Sniffed(UNKNOWN, UNKNOWN, UNKNOWN, Found.EMPTY), filename)
    text = text_of(sample)
    if text is None:
        return _binary(sample, with_libmagic=with_libmagic)
    return named(_text(sample, text), filename)


def _binary(sample: Sample, *, with_libmagic: bool) -> Sniffed:
    known = (
        containers.zip_kind(sample)
        or containers.kind(sample)
        or signatures.match(sample.head)
        or signatures.verified(sample)
    )
    known = known or _mixed(sample.head)
    if known is not None:
        return Sniffed(known, known, known, Found.SIGNATURE)
    found = libmagic.detect(sample.head) if with_libmagic else None
    if found is not None:
        return Sniffed(found, found, found, Found.LIBMAGIC)
    return Sniffed(UNKNOWN, UNKNOWN, UNKNOWN, Found.NOTHING)


def _mixed(head: bytes) -> str | None:
    """Detect data after a first line of text, such as images of the PNM family and scripts that contain an archive.

    Active content with a zero byte stays active: browsers ignore the byte.
    """
    beginning = head[:4096].decode("latin-1")
    found = opening(beginning)
    if found is not None and found != "message/rfc822":
        return found
    page = markup.detect(beginning)
    return page.media_type if page is not None and not page.is_piece and page.media_type != "application/xml" else None


def _text(sample: Sample, text: str) -> Sniffed:
    known = signatures.match(text[:512].encode("latin-1", "replace"))
    if known in signatures.OF_TEXT:
        return Sniffed(known, known, known, Found.SIGNATURE)
    found = opening(text)
    if found is not None:
        return _guess(found) if found in GUESSES else Sniffed(found, found, found, Found.TEXT)
    is_plain = not sample.head.startswith((b"\xff\xfe", b"\xfe\xff")) and b"\x00" not in sample.head
    found = documents.json_type(sample, text, is_plain)
    if found is not None:
        return _guess(found) if found == documents.LINES else Sniffed(found, found, documents.JSON, Found.TEXT)
    page = markup.detect(text)
    if page is not None:
        return _page(page, text)
    found = documents.table_type(text, is_whole=sample.is_whole)
    if is_markdown(text):
        found = "text/markdown"
    return _guess(found or PLAIN)


def _page(page: markup.Markup, text: str) -> Sniffed:
    if page.is_piece and is_markdown(text):
        return _guess("text/markdown")
    if page.is_piece:
        return _guess(page.media_type)
    proven = "application/xml" if page.media_type.endswith("xml") else page.media_type
    return Sniffed(page.media_type, page.media_type, proven, Found.TEXT)


def _guess(media_type: str) -> Sniffed:
    return Sniffed(media_type, media_type, PLAIN, Found.TEXT)


def named(sniffed: Sniffed, filename: str | None) -> Sniffed:
    """Refine the result by the file name, which decides between kinds of text but never overrides `proven`."""
    by_name = extensions.text_type(filename)
    if sniffed.found not in {Found.TEXT, Found.EMPTY} or by_name is None or by_name == PLAIN:
        return sniffed
    if not descends(by_name, sniffed.proven) or descends(sniffed.media_type, by_name):
        return sniffed
    return Sniffed(by_name, sniffed.content_type, sniffed.proven, Found.NAME)
