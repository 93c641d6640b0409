"""Topics on a hub: a message posted twice is stored once, and every follower gets its event once, even a late one."""

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
    """Start a hub for this example. Yours already runs: `onceward serve`."""
    command = [sys.executable, "-m", "onceward", "serve", "--data-dir", str(folder / "data"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as hub:  # noqa: S603
        assert hub.stdout is not None  # noqa: S101
        line = hub.stdout.readline()  # onceward: listening on http://127.0.0.1:40211 (data in …)
        try:
            yield next(word for word in line.split() if word.startswith("http://"))
        finally:
            hub.terminate()


def write(url: str, folder: Path) -> str:
    """Write to the hub. The script may be killed at any point and started again."""
    intents = Intents(folder / "intents.db")
    with BlockingHub(url) as hub:
        with intents.until_done("open the topic") as key:
            topic = hub.create_topic("Is the moon made of cheese?", idempotency_key=key).topic

        # A request that is sent again with its key has one effect and one response.
        for life in ("first life:", "second life:"):
            with contextlib.suppress(SystemExit), intents.until_done("report the result") as key:
                made = hub.post_message(topic.id, "scout", "It is not.", idempotency_key=key)
                print(life, "message of event", made.event_id)
                if life == "first life:":
                    raise SystemExit("the power fails before the response is stored")

        # An attachment needs no request key: its dedupe_key identifies it.
        for _ in range(2):
            paper = {"url": "https://example.org/moon", "title": "Rocks"}
            added = hub.attach(topic.id, "link", paper, dedupe_key="https://example.org/moon")
            print("attached" if added.event_id else "already there:", added.attachment.value_json["title"])
    return topic.id


async def follow(url: str, topic_id: str) -> None:
    async with Hub(url) as hub, hub.follow(0, topic_id=topic_id) as following:
        async for event in following:
            print("event:", event.event_id, event.name)
            if event.entity_type == "attachment":
                break  # it would continue forever, also after a restart of the hub
        print("continue after:", following.cursor)


if __name__ == "__main__":
    with TemporaryDirectory() as folder, serving(Path(folder)) as url:
        asyncio.run(follow(url, write(url, Path(folder))))
