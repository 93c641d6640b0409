"""Archives for the tests: written to a folder, and read to their end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onceward.errors import InvalidInput
from onceward.hub.ingest.backfill.item import Item, MessageSource, Position

ENVELOPE = "From ada@example.com Mon Nov 16 03:26:00 2026\n"


def mail(number: int, subject: str = "Re: Lunch", body: str = "Yes.", **headers: str) -> str:
    lines = {"From": "Ada <ada@example.com>", "Subject": subject, "Message-ID": f"<{number}@example.com>", **headers}
    return "".join(f"{name.replace('_', '-')}: {value}\n" for name, value in lines.items()) + f"\n{body}\n"


def mbox(*mails: str) -> bytes:
    return "".join(f"{ENVELOPE}{one}\n" for one in mails).encode()


def exported(*messages: dict[str, Any], indent: int | None = 1, **chat: Any) -> str:
    export = {"name": "Notes", "type": "saved_messages", "id": 5, **chat, "messages": list(messages)}
    return json.dumps(export, indent=indent, ensure_ascii=False)


def message(number: int, text: Any = "A thought", **fields: Any) -> dict[str, Any]:
    sent = {"id": number, "type": "message", "date_unixtime": str(1_794_798_000 + number), "from_id": "user5"}
    return {**sent, "from": "Ada", "text": text, **fields}


def file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def items(source: MessageSource, after: Position | None = None) -> list[Item]:
    return list(source.items(after))


def refs(found: Iterable[Item]) -> list[Any]:
    """Return the external reference of each message; the reason for one that cannot be an entry; None for an ignored
    one.
    """
    references: list[Any] = []
    for item in found:
        try:
            payload = item.payload()
        except InvalidInput as error:
            references.append(f"refused: {error}")
        else:
            references.append(payload and payload["external_ref"])
    return references
