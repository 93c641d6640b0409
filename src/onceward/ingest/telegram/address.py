"""The web addresses of a message: written out in its text, or behind words that Telegram shows as links."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onceward.core.web_url import LENGTH_MAX
from onceward.ingest.telegram.passage import Passage
from onceward.ingest.url import canonical, find_urls

# Telegram also links addresses without a scheme. Nearly every host has this one, and it is the one people copy.
_SCHEME = "https://"
_LABEL = r"[^\s/?#@:.\\]"
_HOST = rf"(?:{_LABEL}++\.)++{_LABEL}{{2,}}+"
_WITHOUT_SCHEME = re.compile(rf"{_HOST}(?::[0-9]+)?(?:[/?#].*)?", re.DOTALL)
_BARE = re.compile(_HOST)
_WWW = re.compile(r"www\.", re.IGNORECASE)
# Telegram links `notes.md` and `main.rs` as if they were hosts, because their endings are those of countries and the
# like. Two thoughts about one file must not be taken for one link twice, so a bare name with such an ending is none.
_FILE_ENDINGS = frozenset({"cc", "md", "mm", "mov", "pl", "pm", "ps", "py", "rs", "sh", "so", "zip"})
# At one place in the text: where a link leads says more than the words of it, and an address that is found without
# Telegram's marks is found in every form of the message.
_BEHIND_WORDS, _FOUND, _MARKED = range(3)


@dataclass(frozen=True, slots=True)
class Address:
    """An http or https address: as it is written in the message, and with its scheme."""

    written: str
    full: str


def address_of(written: str) -> Address | None:
    """None if it is no http or https address. The scheme may be left out, as people do."""
    full = _SCHEME + written if _WITHOUT_SCHEME.fullmatch(written) else written
    return None if canonical(full) is None else Address(written, full)


def addresses(passage: Passage) -> list[Address]:
    """The addresses in the order in which they stand in the text; of those that overlap, the first."""
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
        # What is found in a text is known to be an address.
        return Address(written, written) if rank == _FOUND else address_of(written)
    # Marks over all of a long text would take long to look at. A longer address with its scheme is found without them.
    if end - start > LENGTH_MAX:
        return None
    written = text[start:end]
    return None if _may_be_a_file(written) else address_of(written)


def _may_be_a_file(written: str) -> bool:
    ending = written[written.rfind(".") + 1 :].lower()
    return ending in _FILE_ENDINGS and not _WWW.match(written) and _BARE.fullmatch(written) is not None
