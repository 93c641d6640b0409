"""URLs of a message: written in its text, or the targets of words that Telegram shows as links."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onceward.hub.ingest.normalize.url import canonical, find_urls
from onceward.hub.ingest.telegram.linked_text import Passage
from onceward.hub.web_url import LENGTH_MAX

# Telegram also links URLs without a scheme. Nearly every host supports https, and people copy URLs with it.
_SCHEME = "https://"
_LABEL = r"[^\s/?#@:.\\]"
_HOST = rf"(?:{_LABEL}++\.)++{_LABEL}{{2,}}+"
_WITHOUT_SCHEME = re.compile(rf"{_HOST}(?::[0-9]+)?(?:[/?#].*)?", re.DOTALL)
_BARE = re.compile(_HOST)
_WWW = re.compile(r"www\.", re.IGNORECASE)
# Telegram links `notes.md` and `main.rs` as if they were hosts, because their endings are top-level domains. Two
# thoughts about one file must not become the same link, so a bare name with such an ending is not a URL.
_FILE_ENDINGS = frozenset({"cc", "md", "mm", "mov", "pl", "pm", "ps", "py", "rs", "sh", "so", "zip"})
# Priorities at the same position in the text. The target of a link comes before its words. A URL that is found without
# Telegram's marks comes before a marked one, because it is found in every form of the message.
_BEHIND_WORDS, _FOUND, _MARKED = range(3)


@dataclass(frozen=True, slots=True)
class Address:
    """An http or https URL, as written in the message and with its scheme."""

    written: str
    full: str


def address_of(written: str) -> Address | None:
    """Return the address; None if the text is not an http or https URL. The scheme may be missing."""
    full = _SCHEME + written if _WITHOUT_SCHEME.fullmatch(written) else written
    return None if canonical(full) is None else Address(written, full)


def addresses(passage: Passage) -> list[Address]:
    """Return the addresses in the order of the text; the first of those that overlap."""
    text = passage.text
    places = [
        (link.start, _MARKED if link.target is None else _BEHIND_WORDS, link.end, link.target) for link in passage.links
    ]
    at = 0
    for url in find_urls(text):
        at = max(text.find(url, at), at)
        places.append((at, _FOUND, at + len(url), url))
        at += len(url)
    places.sort(key=lambda place: place[:2])
    result: list[Address] = []
    covered = 0
    for start, rank, end, written in places:
        if start < covered:
            continue
        found = _read(text, start, end, rank, written)
        if found is not None:
            result.append(found)
            covered = end
    return result


def _read(text: str, start: int, end: int, rank: int, written: str | None) -> Address | None:
    if written is not None:
        # `find_urls` returns only valid URLs.
        return Address(written, written) if rank == _FOUND else address_of(written)
    # Checking marks over a whole long text would be slow. `find_urls` finds longer URLs if they have a scheme.
    if end - start > LENGTH_MAX:
        return None
    written = text[start:end]
    return None if _may_be_a_file(written) else address_of(written)


def _may_be_a_file(written: str) -> bool:
    ending = written[written.rfind(".") + 1 :].lower()
    return ending in _FILE_ENDINGS and not _WWW.match(written) and _BARE.fullmatch(written) is not None
