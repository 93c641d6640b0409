"""An archive with everything that happens: threads, newsletters that come twice, edits, undated mails, shared texts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DAY = 86_400
_BEGAN = 1_760_000_000
# Of every hundred messages.
_SHARES = (("thread", 30), ("newsletter", 25), ("thought", 30), ("edited", 5), ("link", 10))


def messages(count: int) -> list[dict[str, Any]]:
    """Return this many messages in forms that the hub accepts, as JSON lines; the same ones in every call."""
    chance = random.Random(count)
    kinds = [kind for kind, share in _SHARES for _ in range(share)]
    return [_message(number, chance.choice(kinds), chance) for number in range(count)]


def _message(number: int, kind: str, chance: random.Random) -> dict[str, Any]:
    at = _BEGAN + chance.randrange(30 * _DAY)
    match kind:
        case "thread":
            # Many mails of few threads; every fifth has no date, and its reference decides.
            date = f"Date: {_mail_date(at)}\n" if number % 5 else ""
            head = f"From: p{number % 7}@example.com\nSubject: Re: topic {number % 97}\nMessage-ID: <t{number}@example.com>\n"
            return _raw(f"{head}{date}\nReply number {number}.\n")
        case "newsletter":
            # Half of them come twice, byte for byte.
            same = number // 2 if number % 4 < 2 else number
            head = f"From: news@example.com\nSubject: Issue {same}\nList-Id: <news.example.com>\nMessage-ID: <n{same}@example.com>\n"
            return _raw(f"{head}Date: {_mail_date(_BEGAN + same)}\n\nIssue {same}.\n")
        case "thought":
            text = "ok" if number % 10 == 0 else f"Thought {number}"
            return _telegram(number, text, at)
        case "edited":
            # One message with several versions, of which the newest counts.
            return _telegram(number % 13, f"Version {number}", _BEGAN, edited=_BEGAN + number)
        case _:
            return _telegram(number, f"see https://example.com/{number % 200}", at, url=True)


def _raw(text: str) -> dict[str, Any]:
    return {"raw_message": text}


def _telegram(number: int, text: str, at: int, *, edited: int | None = None, url: bool = False) -> dict[str, Any]:
    chat = 10 if edited else 11 if url else 12
    sent: dict[str, Any] = {"message_id": number, "chat": {"id": chat, "type": "private"}, "date": at, "text": text}
    if edited:
        return {"update_id": edited, "edited_message": {**sent, "edit_date": edited}}
    return {"update_id": number + 1, "message": sent}


def _mail_date(at: int) -> str:
    from email.utils import formatdate  # noqa: PLC0415  # beside its only use

    return formatdate(at)


def write(path: Path, sent: Sequence[dict[str, Any]], seed: int) -> Path:
    """Write the messages as JSON Lines, in a random order of this seed."""
    shuffled = list(sent)
    random.Random(seed).shuffle(shuffled)
    path.write_text("".join(f"{json.dumps(one)}\n" for one in shuffled))
    return path
