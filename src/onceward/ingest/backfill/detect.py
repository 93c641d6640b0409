"""Which kind of archive a path is, found by looking at it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

from onceward.core.text import refused
from onceward.ingest.backfill.folders import Maildir, MailFiles, is_maildir
from onceward.ingest.backfill.item import Source
from onceward.ingest.backfill.json_lines import JsonLines
from onceward.ingest.backfill.mbox import Mbox, looks_like_mbox
from onceward.ingest.backfill.normalizing import Normalizing
from onceward.ingest.backfill.telegram_export import TelegramExport

FORMATS = ("mbox", "maildir", "eml", "telegram", "jsonl")
_LOOK = 64 * 1024
# A header, as mail begins.
_HEADER = re.compile(rb"[!-9;-~]+:[^\r\n]*\r?\n")


def open_source(path: Path, normalizing: Normalizing, kind: str | None = None, piped: BinaryIO | None = None) -> Source:
    """The archive at this path; `-` is what comes through a pipe. `InvalidInput` when it is none that is known."""
    if str(path) == "-":
        if kind not in (None, "jsonl"):
            raise refused("-", f"can be read only as jsonl, not as {kind}")
        return JsonLines(None, normalizing, piped)
    if not path.exists():
        raise refused(str(path), "is not there")
    match kind or format_of(path):
        case "mbox":
            return Mbox(path, normalizing)
        case "maildir":
            return Maildir(path, normalizing)
        case "eml":
            return MailFiles(path, normalizing)
        case "telegram":
            return TelegramExport(path, normalizing)
        case "jsonl":
            return JsonLines(path, normalizing)
        case _:
            raise refused(str(path), f"is none of {', '.join(FORMATS)} by its looks; say which with --format")


def format_of(path: Path) -> str | None:
    """By what it is and how it begins; the name decides only where the content does not."""
    if path.is_dir():
        if is_maildir(path):
            return "maildir"
        if (path / "result.json").is_file():
            raise refused(str(path), "is a folder with an export of Telegram; name its file result.json")
        return "eml" if next(path.rglob("*.eml"), None) else None
    with path.open("rb") as file:
        beginning = file.read(_LOOK)
    if looks_like_mbox(beginning):
        return "mbox"
    plain = beginning.removeprefix(b"\xef\xbb\xbf").lstrip()
    if plain.startswith(b"{"):
        return _json_format(path, plain)
    if path.suffix in {".jsonl", ".ndjson"}:
        return "jsonl"
    if not plain and (path.suffix == ".mbox" or path.name == "mbox"):
        return "mbox"
    return "eml" if _HEADER.match(plain) or path.suffix == ".eml" else None


def _json_format(path: Path, plain: bytes) -> str:
    if path.name == "result.json" or path.suffix == ".json":
        # An export is written over many lines; a single object in one line may be anything else.
        first = plain.partition(b"\n")[0].strip()
        return "telegram" if first == b"{" or b'"messages"' in plain or b'"chats"' in plain else "jsonl"
    return "jsonl"
