"""The text of an HTML page, as far as a reader of mail needs it: lines and words, no links, no pictures.

Python's own parser is not used: its time grows with the square of the length for pages that are made to that end. Here
every expression that finds no end takes all that is left, so that nothing is looked through twice.
"""

from __future__ import annotations

import html
import re

# Comments, declarations, and elements whose content is no markup and nothing that a reader sees.
_UNSEEN = re.compile(
    r"<!--(?:-?>|.*?(?:-->|\Z))"
    r"|<[!?][^>]*+(?:>|\Z)"
    r"|<(script|style|title|template|textarea)\b[^>]*+(?:>|\Z).*?(?:</\1\b[^>]*+(?:>|\Z)|\Z)",
    re.IGNORECASE | re.DOTALL,
)
# A tag with its name; or, from a tag on whose quotes never close, the rest.
_TAG = re.compile(
    r"""<(?:/?([A-Za-z][^\s/<>]*+)(?:[^'">]++|"[^"]*+"|'[^']*+')*+>|(/?[A-Za-z].*))""",
    re.DOTALL,
)
_TAG_WITHOUT_QUOTES = re.compile(r"</?([A-Za-z][^\s/<>]*+)[^>]*+(?:>|\Z)")
# No longer than there are characters and names of them: a number of many digits takes long to read.
_ENTITY = re.compile(r"&(?:#[0-9]{1,8}|#[xX][0-9a-fA-F]{1,7}|[A-Za-z][A-Za-z0-9]{1,31});?")

_BLOCKS = (
    "address article aside blockquote br center dd div dl dt fieldset figure footer form h1 h2 h3 h4 h5 h6 header hr li"
    " main nav ol p pre section table tbody tfoot thead tr ul"
)
_CELLS = "td th"
_BREAKS = {**dict.fromkeys(_BLOCKS.split(), "\n"), **dict.fromkeys(_CELLS.split(), " ")}


def text_of_html(page: str) -> str:
    """The words of a page, a line for each block, at most one empty line in a row. Never raises, in linear time."""
    # A line ends where a block does, not where the page's text has its lines.
    seen = _UNSEEN.sub("", page.replace("\n", " ").replace("\r", " "))
    text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), "".join(_pieces(seen)))
    lines: list[str] = []
    for line in text.split("\n"):
        words = " ".join(line.split())
        if words or (lines and lines[-1]):
            lines.append(words)
    return "\n".join(lines).strip()


def _pieces(page: str) -> list[str]:
    """The text between the tags, and what each tag means for a reader."""
    # Text, name and rest in turn, and text at the end.
    found = _TAG.split(page)
    pieces = found[::3]
    names = found[1::3]
    if len(found) > 1 and (rest := found[-2]) is not None:
        found = _TAG_WITHOUT_QUOTES.split(f"<{rest}")
        # The rest begins with a tag.
        pieces[-1:] = found[2::2]
        names[-1:] = found[1::2]
    broken = [_BREAKS.get(name.lower(), "") for name in names]
    return [piece for pair in zip(pieces, [*broken, ""], strict=True) for piece in pair]
