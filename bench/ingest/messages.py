"""Realistic messages, all different: mails, newsletters, Telegram updates and URLs."""

from __future__ import annotations

import hashlib
import random
from email.utils import formatdate
from typing import Any

_BEGAN = 1_760_000_000
_chance = random.Random(7)
_WORDS = ["".join(_chance.choices("abcdefghijklmnoprstuvwz", k=_chance.randint(2, 9))) for _ in range(3000)]


def words(count: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(_WORDS, k=count))


def mail(number: int) -> bytes:
    """Return a mail. Half of the numbers give newsletters, the others replies with a different topic each."""
    text = "\r\n".join(words(12, number * 31 + line) for line in range(20))
    is_news = number % 2
    head = [
        f"From: {'News' if is_news else 'Ada'} <a{number % 50}@example.com>",
        "To: Bob <bob@example.com>",
        f"Subject: {'Issue' if is_news else 'Re: Topic'} {number} {words(4, number)}",
        f"Message-ID: <{number}.{hashlib.sha256(str(number).encode()).hexdigest()[:16]}@example.com>",
        f"Date: {formatdate(_BEGAN + number)}",
        "MIME-Version: 1.0",
        "Content-Type: text/plain; charset=utf-8",
        *(["List-Id: <news.example.com>", "List-Unsubscribe: <https://example.com/bye>"] if is_news else []),
    ]
    return "\r\n".join([*head, "", text, ""]).encode()


def update(number: int) -> dict[str, Any]:
    """Return a Telegram update. A third of the numbers give links."""
    text = words(8 + number % 40, number)
    entities = []
    if number % 3 == 0:
        address = f"https://example.com/{number}/{words(1, number)}?utm_source=chat&id={number}"
        entities = [{"type": "url", "offset": len(text) + 1, "length": len(address)}]
        text = f"{text} {address}"
    chat = {"id": -1_000_000_000_123, "type": "supergroup", "title": "Notes"}
    sender = {"id": 5, "is_bot": False, "first_name": "Ada"}
    sent = {"message_id": number, "from": sender, "chat": chat, "date": _BEGAN + number, "text": text}
    return {"update_id": number, "message": {**sent, "entities": entities}}


def exported(number: int) -> dict[str, Any]:
    """Return the same message in the export format of Telegram Desktop."""
    sent = update(number)["message"]
    return {
        "id": number,
        "type": "message",
        "date_unixtime": str(sent["date"]),
        "from": "Ada",
        "from_id": "user5",
        "text": sent["text"],
        "text_entities": [{"type": "plain", "text": sent["text"]}],
    }


def address(number: int) -> str:
    return f"https://www.Example.com/a/{number}/%7Eada?b={number}&utm_source=x&utm_medium=y&a=1#part"
