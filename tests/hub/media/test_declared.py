"""Declared and detected types; links; the allow-list; inline display."""

from __future__ import annotations

import io

import pytest
from tests.hub.media import corpus_binaries, corpus_containers

from onceward import errors
from onceward.hub.media import MediaType, Sniffed, Source, is_allowed, is_inline_safe, settle, settle_link
from onceward.hub.media.detect import of_sample
from onceward.hub.media.sample import take

DOCX = f"{corpus_containers.OOXML}.wordprocessingml.document"
HTML = b"<!doctype html><title>T</title><script>alert(1)</script>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"/>'


def sniffed(data: bytes, filename: str | None = None) -> Sniffed:
    return of_sample(take(io.BytesIO(data)), filename)


@pytest.mark.parametrize(
    ("data", "declared"),
    [
        (b'{"a": 1}', "application/json"),
        (b'{"a": 1}', "text/json"),
        (b'{"a": 1}', "text/plain"),
        (b'{"a": 1}', "application/ld+json"),
        (b'{"a": 1}', "application/yaml"),
        (b'{"a": 1}\n', "application/x-ndjson"),
        (b'{"a": 1, }', "application/json"),
        (b"# Title\n\nwords\n", "text/markdown"),
        (b"words\n", "text/markdown; charset=utf-8"),
        (b"int main() { return 0; }\n", "text/markdown"),
        (b"a,b\n1,2\n3,4\n", "text/csv"),
        (b"a,b\n1,2\n3,4\n", "text/plain"),
        (b"a;b\n", "Text/CSV"),
        (b"<p>Hello</p>\n", "text/html"),
        (SVG, "image/svg+xml"),
        (HTML, "text/html"),
        (b"<note><a>1</a></note>", "text/xml"),
        (b"<note><a>1</a></note>", "text/plain"),
        (corpus_containers.zipped({"a": b"a"}), "application/x-zip-compressed"),
        (corpus_containers.zipped({"a": b"a"}), DOCX),
        (corpus_containers.zipped({"a": b"a"}), "application/epub+zip"),
        (corpus_containers.zipped(corpus_containers.office("word", "document.xml")), DOCX),
        (corpus_containers.ole("WordDocument"), "application/msword"),
        (corpus_binaries.png(), "image/png"),
        (corpus_binaries.png(), "image/apng"),
        (corpus_binaries.sound(), "audio/x-wav"),
        (corpus_binaries.boxes(b"isom"), "audio/mp4"),
        (corpus_binaries.noise(100), "application/x-my-own"),
        (b"", "text/markdown"),
        (b"", "text/html"),
        (b"", "application/x-my-own"),
        (b'"use strict";\nalert(1)\n', "application/javascript"),
    ],
)
def test_the_same_type_another_spelling_and_a_subtype_are_accepted(data: bytes, declared: str) -> None:
    found = settle(sniffed(data), declared, None, reject_mismatch=True)

    assert found.source == Source.DECLARED
    assert found.media_type == declared.partition(";")[0].lower()
    assert found.sniffed_media_type == sniffed(data).content_type


@pytest.mark.parametrize(
    ("data", "declared"),
    [
        (corpus_binaries.png(), "image/jpeg"),
        (corpus_binaries.png(), "text/plain"),
        (corpus_binaries.png(), "text/html"),
        (b"words\n", "image/png"),
        (b"words\n", "application/pdf"),
        (b'{"a": 1}', "text/csv"),
        (corpus_containers.zipped({"a": b"a"}), "application/pdf"),
        (
            corpus_containers.zipped(corpus_containers.office("word", "document.xml")),
            f"{corpus_containers.OOXML}.spreadsheetml.sheet",
        ),
        (corpus_containers.zipped(corpus_containers.office("word", "document.xml")), "application/zip"),
        (b"%PDF-1.4\n", "text/plain"),
        (corpus_binaries.noise(100), "image/png"),
        (corpus_binaries.noise(100), "text/plain"),
        (corpus_binaries.noise(100), DOCX),
        (b"", "image/png"),
        (corpus_binaries.gif(), "text/javascript"),
    ],
)
def test_a_mismatching_type_is_refused_or_without_the_check_replaced_by_the_sniffed_one(
    data: bytes, declared: str
) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        settle(sniffed(data), declared, None, reject_mismatch=True)

    assert caught.value.fields[0][0] == "media_type"
    kept = settle(sniffed(data), declared, None, reject_mismatch=False)
    assert kept == MediaType(sniffed(data).content_type, Source.SNIFFED)


