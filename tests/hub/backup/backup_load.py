"""Load on a running hub, while it is backed up."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from onceward.hub.client import BlockingHub


@dataclass
class Load:
    """Writers of a hub, each in a thread, and what the hub has confirmed to them."""

    url: str
    tasks: list[str] = field(default_factory=list)
    attachments: dict[str, bytes] = field(default_factory=dict)
    turns: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)

    @contextlib.contextmanager
    def running(self, *, is_collecting: bool = True) -> Iterator[None]:
        """Write until the end of the block, and also collect garbage without a grace period."""
        writers = (self._make_tasks, self._attach, self._attach_and_remove, self._chat)
        jobs = (*writers, self._collect) if is_collecting else writers
        threads = [threading.Thread(target=self._run, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()

    def _run(self, job: Callable[[BlockingHub, int], None]) -> None:
        try:
            with BlockingHub(self.url) as hub:
                number = 0
                while not self.stopping.is_set():
                    job(hub, number)
                    number += 1
        except BaseException as error:  # noqa: BLE001  # reported by the test
            self.errors.append(error)

    def _make_tasks(self, hub: BlockingHub, number: int) -> None:
        self.tasks.append(hub.create_task(f"task {number}", idempotency_key=f"task-{number}").id)

    def _attach(self, hub: BlockingHub, number: int) -> None:
        data = f"kept {number} ".encode() * 3000
        task = hub.create_task("with a file")
        self.attachments[hub.attach_file(task.id, io.BytesIO(data), "other", filename="a.txt").id] = data

    def _attach_and_remove(self, hub: BlockingHub, number: int) -> None:
        task = hub.create_task("with a file that is removed")
        made = hub.attach_file(task.id, io.BytesIO(b"removed %d " % number * 3000), "other", filename="b.txt")
        hub.remove_attachment(made.id)

    def _chat(self, hub: BlockingHub, number: int) -> None:
        self.turns.append(hub.chat.say(f"hello {number}", session_key=f"s{number}").turn_id)

    def _collect(self, hub: BlockingHub, _number: int) -> None:
        hub.gc_blobs(dry_run=False, grace_seconds=0)
