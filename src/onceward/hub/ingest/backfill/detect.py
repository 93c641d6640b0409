"""Detection of an archive's format from its content and name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

from onceward.core.json_text import refused
from onceward.hub.ingest.backfill.folders import Maildir, MailFiles, is_maildir
from onceward.hub.ingest.backfill.item import MessageSource
from onceward.hub.ingest.backfill.json_lines import JsonLines
from onceward.hub.ingest.backfill.mbox import Mbox, is_mbox
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.backfill.telegram_export import TelegramExport

FORMATS = ("mbox", "maildir", "eml", "telegram", "jsonl")
_SNIFFED_BYTES = 64 * 1024
# A header field, with which a mail begins.
_HEADER = re.compile(rb"[!-9;-~]+:[^\r\n]*\r?\n")


def open_source(
    path: Path, normalizer: Normalizer, kind: str | None = None, piped: BinaryIO | None = None
) -> MessageSource:
    """Open the archive at this path, or the pipe for `-`; `InvalidInput` if its format is unknown."""
    if str(path) == "-":
        if kind not in (None, "jsonl"):
            raise refused("-", f"can only be read as jsonl, not as {kind}")
        return JsonLines(None, normalizer, piped)
    if not path.exists():
        raise refused(str(path), "does not exist")
    match kind or format_of(path):
        case "mbox":
            return Mbox(path, normalizer)
        case "maildir":
            return Maildir(path, normalizer)
        case "eml":
            return MailFiles(path, normalizer)
        case "telegram":
            return TelegramExport(path, normalizer)
        case "jsonl":
            return JsonLines(path, normalizer)
        case _:
            raise refused(str(path), f"has an unknown format; choose one of {', '.join(FORMATS)} with --format")


def format_of(path: Path) -> str | None:
    """Detect the format from the kind of file and its beginning; the name decides only if the content does not."""
    if path.is_dir():
        if is_maildir(path):
            return "maildir"
        if (path / "result.json").is_file():
            raise refused(str(path), "is a folder with a Telegram export; give the path of its file result.json")
        return "eml" if next(path.rglob("*.eml"), None) else None
    with path.open("rb") as file:
        beginning = file.read(_SNIFFED_BYTES)
    if is_mbox(beginning):
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
        # An export begins with a line `{` and spans many lines, or at least has its messages or chats.
        first = plain.partition(b"\n")[0].strip()
        return "telegram" if first == b"{" or b'"messages"' in plain or b'"chats"' in plain else "jsonl"
    return "jsonl"
