"""Plain text of an HTML mail: lines and words, without links and pictures.

Python's own parser is not used: it takes quadratic time for malicious pages. Here every expression without a closing
delimiter consumes the rest of the page, so nothing is scanned twice.
"""

from __future__ import annotations

import html
import re

# Comments, declarations, and elements whose content is neither markup nor visible.
_UNSEEN = re.compile(
    r"<!--(?:-?>|.*?(?:-->|\Z))"
    r"|<[!?][^>]*+(?:>|\Z)"
    r"|<(script|style|title|template|textarea)\b[^>]*+(?:>|\Z).*?(?:</\1\b[^>]*+(?:>|\Z)|\Z)",
    re.IGNORECASE | re.DOTALL,
)
# A tag with its name; or the rest of the page, from a tag with an unclosed quote.
_TAG = re.compile(
    r"""<(?:/?([A-Za-z][^\s/<>]*+)(?:[^'">]++|"[^"]*+"|'[^']*+')*+>|(/?[A-Za-z].*))""",
    re.DOTALL,
)
_TAG_WITHOUT_QUOTES = re.compile(r"</?([A-Za-z][^\s/<>]*+)[^>]*+(?:>|\Z)")
# Limited to the length of real character numbers and names: parsing a number of many digits takes long.
_ENTITY = re.compile(r"&(?:#[0-9]{1,8}|#[xX][0-9a-fA-F]{1,7}|[A-Za-z][A-Za-z0-9]{1,31});?")

_BLOCKS = (
    "address article aside blockquote br center dd div dl dt fieldset figure footer form h1 h2 h3 h4 h5 h6 header hr li"
    " main nav ol p pre section table tbody tfoot thead tr ul"
)
_CELLS = "td th"
_BREAKS = {**dict.fromkeys(_BLOCKS.split(), "\n"), **dict.fromkeys(_CELLS.split(), " ")}


def text_of_html(page: str) -> str:
    """Return the text of a page, a line for each block, at most one empty line in a row; linear time, never raises."""
    # Lines end where blocks end; line breaks in the source mean nothing.
    seen = _UNSEEN.sub("", page.replace("\n", " ").replace("\r", " "))
    text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), "".join(_pieces(seen)))
    lines: list[str] = []
    for line in text.split("\n"):
        words = " ".join(line.split())
        if words or (lines and lines[-1]):
            lines.append(words)
    return "\n".join(lines).strip()


def _pieces(page: str) -> list[str]:
    """Return the text between the tags, and a line break or space for each tag that separates."""
    # `split` returns text, name and rest in turn, and text at the end.
    found = _TAG.split(page)
    pieces = found[::3]
    names = found[1::3]
    if len(found) > 1 and (rest := found[-2]) is not None:
        found = _TAG_WITHOUT_QUOTES.split(f"<{rest}")
        # The rest begins with a tag, so the first text is empty.
        pieces[-1:] = found[2::2]
        names[-1:] = found[1::2]
    broken = [_BREAKS.get(name.lower(), "") for name in names]
    return [piece for pair in zip(pieces, [*broken, ""], strict=True) for piece in pair]
