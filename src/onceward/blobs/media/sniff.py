"""What a finished file is, told from its bytes; and, among kinds of text, from its name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from onceward.blobs.media import (
    checked,
    containers,
    documents,
    letters,
    libmagic,
    markup,
    names,
    prose,
    signatures,
    zip_kinds,
)
from onceward.blobs.media.lattice import PLAIN, UNKNOWN, descends
from onceward.blobs.media.sample import Sample, take


class Found(StrEnum):
    """How a type was found."""

    EMPTY = "empty"
    SIGNATURE = "signature"
    LIBMAGIC = "libmagic"
    TEXT = "text"
    NAME = "name"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Sniffed:
    """What a file was found to be.

    `media_type` is the best answer, with the help of the name where that may help. `content_type` is the best answer
    of the bytes alone. `proven` is the part of it that is certain: that a text is a table or Markdown is a guess, that
    it is text is not. What is declared is held against what is proven.
    """

    media_type: str
    content_type: str
    proven: str
    found: Found


def sniff(path: Path, filename: str | None = None) -> Sniffed:
    """What the finished file is. Reads a bounded part of it, whatever its size."""
    with path.open("rb") as file:
        return of_sample(take(file), filename)


def of_sample(sample: Sample, filename: str | None = None, *, with_libmagic: bool = True) -> Sniffed:
    """What the sample is; without libmagic for those who want to know how far the built-in table goes."""
    if sample.size == 0:
        return named(Sniffed(UNKNOWN, UNKNOWN, UNKNOWN, Found.EMPTY), filename)
    text = letters.text_of(sample)
    if text is None:
        return _binary(sample, with_libmagic=with_libmagic)
    return named(_text(sample, text), filename)


def _binary(sample: Sample, *, with_libmagic: bool) -> Sniffed:
    known = zip_kinds.kind(sample) or containers.kind(sample) or signatures.match(sample.head) or checked.match(sample)
    known = known or _mixed(sample.head)
    if known is not None:
        return Sniffed(known, known, known, Found.SIGNATURE)
    said = libmagic.look(sample.head) if with_libmagic else None
    if said is not None:
        return Sniffed(said, said, said, Found.LIBMAGIC)
    return Sniffed(UNKNOWN, UNKNOWN, UNKNOWN, Found.NOTHING)


def _mixed(head: bytes) -> str | None:
    """Data behind a first line of text: pictures of the PNM family, scripts that carry an archive, and the like.

    Active content stays active with a zero byte in it: browsers do not mind one.
    """
    beginning = head[:4096].decode("latin-1")
    said = prose.opening(beginning)
    if said is not None and said != "message/rfc822":
        return said
    page = markup.look(beginning)
    return page.media_type if page is not None and not page.is_piece and page.media_type != "application/xml" else None


def _text(sample: Sample, text: str) -> Sniffed:
    known = signatures.match(text[:512].encode("latin-1", "replace"))
    if known in signatures.OF_TEXT:
        return Sniffed(known, known, known, Found.SIGNATURE)
    said = prose.opening(text)
    if said is not None:
        return _guess(said) if said in prose.GUESSES else Sniffed(said, said, said, Found.TEXT)
    is_plain = not sample.head.startswith((b"\xff\xfe", b"\xfe\xff")) and b"\x00" not in sample.head
    found = documents.json_type(sample, text, is_plain)
    if found is not None:
        return _guess(found) if found == documents.LINES else Sniffed(found, found, documents.JSON, Found.TEXT)
    page = markup.look(text)
    if page is not None:
        return _page(page, text)
    found = documents.table_type(text, is_whole=sample.is_whole)
    if prose.is_markdown(text):
        found = "text/markdown"
    return _guess(found or PLAIN)


def _page(page: markup.Markup, text: str) -> Sniffed:
    if page.is_piece and prose.is_markdown(text):
        return _guess("text/markdown")
    if page.is_piece:
        return _guess(page.media_type)
    proven = "application/xml" if page.media_type.endswith("xml") else page.media_type
    return Sniffed(page.media_type, page.media_type, proven, Found.TEXT)


def _guess(media_type: str) -> Sniffed:
    return Sniffed(media_type, media_type, PLAIN, Found.TEXT)


def named(sniffed: Sniffed, filename: str | None) -> Sniffed:
    """The same with the help of a name, which decides among kinds of text, never against what is proven."""
    ending = names.text_type(filename)
    if sniffed.found not in {Found.TEXT, Found.EMPTY} or ending is None or ending == PLAIN:
        return sniffed
    if not descends(ending, sniffed.proven) or descends(sniffed.media_type, ending):
        return sniffed
    return Sniffed(ending, sniffed.content_type, sniffed.proven, Found.NAME)
