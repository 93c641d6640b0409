"""Normalizing alone, and backfills of whole archives from the first byte to the last commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from bench.ingest import messages
from bench.ingest.insert import timed
from onceward.hub.db.engine import Database
from onceward.hub.ingest.backfill.detect import open_source
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.backfill.run import Backfill, Result, result_of
from onceward.hub.ingest.email.normalize import normalize_mail
from onceward.hub.ingest.entries.insert import insert_entries
from onceward.hub.ingest.entries.schema import PKM
from onceward.hub.ingest.normalize.url import canonical, without_tracking
from onceward.hub.ingest.payload import Payload
from onceward.hub.ingest.telegram import normalize_telegram


def normalized(count: int) -> tuple[dict[str, float], list[Payload]]:
    """Return the normalized items per second of each kind, and their payloads."""
    mails = [messages.mail(number) for number in range(count)]
    updates = [messages.update(number) for number in range(count)]
    addresses = [messages.address(number) for number in range(count)]
    payloads: list[Payload] = []
    rates = {
        "mails": count / timed(lambda: payloads.extend(map(normalize_mail, mails))),
        "Telegram updates": count / timed(lambda: payloads.extend(map(normalize_telegram, updates))),
        "URLs, both forms": count / timed(lambda: [without_tracking(canonical(one) or "") for one in addresses]),
    }
    return rates, payloads


class _Entries:
    """Target of a backfill: the entries of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def insert(self, payloads: object) -> list[Result]:
        return [result_of(one) for one in insert_entries(self._database, PKM, payloads)]  # type: ignore[arg-type]


def backfilled(database: Database, folder: Path, count: int, clear: Callable[[], None]) -> dict[str, float]:
    """Return the messages per second of an mbox and of a Telegram export, and of a second run over each."""
    mbox = folder / "bench.mbox"
    with mbox.open("wb") as file:
        for number in range(count):
            file.write(b"From a@example.com Mon Nov 16 03:26:00 2026\r\n" + messages.mail(number) + b"\r\n")
    export = folder / "result.json"
    exported = {
        "name": "Notes",
        "type": "private_supergroup",
        "id": 123,
        "messages": [messages.exported(n) for n in range(count)],
    }
    export.write_text(json.dumps(exported, indent=1))
    found: dict[str, float] = {}
    for name, path in (("mbox", mbox), ("result.json", export)):
        clear()
        for run in ("", ", again"):
            source = open_source(path, Normalizer())
            backfill = Backfill(source, _Entries(database), None, chunk=1000, report=print)
            found[name + run] = count / timed(backfill.run)
            assert backfill.summary.count == count
    return found
