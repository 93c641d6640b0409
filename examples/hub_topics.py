"""Topics on a hub: what is posted twice is there once, and whoever follows hears of it once, whenever they come."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from onceward.http.client import Intents
from onceward.hub.client import BlockingHub, Hub


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A hub of our own; yours is there already: `onceward serve`."""
    command = [sys.executable, "-m", "onceward", "serve", "--data-dir", str(folder / "data"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as hub:  # noqa: S603
        assert hub.stdout is not None  # noqa: S101
        said = hub.stdout.readline()  # onceward: listening on http://127.0.0.1:40211 (data in …)
        try:
            yield next(word for word in said.split() if word.startswith("http://"))
        finally:
            hub.terminate()


def write(url: str, folder: Path) -> str:
    """A script that may be killed anywhere and started again."""
    intents = Intents(folder / "intents.db")
    with BlockingHub(url) as hub:
        with intents.until_done("open the topic") as key:
            topic = hub.create_topic("Is the moon made of cheese?", idempotency_key=key).topic

        # A request that is sent again with its key has one effect and one answer.
        for life in ("first life:", "second life:"):
            with contextlib.suppress(SystemExit), intents.until_done("report what was found") as key:
                made = hub.post_message(topic.id, "scout", "It is not.", idempotency_key=key)
                print(life, "message of event", made.event_id)
                if life == "first life:":
                    raise SystemExit("the power fails before the answer is written down")

        # An attachment needs no key of its request: its dedupe_key says what it is.
        for _ in range(2):
            paper = {"url": "https://example.org/moon", "title": "Rocks"}
            added = hub.attach(topic.id, "link", paper, dedupe_key="https://example.org/moon")
            print("attached" if added.event_id else "was there", added.attachment.value_json["title"])
    return topic.id


async def follow(url: str, topic_id: str) -> None:
    async with Hub(url) as hub, hub.follow(0, topic_id=topic_id) as following:
        async for event in following:
            print("heard:", event.event_id, event.name)
            if event.entity_type == "attachment":
                break  # it would go on for ever, also over a restart of the hub
        print("next time after:", following.cursor)


if __name__ == "__main__":
    with TemporaryDirectory() as folder, serving(Path(folder)) as url:
        asyncio.run(follow(url, write(url, Path(folder))))
