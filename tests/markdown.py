"""The parts of a Markdown document: its fenced blocks, sections, links and anchors."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A block of Python that the tests run, and one that they only parse.
RUN, DO_NOT_RUN = "python", "python no-run"
# A line that prints, and the output that the document shows for it.
PRINTS = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """The text between two fences, and the number of its first line, counted from 0."""

    kind: str
    line: int
    text: str


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def blocks(page: Path) -> Iterator[Block]:
    kind, start = None, 0
    lines = text_of(page).splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if kind is None:
            kind, start = line.removeprefix("```"), number + 1
        else:
            yield Block(kind, start, "\n".join(lines[start:number]))
            kind = None
    assert kind is None, f"{page}: a fence is not closed"


def prose(page: Path) -> str:
    """Return the text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def section(page: Path, heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text_of(page), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no section {heading!r}"
    return found[1]


@functools.cache
def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def targets(page: Path) -> Iterator[tuple[Path, str]]:
    for link in LINK.findall(prose(page)):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            # Not resolved: a page that is a link to a file of the package counts as the page.
            yield Path(os.path.normpath(page.parent / path)) if path else page, anchor
