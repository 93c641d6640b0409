"""A LangGraph agent as the brain of a hub: its customer interrupts it, and each order is refunded once.

python examples/langgraph_agent                                start a hub, talk to it, and print what happens
onceward serve --brain examples.langgraph_agent.agent:brain    talk to it yourself, from the root of the repository
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from onceward.hub.client import BlockingHub


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Start a hub with this brain. Yours already runs: `onceward serve --brain …`."""
    command = [sys.executable, "-m", "onceward", "serve", "--brain", "agent:brain", "--port", "0"]
    command += ["--data-dir", str(folder / "data")]
    with subprocess.Popen(  # noqa: S603
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parent,  # the module of the brain is there
        env={**os.environ, "DESK_FOLDER": str(folder)},
    ) as hub:
        assert hub.stdout is not None  # noqa: S101
        line = hub.stdout.readline()  # onceward: listening on http://127.0.0.1:40211 (data in …)
        try:
            yield next(word for word in line.split() if word.startswith("http://"))
        finally:
            hub.terminate()


class Customer:
    """A customer of the desk, who prints what the hub does with each message."""

    def __init__(self, hub: BlockingHub, folder: Path) -> None:
        self.chat = hub.chat
        self.folder = folder
        self.turns: list[str] = []

    def says(self, text: str) -> str:
        turn_id = self.chat.say(text, session_key="a customer", wait_seconds=0).turn_id
        print(f"\ncustomer:  {text}")
        return turn_id

    def interrupts(self, running: str, text: str) -> str:
        """Say something while a turn runs, and print what the hub decides about it."""
        turn_id = self.says(text)
        if turn_id == running:
            print("hub:       absorbed; the running turn starts over with both messages")
        elif self.chat.turn(running).status == "superseded":
            print("hub:       the running turn is superseded; a new turn has both messages")
        else:
            print(f"hub:       queued in a turn of its own: {self.chat.turn(turn_id).reason}")
        return turn_id

    def gets_an_answer(self, turn_id: str) -> None:
        print("desk:     ", self.chat.finished(turn_id).response)
        self.sees_effects(turn_id)

    def sees_effects(self, turn_id: str) -> None:
        calls = [f"{one.tool} {one.arguments['order_id']}: {one.status}" for one in self.chat.turn(turn_id).tools]
        print("effects:  ", ", ".join(sorted(calls)) or "none")

    def sees_the_model_think(self, turn_id: str) -> None:
        text = next(event.text for event in self.chat.follow(turn_id) if event.text)
        print("desk:     ", text.strip())

    def sees_the_bank_work(self) -> None:
        while not (self.folder / "bank-was-called").exists():
            time.sleep(0.01)
        print("bank:      a refund has begun")

    @contextlib.contextmanager
    def while_busy(self, name: str) -> Iterator[None]:
        (self.folder / "bank-was-called").unlink(missing_ok=True)
        (self.folder / f"{name}-is-busy").touch()
        yield
        (self.folder / f"{name}-is-busy").unlink()


def main() -> None:
    with TemporaryDirectory() as name, serving(Path(name)) as url, BlockingHub(url) as hub:
        customer = Customer(hub, Path(name))

        with customer.while_busy("model"):
            first = customer.says("Refund order 1234")
            customer.sees_the_model_think(first)
            second = customer.interrupts(first, "No wait, order 1243")
            customer.sees_effects(first)
        customer.gets_an_answer(second)

        with customer.while_busy("model"):
            first = customer.says("Refund order 1250")
            customer.sees_the_model_think(first)
            customer.interrupts(first, "And also order 1251")
        customer.gets_an_answer(first)

        with customer.while_busy("bank"):
            first = customer.says("Refund order 1260")
            customer.sees_the_bank_work()
            second = customer.interrupts(first, "Stop, not that one")
        customer.gets_an_answer(first)
        customer.gets_an_answer(second)

        # Sorted, because the agent calls its tools in parallel.
        print("\nrefunds:  ", ", ".join(sorted((Path(name) / "bank.txt").read_text().split())))


if __name__ == "__main__":
    main()