@pytest.mark.parametrize("reject_mismatch", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("declared", ["text/plain", "text/markdown", "image/png", "application/xml", "text/csv"])
@pytest.mark.parametrize("data", [HTML, SVG, b'"use strict";\nalert(1)\n'], ids=["html", "svg", "js"])
def test_active_content_declared_as_passive_is_always_refused(
    data: bytes, declared: str, reject_mismatch: bool
) -> None:
    with pytest.raises(errors.InvalidInput, match="which a browser would run"):
        settle(sniffed(data), declared, None, reject_mismatch=reject_mismatch)


@pytest.mark.parametrize("reject_mismatch", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("filename", [None, "a.svg", "a.html", "a.js"])
@pytest.mark.parametrize("declared", ["text/html", "Image/SVG+XML; charset=utf-8", "application/javascript"])
@pytest.mark.parametrize(
    "data",
    [b"words\n", b"let a = 1\n", b'{"a": 1}', b"a,b\n1,2\n3,4\n", b"# T\n\n* a\n", b"<note><a>1</a></note>"],
    ids=["words", "script", "json", "table", "markdown", "xml"],
)
def test_passive_text_declared_as_active_is_always_refused(
    data: bytes, declared: str, filename: str | None, reject_mismatch: bool
) -> None:
    with pytest.raises(errors.InvalidInput, match="omit media_type") as caught:
        settle(sniffed(data, filename), declared, filename, reject_mismatch=reject_mismatch)

    assert caught.value.fields[0][0] == "media_type"


def test_a_script_recognised_only_by_its_name_is_active_too() -> None:
    with pytest.raises(errors.InvalidInput):
        settle(sniffed(b"let a = 1\n"), "text/plain", "app.js", reject_mismatch=True)


@pytest.mark.parametrize("declared", ["", "  ", None])
def test_without_a_declaration_the_sniffed_type_is_kept(declared: str | None) -> None:
    assert settle(sniffed(corpus_binaries.png()), declared, "a.txt", reject_mismatch=True) == MediaType(
        "image/png", Source.SNIFFED
    )


def test_a_name_decides_only_among_text_types() -> None:
    markdown = settle(sniffed(b"words\n"), None, "notes.md", reject_mismatch=True)
    picture = settle(sniffed(corpus_binaries.png()), None, "notes.md", reject_mismatch=True)
    text = settle(sniffed(b"words\n"), None, "words.png", reject_mismatch=True)
    page = settle(sniffed(HTML), None, "notes.md", reject_mismatch=True)

    assert markdown == MediaType("text/markdown", Source.INFERRED, "text/plain")
    assert picture == MediaType("image/png", Source.SNIFFED)
    assert text == MediaType("text/plain", Source.SNIFFED)
    assert page == MediaType("text/html", Source.SNIFFED)


@pytest.mark.parametrize("declared", ["image", "image/", "/png", "image/*", "a b/c", "text/plain\r\nX: y", "é/a"])
def test_an_invalid_media_type_is_refused(declared: str) -> None:
    with pytest.raises(errors.InvalidInput):
        settle(sniffed(b"words\n"), declared, None, reject_mismatch=False)


@pytest.mark.parametrize(
    ("declared", "address", "expected"),
    [
        ("Image/PNG; q=1", "https://example.com/a.pdf", MediaType("image/png", Source.DECLARED)),
        (None, "https://example.com/a/b.PDF?x=.png#f", MediaType("application/pdf", Source.INFERRED)),
        (None, "https://example.com/a%2Epng", MediaType("image/png", Source.INFERRED)),
        (None, "docs/guide.md", MediaType("text/markdown", Source.INFERRED)),
        ("", "docs/table.docx", MediaType(DOCX, Source.INFERRED)),
        (None, "https://example.md", MediaType(None, Source.UNKNOWN)),
        (None, "https://example.com/", MediaType(None, Source.UNKNOWN)),
        (None, "docs/.md", MediaType(None, Source.UNKNOWN)),
        (None, "https://[broken/a.md", MediaType(None, Source.UNKNOWN)),
    ],
)
def test_a_link_has_its_declared_type_or_the_type_of_its_name(
    declared: str | None, address: str, expected: MediaType
) -> None:
    assert settle_link(declared, address) == expected


def test_the_allow_list_supports_families_and_spellings() -> None:
    assert is_allowed("image/png", [])
    assert is_allowed("image/png", ["image/*"])
    assert is_allowed("application/zip", ["application/x-zip-compressed"])
    assert is_allowed("text/xml", [" Application/XML "])
    assert is_allowed("a/b", ["*/*"])
    assert not is_allowed("imagex/png", ["image/*"])
    assert not is_allowed("image/png", ["text/*", "application/pdf"])
    assert not is_allowed("text/markdown", ["text/plain"])


def test_only_types_that_no_browser_runs_are_shown_inline() -> None:
    for passive in ("image/png", "image/jpg", "text/plain", "application/json", "video/mp4", "audio/x-wav"):
        assert is_inline_safe(passive)
    for other in ("text/html", "image/svg+xml", "application/xhtml+xml", "text/javascript", "application/xml",
                  "application/pdf", "application/zip", "application/octet-stream", "message/rfc822", None):  # fmt: skip
        assert not is_inline_safe(other)


def test_content_declared_as_active_is_not_shown_inline_even_if_the_bytes_are_plain() -> None:
    named = settle(sniffed(b"words <b onclick=x>\n"), None, "a.html", reject_mismatch=True)

    assert named == MediaType("text/html", Source.INFERRED, "text/plain")
    assert not is_inline_safe(named.sniffed_media_type, named.media_type)
