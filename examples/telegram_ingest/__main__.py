"""A Telegram bot that stores each message once in a hub, although Telegram delivers updates again after a restart.

python examples/telegram_ingest    start a hub, feed it with updates, and print what it stores

`updates()` stands for the Bot API's `getUpdates`. The hub derives the keys from the message, so an edit updates its
entry, and a link that was sent before is found.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from onceward.hub.client import BlockingHub


def message(update_id: int, message_id: int, text: str, **more: int) -> dict[str, Any]:
    kind = "edited_message" if "edit_date" in more else "message"
    chat = {"id": 7, "type": "private"}
    return {
        "update_id": update_id,
        kind: {"message_id": message_id, "date": 1_767_225_600, "chat": chat, "text": text, **more},
    }


NOTE = message(1, 10, "Buy tea")
LINK = message(2, 11, "https://example.com/tea?utm_source=bot")
EDIT = message(3, 10, "Buy green tea", edit_date=1_767_225_660)
SAME_LINK = message(4, 12, "https://example.com/tea")


def updates() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "a note", NOTE
    yield "a link", LINK
    yield "its edit", EDIT
    # The bot is killed before it confirms the updates. Telegram delivers them again.
    yield "the note again", NOTE
    yield "the link again", LINK
    yield "the same page", SAME_LINK


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Start a hub for this example. Yours already runs: `onceward serve`."""
    command = [sys.executable, "-m", "onceward", "serve", "--data-dir", str(folder / "data"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as hub:  # noqa: S603
        assert hub.stdout is not None  # noqa: S101
        line = hub.stdout.readline()  # onceward: listening on http://127.0.0.1:40211 (data in …)
        try:
            yield next(word for word in line.split() if word.startswith("http://"))
        finally:
            hub.terminate()


def main() -> None:
    stored = {}
    with TemporaryDirectory() as folder, serving(Path(folder)) as url, BlockingHub(url) as hub:
        for name, update in updates():
            done = hub.ingest.insert_entry(hub.ingest.normalize_telegram(update))
            if done.entry is not None:
                stored[done.entry.id] = done.entry.clean_text
            print(f"{name}: {done.action}")
    print("stored:", list(stored.values()))


if __name__ == "__main__":
    main()
