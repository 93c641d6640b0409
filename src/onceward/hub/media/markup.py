"""HTML detection, and the types of XML documents by their first element."""

from __future__ import annotations

import re
from typing import NamedTuple

# The beginning of a page, and of nothing else.
_PAGE = re.compile(
    r"<(?:!doctype\s+html|(?:html|head|body|script|iframe|style|title|meta|link|frameset|base|object|embed|noscript)"
    r"(?=[\s/>]))",
    re.IGNORECASE,
)
# The beginning of a fragment of a page, and of many Markdown files.
_PIECE = re.compile(
    r"<(?:h[1-6]|div|font|table|tr|td|a|b|i|br|hr|p|ul|ol|li|span|img|center|pre|form|input|button|section|article|main"
    r"|header|footer|nav|video|audio|picture|details|summary|em|strong|label|select|textarea|dl|code|blockquote)"
    r"(?=[\s/>])",
    re.IGNORECASE,
)
_IN_PAGES = re.compile(r"<(?:script|iframe|style)[\s>]|\son[a-z]+\s*=|javascript:", re.IGNORECASE)
# Before the first element: blanks, comments, processing instructions, and a document type, maybe with internal subset.
_DECLARATION = re.compile(r"<\?xml[\s?]")
_PROLOGUE = re.compile(r"\s+|<!--.*?-->|<\?.*?\?>|<!DOCTYPE[^\[>]*(?:\[.*?\]\s*)?>", re.DOTALL | re.IGNORECASE)
_ELEMENT = re.compile(r"<(?:([A-Za-z_][\w.-]*+):)?([A-Za-z_][\w.-]*+)((?:[^<>\"']|\"[^\"]*\"|'[^']*')*+)(/?>)?")

_XML = "application/xml"
_ATOM = "application/atom+xml"
# (name of the element, part of its namespace or "" if the name is enough, type)
_ELEMENTS: tuple[tuple[str, str, str], ...] = (
    ("svg", "", "image/svg+xml"),
    ("html", "", "application/xhtml+xml"),
    ("feed", "w3.org/2005/Atom", _ATOM),
    ("entry", "w3.org/2005/Atom", _ATOM),
    ("rss", "", "application/rss+xml"),
    ("RDF", "purl.org/rss", "application/rss+xml"),
    ("RDF", "22-rdf-syntax-ns", "application/rdf+xml"),
    ("stylesheet", "XSL/Transform", "application/xslt+xml"),
    ("transform", "XSL/Transform", "application/xslt+xml"),
    ("math", "", "application/mathml+xml"),
    ("kml", "", "application/vnd.google-earth.kml+xml"),
    ("gpx", "", "application/gpx+xml"),
    ("COLLADA", "", "model/vnd.collada+xml"),
    ("X3D", "", "model/x3d+xml"),
    ("score-partwise", "", "application/vnd.recordare.musicxml+xml"),
    ("xliff", "", "application/xliff+xml"),
    ("TEI", "", "application/tei+xml"),
    ("opml", "", "text/x-opml+xml"),
)
# Limits of the search for the first element: real prologues are short, and long ones are meant to waste time.
_SEARCHED_CHARACTERS = 32 * 1024
_PROLOGUE_PARTS_MAX = 200


class Markup(NamedTuple):
    media_type: str
    # True if a Markdown file could begin in the same way.
    is_piece: bool = False


def _xml_type(text: str, place: int) -> str:
    element = _ELEMENT.match(text, place)
    if element is None:
        return _XML
    prefix, name, attributes = element[1], element[2], element[3]
    own = f"xmlns:{prefix}" if prefix else "xmlns"
    declared = re.search(rf"\s{re.escape(own)}\s*=\s*[\"']([^\"']*)", attributes)
    # In RSS 1.0 the first element is in the RDF namespace, and the RSS namespace is another attribute.
    spaces = attributes if name == "RDF" else declared[1] if declared else ""
    for known, space, media_type in _ELEMENTS:
        if name == known and space in spaces:
            return media_type
    return _XML


def detect(text: str) -> Markup | None:
    text = text[:_SEARCHED_CHARACTERS]
    start = len(text) - len(text.lstrip())
    if not text.startswith("<", start):
        return None
    is_xml = _DECLARATION.match(text, start) is not None
    place = start
    for _ in range(_PROLOGUE_PARTS_MAX):
        if not is_xml and _PAGE.match(text, place):
            return _page(text, place)
        part = _PROLOGUE.match(text, place)
        if part is None:
            break
        place = part.end()
    if is_xml:
        return Markup(_xml_type(text, place))
    if _PIECE.match(text, place):
        return Markup("text/html", is_piece=_IN_PAGES.search(text) is None)
    return _bare_xml(text, place)


def _page(text: str, place: int) -> Markup:
    is_xhtml = "http://www.w3.org/1999/xhtml" in text[place : place + 600] and _DECLARATION.match(text) is not None
    return Markup("application/xhtml+xml" if is_xhtml else "text/html")


def _bare_xml(text: str, place: int) -> Markup | None:
    """Detect XML without a declaration: by a known element, or by the matching end of an unknown one."""
    element = _ELEMENT.match(text, place)
    if element is None or element[4] is None:
        return None
    found = _xml_type(text, place)
    if found != _XML:
        return Markup(found)
    name = f"{element[1]}:{element[2]}" if element[1] else element[2]
    is_closed = text.rstrip().endswith(f"</{name}>") or "xmlns" in element[3] or "</" in text[element.end() :]
    return Markup(_XML) if is_closed else None
